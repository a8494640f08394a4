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
store        LogStore: the contract every store fulfils
protocol     what a store and its callers hand each other
pools/       ConsumerPool and ProducerPool: threads that consume a log, threads that fill one
maintenance/ LogCopy and LagSampler: a whole log into another store; how far groups are behind, as records
drivers/     the drivers: memory, files, Kafka
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.importing import names_on_demand

if TYPE_CHECKING:
    from penstock.log.appender import Appender
    from penstock.log.log import Log
    from penstock.log.pools.consumer import ConsumerPolicy, ConsumerPool, Each, Together
    from penstock.log.pools.producer import Message, ProducerPool
    from penstock.log.protocol import LogSettings, Retention
    from penstock.log.record import Bounds, Lag, Latency, Offset, Partition, Record
    from penstock.log.store import LogStore
    from penstock.log.tailer import Tailer
    from penstock.log.transaction import Transaction
    from penstock.policy import Batching

__all__ = [
    "Appender",
    "Batching",
    "Bounds",
    "ConsumerPolicy",
    "ConsumerPool",
    "Each",
    "Lag",
    "Latency",
    "Log",
    "LogSettings",
    "LogStore",
    "Message",
    "Offset",
    "Partition",
    "ProducerPool",
    "Record",
    "Retention",
    "Tailer",
    "Together",
    "Transaction",
]

__getattr__, __dir__ = names_on_demand(
    __name__,
    __all__,
    {
        "penstock.log.appender": "Appender",
        "penstock.log.log": "Log",
        "penstock.log.pools.consumer": "ConsumerPolicy ConsumerPool Each Together",
        "penstock.log.pools.producer": "Message ProducerPool",
        "penstock.log.protocol": "LogSettings Retention",
        "penstock.log.record": "Bounds Lag Latency Offset Partition Record",
        "penstock.log.store": "LogStore",
        "penstock.log.tailer": "Tailer",
        "penstock.log.transaction": "Transaction",
        "penstock.policy": "Batching",
    },
)
