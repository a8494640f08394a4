"""Writing to a partition.

partition    the append protocol
durability   bringing a partition to disk
recovery     finding the true end after a crash
producers    sequences of producers, and which appender of a name may append
staging      records written aside for a transaction of another process
adoption     staged files that become segments
retention    removing the oldest segments
sync         the background sync of the fast profile
"""
