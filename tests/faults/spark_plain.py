"""For spark-submit: a session of Spark's own, nothing of Penstock imported or registered, only its format named.

spark_plain.py URL CHECKPOINT

Reads log ``in``, counts its keys' records into log ``out`` as a batch, and follows ``in`` into log ``copy``.
"""

import sys

from pyspark.sql import SparkSession


def main() -> None:
    url, checkpoint = sys.argv[1:3]
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    assert not any(name.split(".")[0] == "penstock" for name in sys.modules)
    rows = spark.read.format("penstock").options(url=url, log="in").load()
    counts = rows.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
    counts.write.format("penstock").options(url=url, log="out").mode("append").save()
    source = spark.readStream.format("penstock").options(url=url, log="in", limit=70).load()
    writer = source.select("key", "value").writeStream.format("penstock").options(url=url, log="copy")
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
