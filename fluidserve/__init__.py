"""Plan LLM serving on GPUs: batched queueing and roofline models, cross-checked by simulation."""
