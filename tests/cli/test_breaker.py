"""penstock breaker: circuits and configuration, on a real SQLite file."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Run

from penstock import Breaker, QueueStore
from penstock.breaker import BreakerConfig


@pytest.fixture
def breaker(store: QueueStore) -> Breaker:
    made = Breaker(store, BreakerConfig.active(min_queue_sample_count=2, error_threshold_percentage=50))
    for number in range(3):
        made.report("crm", f"r{number}", False, queue=f"q{number}")
    made.report("erp", "r", True)
    return made


def test_list_and_show(run: Run, breaker: Breaker) -> None:
    assert "crm" in run("breaker", "list").out
    found = run("breaker", "list", "--json").json()
    assert [(one["circuit"], one["state"], one["ratio"]) for one in found] == [
        ("crm", "open", 100),
        ("erp", "closed", 0),
    ]
    shown = run("breaker", "show", "crm").out
    assert "is open" in shown
    assert "2 of 2 requests failed" in shown
    assert run("breaker", "show", found[0]["hash"], "--json").json()["queues"] == ["q1"]
    assert "no circuit 'x'" in run("breaker", "show", "x", code=2).err


def test_nothing_is_there(run: Run) -> None:
    assert "There is no circuit" in run("breaker", "list").out


def test_open_and_close(run: Run, breaker: Breaker) -> None:
    assert "Nothing was changed" in run("breaker", "close", "crm", code=4).out
    run("breaker", "close", "crm", "--yes", "--why", "tested")
    assert breaker.circuit("crm").transitions[-1].why == "tested"
    run("breaker", "open", "erp", "--yes")
    assert breaker.circuit("erp").state == "open"
    assert "closed 1 circuits" in run("breaker", "close", "--all", "--yes").out
    assert "one circuit or --all" in run("breaker", "close", code=2).err


def test_configuration(run: Run, breaker: Breaker, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    advised = run("breaker", "advise", "--capacity", "10000", "--load", "2000", "--per-minute", "600", "--json").json()
    assert (advised["entriesMaxAgeMS"], advised["maxQueueSampleCount"]) == (300000, 4000)
    file.write_text(json.dumps(advised))
    run("breaker", "config", "--set", str(file), code=4)
    assert run("breaker", "config", "--set", str(file), "--yes").json() == advised
    assert run("breaker", "config").json() == advised
    [change] = run("breaker", "config", "--changes").json()
    assert change["after"] == advised
    file.write_text("{}")
    assert "is missing" in run("breaker", "config", "--set", str(file), "--yes", code=2).err
    assert "is missing" in run("breaker", "config", "--set", str(file), code=2).err
    assert run("breaker", "config", "--reset", "--yes").json() == BreakerConfig().resource()
    assert "cannot be read" in run("breaker", "config", "--set", "/nowhere.json", "--yes", code=2).err


def test_advice_that_makes_no_sense(run: Run) -> None:
    words = ("breaker", "advise", "--capacity", "10", "--load", "20", "--per-minute", "1")
    assert "does not fit" in run(*words, code=2).err
