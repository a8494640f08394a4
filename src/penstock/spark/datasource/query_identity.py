"""Who writes: the query and the batch, as tasks know them and the driver's commit does not.

Spark tells a sink's commit the batch id only, and batch ids start over with every checkpoint. Tasks find both in their
local properties. These names are not documented, so a test checks that Spark still has them.
"""

from __future__ import annotations

from pyspark import TaskContext

from penstock.errors import PenstockError
from penstock.ids import new_id

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"


class Writing:
    """One write: of a stream's batch, or of a DataFrame."""

    def __init__(self, producer: str, sequence: int) -> None:
        """``producer`` and ``sequence`` identify the write in the store."""
        self.producer = producer
        self.sequence = sequence


def streams_batch() -> Writing:
    """In a task of a stream: its query and batch."""
    context = TaskContext.get()
    query = context.getLocalProperty(QUERY) if context is not None else None
    batch = context.getLocalProperty(BATCH) if context is not None else None
    if not query or batch is None:
        raise PenstockError(
            "Spark does not say which query and batch this task belongs to.",
            hint="Use pyspark 4.3; other versions may name it differently.",
        )
    return Writing(producer_of(query), int(batch))


def producer_of(query: str) -> str:
    """The name under which a store knows a query."""
    return f"spark-{query}"


def one_write(producer: str | None, sequence: int | None) -> Writing:
    """For a DataFrame: the name that the user gave, which allows repeating the write, or a new one."""
    if producer is not None and sequence is not None:
        return Writing(producer, sequence)
    return Writing(f"spark-{new_id()}", 0)


def task_number() -> int:
    """The partition that this task computes; the same when it is tried again."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
