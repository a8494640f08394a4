"""The drivers: what speaks to a database, a folder or the memory of this process for a log store.

shared   the source, the membership and the errors that the file and memory drivers share
memory   logs in the memory of one process
files    logs in a folder
kafka    logs in Apache Kafka
"""
