"""Reading a partition.

reader   reading frames from any offset, and finding offsets by time
watch    waiting for records and commits: inotify, or polling
"""
