"""Logs in a folder: segment files that any number of processes on one machine append to and read.

driver         the driver: the calls of the log contract
folder         the folder of one log: its settings, its lock, its partitions
locks          locks that the kernel frees when their holder dies
disk           what the operating system's errors mean to a user
filesystem     which file systems cannot hold a log store
private        files that only their owner may read
format/        the bytes: frames, segments, the index, the control file
writing/       appends, group commit, recovery, staging, retention
reading/       reading at any offset, and waiting for records
groups/        committed offsets, leases and members
transactions/  the journal and what a transaction writes
ops/           backup, verify, repair, doctor
"""

from penstock.log.drivers.files.driver import FileLogStore, open_store

__all__ = ["FileLogStore", "open_store"]
