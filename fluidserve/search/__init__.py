"""Every candidate of a question, scored in one call."""
