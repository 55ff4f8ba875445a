"""How fast fluidserve plans: ``python -m benchmarks.speed`` prints docs/performance.md."""
