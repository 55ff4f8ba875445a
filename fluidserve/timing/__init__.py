"""How long one step takes on an instance."""
