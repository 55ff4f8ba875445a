"""A deployment at an arrival rate: stages put together, one module per kind."""
