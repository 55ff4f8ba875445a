"""What exists: models, accelerators, workloads, promises, deployments. Data only."""
