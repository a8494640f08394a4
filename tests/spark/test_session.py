"""The session: its settings, and Java that is missing or too old."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import spark as penstock_spark
from penstock.errors import CannotOpen, Conflict


def test_the_settings_that_the_traps_ask_for(spark: Any) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "RocksDB" in spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == sys.executable
    assert penstock_spark.session() is spark
    with pytest.raises(Conflict, match="local\\[2,3\\] is running"):
        penstock_spark.session(master="local[1]")


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotOpen, match=r"there is none.*openjdk-17"):
        penstock_spark.check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(CannotOpen, match="does not start"):
        penstock_spark.check_java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for version, ok in (("1.8.0_292", False), ("11.0.2", False), ("17.0.15", True), ("21", True)):
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        if ok:
            assert penstock_spark.check_java() == int(version.partition(".")[0])
        else:
            with pytest.raises(CannotOpen, match=r"needs Java 17, and .* is (8|11)"):
                penstock_spark.check_java()


def test_the_daemon_starts_no_threads() -> None:
    """Its workers are forks of it."""
    look = "import os, penstock.spark.daemon; print(len(os.listdir('/proc/self/task')))"
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert told.stdout == "1\n"
