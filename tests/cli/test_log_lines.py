"""Log lines: text with date and zone, or JSON in which every fact has a field of its own."""

import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.log_lines import FIELDS, WORKER_LINE, JsonLines, TextLines

pytestmark = pytest.mark.timeout(90)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

# As Django does it with its TIME_ZONE when it is set up.
APP = """
import logging, os, threading, time, warnings
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
import penstock

store = penstock.open_queues("sqlite:///shop.db")
work, later = store.queue("work", dict), store.queue("later", dict)
log = logging.getLogger("shop")

@work.handler(retry=penstock.Retry(attempts=2, delays=["0s"]))
def handle(job):
    log.info("tries %s\\nin two lines \\udcff", job)
    warnings.warn("old", DeprecationWarning)
    log.info("%d is a slip", "x")
    if job.get("thread"):
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    if job.get("fail"):
        raise ValueError("no\\nway")

@later.handler
async def handle_later(job):
    log.info("async")
"""


def run(folder: Path, *options: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", *options], cwd=folder, capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    return ended.stderr.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shopapp.py").write_text(APP)
    return tmp_path


def put(folder: Path, queue: str, value: dict, **options: Any) -> str:
    with penstock.open_queues(f"sqlite:///{folder}/shop.db") as store:
        return store.queue(queue, dict).put(value, **options).id


class TestJson:
    def test_every_line_is_an_object_with_utc_time_and_known_fields(self, folder: Path) -> None:
        put(folder, "work", {"fail": True, "thread": True})
        text = run(folder, "worker", "shopapp:store", "--drain", "--log-format", "json", "--verbose")
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines
        now = datetime.now(UTC)
        for line in lines:
            assert set(line) <= {"time", "level", "logger", "message", *FIELDS}, line
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
            assert abs(datetime.fromisoformat(line["time"]) - now) < timedelta(minutes=5), "Tokyo is 9 hours away"
            assert isinstance(line["pid"], int)

    def test_an_attempt_that_failed_is_told_by_field(self, folder: Path) -> None:
        traceparent = f"00-{TRACE}-{SPAN}-01"
        id_ = put(folder, "work", {"fail": True}, headers={"traceparent": traceparent})
        text = run(folder, "worker", "shopapp:store", "--drain", "--log-format", "json")
        lines = [json.loads(line) for line in text.splitlines()]
        retried, died = [line for line in lines if "outcome" in line]
        assert (retried["outcome"], died["outcome"]) == ("retried", "dead")
        assert (retried["attempt"], died["attempt"]) == (1, 2)
        for line in (retried, died):
            assert (line["queue"], line["entry"], line["generation"]) == ("work", id_, 1)
            assert line["error"] == "ValueError: no\nway"
            assert "in handle" in line["traceback"]
            assert line["seconds"] >= 0
            assert line["wait_seconds"] >= 0
            assert (line["trace_id"], line["span_id"]) == (TRACE, SPAN)
            assert line["worker"].startswith(line["node"])
            assert line["space"] == "penstock"

    @pytest.mark.parametrize("queue", ["work", "later"])
    def test_what_a_handler_logs_names_its_entry(self, folder: Path, queue: str) -> None:
        id_ = put(folder, queue, {})
        text = run(folder, "worker", "shopapp:store", "--drain", "--log-format", "json", "--verbose")
        lines = [json.loads(line) for line in text.splitlines()]
        mine = [line for line in lines if line["logger"] == "shop"]
        assert mine
        for line in mine:
            assert (line["queue"], line["entry"], line["attempt"]) == (queue, id_, 1)
        [done] = [line for line in lines if line.get("outcome") == "done"]
        assert (done["level"], done["entry"]) == ("DEBUG", id_)
        assert "entry" not in lines[-1], "a line that speaks of no attempt names none"

    def test_why_a_command_ends_is_a_line_too(self, folder: Path) -> None:
        [line] = run(folder, "worker", "nothing:there", "--log-format", "json").splitlines()
        assert "nothing" in json.loads(line)["message"]

    def test_the_service_writes_it_too(self, folder: Path) -> None:
        text = run(
            folder, "serve", "--url", "sqlite:///new.db", "--log-format", "json", "--host", "192.0.2.1", "--keys", "no"
        )
        lines = [json.loads(line) for line in text.splitlines()]
        assert lines
        assert all(line["time"].endswith("Z") for line in lines)


class TestText:
    def test_a_line_has_date_and_zone(self, folder: Path) -> None:
        put(folder, "work", {})
        text = run(folder, "worker", "shopapp:store", "--drain")
        first = datetime.fromisoformat(text.split()[0])
        assert text.split()[0].endswith("Z")
        assert abs(first - datetime.now(UTC)) < timedelta(minutes=5)

    def test_braces_in_a_message_are_only_text(self) -> None:
        record = logging.LogRecord("a", logging.INFO, "", 0, "{record} {0}", (), None)
        assert TextLines(WORKER_LINE).format(record).endswith("{record} {0}")


def test_a_slip_of_whoever_logs_does_not_cost_the_line() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "%d", ("x",), None)
    assert json.loads(JsonLines().format(record))["message"] == "%d ('x',)"


def test_what_cannot_be_json_is_text() -> None:
    record = logging.LogRecord("a", logging.INFO, "", 0, "m", (), None)
    record.error = ValueError("x")
    assert json.loads(JsonLines().format(record))["error"] == "x"
