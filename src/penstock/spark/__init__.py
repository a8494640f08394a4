"""Logs and queues on Spark: ``format("penstock")`` for batches and streams, and a session with the right settings.

``session`` makes the session; ``source`` is the data source that Spark finds by its name; ``options`` reads its
options; ``columns`` and ``payloads`` say what a row looks like; ``log_source`` and ``queue_source`` read, ``log_sink``
and ``queue_sink`` write; ``identity`` says which query and batch writes; ``stores`` opens
stores in Spark's processes; ``daemon`` starts them faster; ``explaining`` finds our error in Spark's;
``importing`` takes files in, ``exporting`` writes Parquet; ``runner`` executes topologies, with ``running``;
``pipeline`` makes tables of history, ``report`` a page of them with ``charts``.
"""

from penstock.spark.explaining import explain, plain_errors
from penstock.spark.runner import SparkRunner
from penstock.spark.session import check_java, session

__all__ = ["SparkRunner", "check_java", "explain", "plain_errors", "session"]
