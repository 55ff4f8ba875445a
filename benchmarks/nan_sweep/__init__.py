"""A sweep over random candidates for NaN, in values and in derivatives."""
