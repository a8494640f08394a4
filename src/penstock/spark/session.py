"""A Spark session with the settings that Penstock needs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import CannotOpen, Conflict, MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = 17
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

SETTINGS: dict[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # For stateful queries of one's own: the only state store that keeps more than memory holds.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # So that a condition on time, offset, partition, queue or seq reads less.
    "spark.sql.python.filterPushdown.enabled": "true",
    # A process is started for every plan, task and commit; half of its start is importing us.
    "spark.python.daemon.module": "penstock.spark.daemon",
}


def session(
    app: str = "penstock", *, master: str | None = None, settings: Mapping[str, str | int | bool] | None = None
) -> SparkSession:
    """The session of this process, made with Penstock's settings if there is none yet.

    An existing session is returned, with those of our settings that can still be changed.

    Args:
        app: the name that Spark shows
        master: by default what spark-submit says, else ``local[*]``
        settings: Spark's own; they win over ours
    """
    check_installed()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    given = {name: _text(value) for name, value in (settings or {}).items()}
    running = SparkSession.getActiveSession()
    if running is not None:
        current = running.sparkContext.master
        if master is not None and current != master:
            raise Conflict(f"a Spark session on {current} is running.", hint="Stop it first: spark.stop().")
        for name, value in {**SETTINGS, **given}.items():
            if running.conf.isModifiable(name):
                running.conf.set(name, value)
        return running
    if SparkContext._gateway is None:  # noqa: SLF001 - no JVM yet, so it is ours to start
        check_java()
    # Spark starts `python3` from the PATH for its workers, which is another Python than that of a virtual environment.
    environment = os.environ  # noqa: TID251 - where Spark reads it
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    where = master or given.get("spark.master") or (None if _is_submitted() else "local[*]")
    chosen = {**SETTINGS, **given}
    if where is not None:
        builder = builder.master(where)
        if where.startswith("local") and not where.startswith("local-cluster"):
            # No other host has to reach us.
            chosen.setdefault("spark.driver.host", "127.0.0.1")
            chosen.setdefault("spark.driver.bindAddress", "127.0.0.1")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def check_installed() -> None:
    """Raise if Spark is missing; the error says what to install."""
    if importlib.util.find_spec("pyspark") is None:
        raise MissingExtra("Spark is not installed.", hint='Run: pip install "penstock[spark]"')


def check_java() -> int:
    """The version of Spark's Java. Raises if it is missing or too old; the error says what to install."""
    home = os.environ.get("JAVA_HOME")  # noqa: TID251 - where Spark looks for it
    java = shutil.which("java") if not home else str(Path(home) / "bin" / "java")
    wanted = f"Install Java {JAVA} or newer (Debian and Ubuntu: apt install openjdk-{JAVA}-jre-headless)"
    if java is None:
        raise CannotOpen("Spark needs Java, and there is none.", hint=f"{wanted}.")
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        said = run.stderr + run.stdout
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise CannotOpen(f"{java} does not start: {cause}.", hint=f"{wanted}, or set JAVA_HOME.") from cause
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    version = int(match[1]) if match else 0
    if version < JAVA:
        raise CannotOpen(
            f"Spark needs Java {JAVA}, and {java} is {version or 'unknown'}.", hint=f"{wanted}, and set JAVA_HOME."
        )
    return version


def _is_submitted() -> bool:
    """Whether spark-submit started us: it has the JVM running, and knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ  # noqa: TID251 - Spark's own


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
