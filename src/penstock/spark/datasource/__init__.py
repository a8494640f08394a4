"""The data source behind ``format("penstock")``: logs and queues as tables and streams, and the way back.

``source`` is what Spark finds by its name; ``options`` reads its options; ``columns``, ``payloads`` and ``schema`` say
what a row looks like, ``arrow_batches`` builds them; ``log_reader`` and ``queue_reader`` read, less what ``pushdown``
rules out; ``log_writer`` (with ``staging``) and ``queue_writer`` write; ``query_identity`` says which query and batch
writes.
"""
