"""Groups on disk.

offsets      committed offsets
leases       the lock and the leases of a group
editing      changing a group's offsets from outside
membership   FileMembership: one open tailer in a group
"""
