"""A client of ``penstock serve``, with types; needs httpx2 (``pip install "penstock[client]"``).

===========  ==============================================================================
module       what it is for
===========  ==============================================================================
answers      what the service answers, as types
call         Call: one request, and how its answer is read
content      what is sent of entries, records, values and times
calls        queues, entries, leases, records: what is sent, what comes back, whether it may be sent twice
admin_calls  the same for schedules, workers, groups, circuits, the breaker, topologies, health
problems     from an answer that is a problem to the error that it was
exchange     one call with its repeats, without input and output
clients      Client, and AsyncClient for asyncio and trio
===========  ==============================================================================
"""

from penstock.client.answers import (
    Batch,
    Circuit,
    Ended,
    Entry,
    GroupLag,
    HistoryRow,
    Leased,
    Lock,
    Log,
    Page,
    Put,
    QueueCounts,
    Record,
    RecordPage,
)
from penstock.client.clients import AsyncClient, Client
from penstock.client.content import NewEntry, NewRecord

__all__ = [
    "AsyncClient",
    "Batch",
    "Circuit",
    "Client",
    "Ended",
    "Entry",
    "GroupLag",
    "HistoryRow",
    "Leased",
    "Lock",
    "Log",
    "NewEntry",
    "NewRecord",
    "Page",
    "Put",
    "QueueCounts",
    "Record",
    "RecordPage",
]
