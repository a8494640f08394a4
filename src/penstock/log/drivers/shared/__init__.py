"""What the drivers share.

source       EmbeddedSource: a group member over readers and leases, for the file and memory drivers
membership   what a driver provides for it: Reader, Membership, Watch
errors       errors that several drivers raise
"""
