"""Transactions over partitions and offsets.

journal    the journal whose frames are the commit points; finishing transactions of dead processes
records    the journal's records
commit     committing a transaction
writes     what a transaction writes before its commit point
pruning    dropping segments of the journal
recovery   after a restart: undoing transactions that did not reach the disk whole
"""
