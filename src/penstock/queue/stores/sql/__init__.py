"""Queues in SQL: one schema, statements common to all, one module per database.

schema      the tables of a space, defined once
migrations  numbered steps from one schema version to the next
statements  the fixed SQL of the hot path, by name
operations  what a step does, in terms of those statements
claiming    how due entries are found and leased
sqlite      the embedded store: files, one writer per process, group commit
"""
