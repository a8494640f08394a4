"""The same API with ``await``: queues, units of work, bus, workers and logs for programs on an event loop.

    store = await aio.open_queues("sqlite:///shop.db")
    mails = await store.queue("mails", Mail)
    await mails.put(Mail(to="ann@example.org"), delay="45m")

Every call is the synchronous one, run in a thread. A call that was begun is never abandoned: when its task is
cancelled, the cancellation waits for the answer, so a put that was sent is not left between yes and no, and a unit of
work is committed or rolled back whatever happens around it. The objects wrap their synchronous twins, ``.sync``.

calling    how a synchronous call becomes one to await
queues     QueueStore, Queue, Batch, UnitOfWork, Bus
logs       LogStore, Log, Appender, Tailer, Transaction
worker     Worker
"""

from penstock.aio.calling import run
from penstock.aio.logs import Appender, Log, LogStore, Tailer, Transaction, open_logs
from penstock.aio.queues import Batch, Bus, Queue, QueueStore, UnitOfWork, open_queues
from penstock.aio.worker import Worker

__all__ = [
    "Appender",
    "Batch",
    "Bus",
    "Log",
    "LogStore",
    "Queue",
    "QueueStore",
    "Tailer",
    "Transaction",
    "UnitOfWork",
    "Worker",
    "open_logs",
    "open_queues",
    "run",
]
