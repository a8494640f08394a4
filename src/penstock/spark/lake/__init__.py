"""The lake: files into logs and queues, logs and history into Parquet tables, and a report of them.

``ingest`` imports files, with ``ingest_files`` and ``ingest_rows``; ``export`` writes a log as Parquet; ``pipeline``
turns history into tables; ``report`` draws a page of them with ``charts``.
"""
