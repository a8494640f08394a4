"""Logs and queues on Spark: ``format("penstock")`` for batches and streams, and a session with the right settings.

``session`` makes the session; ``source`` is the data source that Spark finds by its name; ``options`` reads its
options; ``columns``, ``payloads`` and ``ddl`` say what a row looks like, ``batches`` makes them; ``log_source`` and
``queue_source`` read, ``log_sink`` (with ``staging``) and ``queue_sink`` write; ``identity`` says which query and
batch writes; ``stores`` opens stores in Spark's processes; ``daemon`` starts them faster; ``explaining`` finds our
error in Spark's; ``importing`` takes files in, with ``files`` and ``taking``, ``exporting`` writes Parquet; ``runner``
executes topologies; ``pipeline`` makes tables of history, ``report`` a page of them with ``charts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.explaining import explain, plain_errors
from penstock.spark.session import check_java, session

if TYPE_CHECKING:
    from penstock.spark.runner.runner import SparkRunner

__all__ = ["SparkRunner", "check_java", "explain", "plain_errors", "session"]


def __getattr__(name: str) -> Any:
    """Import the runner when it is asked for: Spark starts processes that only read or write."""
    if name != "SparkRunner":
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    from penstock.spark.runner.runner import SparkRunner

    return SparkRunner
