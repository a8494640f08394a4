"""The bytes on disk; ``docs/file-log-format.md`` describes them.

frame     frames: what one append writes
arrow     frames from Arrow columns
segment   segment files, their index, and walking over frames
control   the control file: where each partition ends
"""
