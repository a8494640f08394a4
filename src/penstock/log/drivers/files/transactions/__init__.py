"""Transactions over partitions and offsets.

journal   the journal whose frames are the commit points
writes    what a transaction writes before its commit point
"""
