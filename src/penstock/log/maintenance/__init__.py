"""Looking after logs from outside.

copy          LogCopy: a whole log into another store
lag_samples   LagSampler: how far groups are behind, as records
"""
