"""Runs topologies on this machine: the engine with threads, a log store and processes around it.

runner          LocalRunner: threads over a log store
thread          one thread of a computation: reads, lets the engine work, commits; started again when it fails
input           where a thread's records come from: the tailers of its group
event_time      how far the inputs of a thread's tasks count, read from the store
drain           exact draining by captured end offsets
process_runner  ProcessRunner: several processes, for work that keeps a core busy
process         what runs in each of these processes
"""
