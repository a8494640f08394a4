"""What the file driver and the memory driver share: groups made of leases.

source   EmbeddedSource: a group member that reads its partitions
"""
