"""Writing to a partition.

partition   the append protocol, group commit and recovery
producers   sequences of producers, and which incarnation may append
staging     records written aside for a transaction of another process
adoption    staged files that become segments
retention   removing the oldest segments
sync        the background sync of the fast profile
"""
