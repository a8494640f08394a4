"""A standalone Spark cluster on this machine: a master and two workers, from the distribution inside pyspark."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKERS = 2
PATIENCE = 120.0


def spark_home() -> Path:
    """Where the distribution is."""
    import pyspark

    return Path(pyspark.__file__).parent


def environment(**more: str) -> dict[str, str]:
    """For every process of Spark: this Python for its workers, loopback only."""
    own = {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own, **more}


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """The URL of a master whose workers have registered; ended by their pids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = [["org.apache.spark.deploy.master.Master", "--port", str(port), *here]]
    for number in range(WORKERS):
        place = ["--work-dir", str(folder / f"worker{number}")]
        commands.append(
            ["org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", *here, *place, master]
        )
    running: list[subprocess.Popen[bytes]] = []
    log = folder / "cluster.log"
    try:
        with log.open("ab") as out:
            for command in commands:
                running.append(
                    subprocess.Popen(
                        [str(spark_home() / "bin" / "spark-class"), *command], env=environment(), stdout=out, stderr=out
                    )
                )
        until = time.monotonic() + PATIENCE
        while log.read_text(errors="replace").count("Registering worker") < WORKERS:
            assert time.monotonic() < until, log.read_text(errors="replace")
            assert all(one.poll() is None for one in running), log.read_text(errors="replace")
            time.sleep(0.2)
        yield master
    finally:
        for process in reversed(running):
            process.kill()
            process.wait(10)
