"""Engines iteration by iteration, for many candidates at once, on sampled requests."""
