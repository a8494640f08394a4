"""Reading a partition.

reader   FileReader: reads frames from any offset
search   finding offsets by time
watch    waiting for records and commits: inotify, or polling
"""
