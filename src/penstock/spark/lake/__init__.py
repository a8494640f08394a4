"""The lake: files into logs and queues, logs and history into Parquet tables, and a report of them.

``ingest`` imports files, with ``ingest_source``, ``ingest_files``, ``ingest_batches`` and ``ingest_rows``; ``export``
writes a log as files; ``pipeline`` takes history into a ``lake``, whose ``tables`` are functions from DataFrame to
DataFrame; ``reading`` reads a lake without Spark; ``report`` writes a page of its ``figures`` with ``charts``. A lake
consists of what its ``manifest`` names, on any ``filesystem`` that Hadoop knows; ``formats`` are those of its files.
"""
