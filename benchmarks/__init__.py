"""Measurements: ratios to a peer or to the raw driver, taken in the same run on the same disk."""
