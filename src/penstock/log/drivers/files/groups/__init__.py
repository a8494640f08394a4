"""Groups on disk.

membership   committed offsets, leases and members
"""
