"""Spark's worker daemon with Penstock imported: every plan, task and commit runs in a fork of it.

Nothing that starts threads may be imported here (Arrow, numpy and pandas do), for only one thread survives a fork.
"""

from __future__ import annotations

import pyspark.sql.types
from pyspark.daemon import manager

import penstock.log.drivers.files
import penstock.spark.datasource.log_writer
import penstock.spark.datasource.source
import penstock.spark.runner.task

# The modules that our workers need first.
NEEDED = (
    pyspark.sql.types,
    penstock.log.drivers.files,
    penstock.spark.datasource.source,
    penstock.spark.datasource.log_writer,
    penstock.spark.runner.task,
)

if __name__ == "__main__":
    manager()
