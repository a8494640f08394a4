"""What was never shown is never read, and nobody waits for one who waits for him."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from penstock import open_logs

DYING = """
import os, sys
import penstock
from penstock import failpoints
failpoints.arm(lambda point: os._exit(9) if point == "log.transaction.before" else None)
with penstock.open_logs(sys.argv[1]) as store:
    with store.transaction() as unit:
        unit.append("a", "GHOST")
        unit.commit()
"""


def test_what_a_dead_transaction_left_is_not_read(tmp_path: Path) -> None:
    """A reader that has seen the bytes must not take them for the records that were written there later."""
    url = f"file://{tmp_path}/logs?durability=fast"
    with open_logs(url) as store:
        store.create("a", partitions=1)
        with store.appender("a") as appender, store.tailer("a", group="g") as tail:
            appender.append("one")
            done = subprocess.run([sys.executable, "-c", DYING, url], check=False)
            assert done.returncode == 9
            assert [record.value for record in tail.read()] == ["one"]
            appender.append("two")
            appender.append("three")
            assert [record.value for record in tail.read(timeout="1s")] == ["two", "three"]


def test_repeats_of_a_producer_wait_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync

    def slow(descriptor: int) -> None:
        time.sleep(0.005)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    with open_logs(f"file://{tmp_path}/logs") as store:
        store.create("a", partitions=1)
        with store.appender("a", producer="p") as appender:

            def numbered() -> None:
                for number in range(40):
                    appender.append("x", sequence=number)

            threads = [threading.Thread(target=numbered, daemon=True) for _ in range(2)]
            threads.append(threading.Thread(target=lambda: [appender.append("y") for _ in range(20)], daemon=True))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive(), "they wait for each other"
            assert store.bounds("a")[0].end == 60
