"""Logs in a folder: partitions of segment files that any number of processes of one machine append to and read.

``store`` is the handle; ``folder`` one log; ``partition`` the append protocol, group commit and recovery; ``frames``
the bytes; ``segments`` files and their index; ``control`` the mapped ends; ``locks`` locks that die with their holder;
``reading`` reading at any offset; ``watching`` inotify; ``groups`` offsets, leases and members; ``producers``
sequences; ``journal`` transactions, ``writing`` what they write beyond the ends; ``staging`` records written aside,
``arrow`` the same from Arrow columns, ``adoption`` such files as segments; ``retention`` what may go; ``syncing`` the
fast profile's background; ``copies`` backup, verify and repair; ``disk`` what its errors mean; ``filesystem`` which
disks will not do; ``private`` files that only their owner reads.
"""

from penstock.log.stores.files.store import FileLogStore, open_store

__all__ = ["FileLogStore", "open_store"]
