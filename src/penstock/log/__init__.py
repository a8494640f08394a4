"""Facts that are read many times: partitions of records, groups and their offsets.

record       Record, Offset, Partition, batches of records, Lag and Latency
log          Log: the typed handle: append, tail, lag
appender     Appender: the typed writer, with routing and lingering
routing      Router and Lingering: encoding, partitions by key, waiting for company
tailer       Tailer: the typed reader of a group: read, seek, commit
transaction  Transaction: appends and offsets committed together
group        assignments: who reads which partition
partitioner  from a key to a partition
limits       what no partition could keep
pool         ConsumerPool: threads that consume in batches
crew         Crew: the threads of a pool
producers    ProducerPool: threads that fill a log
copying      LogCopy: a whole log into another store
sampling     LagSampler: how far groups are behind, as records
store        LogStore: the contract every store fulfils
protocol     what a store and its callers hand each other
stores/      the stores
"""

from penstock.policy import Batching as Batching
