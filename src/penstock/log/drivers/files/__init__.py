"""Logs in a folder: segment files that any number of processes on one machine append to and read.

driver            FileDriver: the contract's calls
opening           the options of the URL, and the folders of a store
sink              FileSink: appends to the partitions of a log
folder            LogFolder: the folder of one log, with its lock and its partitions
stored_settings   the settings of a log in its folder
locks             locks that the kernel frees when their holder dies
disk              the operating system's errors as Penstock's
filesystem        network file systems, which are refused
private           files that only their owner may read
format/           the bytes: frames, segments, the index, the control file
writing/          appends, durability, recovery, staging, retention
reading/          reading at any offset, and waiting for records
groups/           committed offsets, leases and members
transactions/     the journal, commits, and recovery
ops/              backup, verify, repair, doctor
"""

from penstock.log.drivers.files.driver import FileDriver, open_driver

__all__ = ["FileDriver", "open_driver"]
