"""The bytes on disk; ``docs/file-log-format.md`` describes them.

frames     encoding frames, and reading their headers
batch      FrameBatch: the records of a frame
arrow      frames from Arrow columns, and batches to Arrow
segments   segment files, and walking over their frames
index      the sparse index of a segment
control    the control file: where each partition ends
"""
