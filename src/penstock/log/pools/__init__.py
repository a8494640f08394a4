"""Pools of threads that fill a log or consume it.

consumer   ConsumerPool: threads that consume in batches
producer   ProducerPool: threads that fill a log
threads    the threads of a pool
"""
