"""Logs and queues on Spark: ``format("penstock")`` for batches and streams, and a session with the right settings.

``session`` starts a session; ``datasource`` is ``format("penstock")``; ``runner`` executes topologies; ``lake`` imports
files and turns logs and history into tables; ``metrics`` counts what streaming queries do; ``stores`` opens stores in
Spark's processes; ``daemon`` starts them faster; ``errors`` finds our error in Spark's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.importing import names_on_demand
from penstock.spark.errors import explain, plain_errors
from penstock.spark.session import check_java, session

if TYPE_CHECKING:
    from penstock.spark.runner.runner import SparkRunner

__all__ = ["SparkRunner", "check_java", "explain", "plain_errors", "session"]

# The processes that Spark starts only to read or write do not need the runner.
__getattr__, __dir__ = names_on_demand(__name__, __all__, {"penstock.spark.runner.runner": "SparkRunner"})
