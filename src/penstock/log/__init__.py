"""Facts that are read many times: partitions of records, groups and their offsets.

record       Record, Offset, Partition, batches of records, Lag and Latency
settings     LogSettings and Retention: the settings of a log
store        LogStore: the user's calls
log          Log: a typed handle on a log
appender     Appender: the typed writer
routing      Router and LingerBuffer: encoding, choosing partitions, buffering
tailer       Tailer: the typed reader of a group
transaction  Transaction: appends and offsets that are committed together
group        assignments: which member of a group reads which partition
partitioner  hash functions from a key to a partition
limits       checks of records before they are appended
commit_watch waiting for a group's commits
driver       LogDriver: the contract of what speaks to a database
protocol     what a store and its driver exchange
pools/       ConsumerPool and ProducerPool: threads that consume a log or fill one
maintenance/ LogCopy and LagSampler: copying a log, recording the lag of groups
drivers/     the drivers: memory, files, Kafka
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.importing import names_on_demand

if TYPE_CHECKING:
    from penstock.log.appender import Appender
    from penstock.log.log import Log
    from penstock.log.record import Bounds, Lag, Latency, Offset, Partition, Record
    from penstock.log.settings import LogSettings, Retention
    from penstock.log.store import LogStore
    from penstock.log.tailer import Tailer
    from penstock.log.transaction import Transaction
    from penstock.policy import Batching

__all__ = [
    "Appender",
    "Batching",
    "Bounds",
    "Lag",
    "Latency",
    "Log",
    "LogSettings",
    "LogStore",
    "Offset",
    "Partition",
    "Record",
    "Retention",
    "Tailer",
    "Transaction",
]

__getattr__, __dir__ = names_on_demand(
    __name__,
    __all__,
    {
        "penstock.log.appender": "Appender",
        "penstock.log.log": "Log",
        "penstock.log.settings": "LogSettings Retention",
        "penstock.log.record": "Bounds Lag Latency Offset Partition Record",
        "penstock.log.store": "LogStore",
        "penstock.log.tailer": "Tailer",
        "penstock.log.transaction": "Transaction",
        "penstock.policy": "Batching",
    },
)
