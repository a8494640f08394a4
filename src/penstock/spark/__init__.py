"""Logs and queues on Spark: ``format("penstock")`` for batches and streams, and a session with the right settings.

``session`` starts a session; ``datasource`` is ``format("penstock")``; ``runner`` executes topologies; ``lake`` imports
files and turns logs and history into tables; ``metrics`` counts what streaming queries do; ``stores`` opens stores in
Spark's processes; ``daemon`` starts them faster; ``errors`` finds our error in Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.spark.errors import explain, plain_errors
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
