"""Pools of threads that consume a log or fill one.

consumer        ConsumerPool: threads that consume in batches
consumer_loop   ConsumerLoop: what each of its threads does
consumers       Consumer, per_record and per_batch
producer        ProducerPool: threads that fill a log
threads         the threads of a pool
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.importing import names_on_demand

if TYPE_CHECKING:
    from penstock.log.pools.consumer import ConsumerPolicy, ConsumerPool, ConsumerStatus
    from penstock.log.pools.consumers import Consumer, per_batch, per_record
    from penstock.log.pools.producer import Message, ProducerPool, ProducerStatus

__all__ = [
    "Consumer",
    "ConsumerPolicy",
    "ConsumerPool",
    "ConsumerStatus",
    "Message",
    "ProducerPool",
    "ProducerStatus",
    "per_batch",
    "per_record",
]

__getattr__, __dir__ = names_on_demand(
    __name__,
    __all__,
    {
        "penstock.log.pools.consumer": "ConsumerPolicy ConsumerPool ConsumerStatus",
        "penstock.log.pools.consumers": "Consumer per_batch per_record",
        "penstock.log.pools.producer": "Message ProducerPool ProducerStatus",
    },
)
