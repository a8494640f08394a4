"""A Spark driver of its own, to be killed: follows log ``in`` into log ``out`` until all of it is there.

With QUEUE_URL in the environment it goes into the queue ``out`` there instead.

python spark_driver.py URL CHECKPOINT MASTER [worker|executor|host]
"""

import os
import sys
from typing import Any

from tests.faults.spark_killing import kill_once

from penstock import spark as penstock_spark


def dying(batches: Any, what: str, mark: str) -> Any:
    """Somebody dies in the middle of a task, once in all."""
    for batch in batches:
        yield batch
        kill_once(what, mark)


def main() -> None:
    url, checkpoint, master = sys.argv[1:4]
    spark = penstock_spark.session(
        "faults",
        master=master,
        settings={
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.showConsoleProgress": False,
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.readStream.format("penstock").options(url=url, log="in", limit=40).load().select("key", "value")
    if len(sys.argv) > 4:
        what, mark = sys.argv[4], f"{checkpoint}-{sys.argv[4]}"
        frame = frame.mapInArrow(lambda batches: dying(batches, what, mark), frame.schema)
    target = {"url": url, "log": "out"}
    if "QUEUE_URL" in os.environ:
        frame, target = (
            frame.selectExpr("CAST(value AS STRING) AS payload"),
            {"url": os.environ["QUEUE_URL"], "queue": "out"},
        )
    writer = frame.writeStream.format("penstock").options(**target, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
