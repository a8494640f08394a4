"""How Spark finds ``format("penstock")``: it looks for modules called ``pyspark_*`` and their ``DefaultSource``."""

from penstock.spark.datasource.source import PenstockSource


class DefaultSource(PenstockSource):
    """Logs and queues of Penstock."""
