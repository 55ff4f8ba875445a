"""How far the formulas are off the event simulator, over deployments drawn by a seed."""
