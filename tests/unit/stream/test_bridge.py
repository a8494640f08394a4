"""Queue to log and log to queue: everything once, also when a bridge dies between two steps."""

import threading
from typing import Any

import pytest

import penstock
from penstock.bridge import LogToQueue, QueueToLog
from penstock.errors import BadInput


@pytest.fixture
def queues() -> Any:
    with penstock.open_queues("memory://") as store:
        yield store


@pytest.fixture
def logs() -> Any:
    with penstock.open_logs("memory://") as store:
        yield store


def stored(logs: Any, name: str = "facts") -> list[Any]:
    log = logs.log(name)
    return [record for place in log.partitions for record in log.records(place.index)]


def test_entries_become_records(queues: Any, logs: Any) -> None:
    logs.create("facts", 2)
    queue = queues.queue("work", int)
    queue.put_many(range(25))
    queue.put(99, labels={"customer": "ann"}, headers={"trace": "t"})
    bridge = QueueToLog("move", queue, logs.log("facts", int), key=lambda entry: str(entry.value), batch=10)
    assert bridge.drain() == 26
    assert sorted(record.value for record in stored(logs)) == [*range(25), 99]
    assert queue.find() == []
    [last] = [record for record in stored(logs) if record.value == 99]
    assert last.key == "99"
    assert last.headers["trace"] == "t"
    assert last.headers["penstock-label-customer"] == "ann"
    assert "penstock-entry" in last.headers


def test_a_bridge_that_dies_before_it_finishes_the_entries(queues: Any, logs: Any, monkeypatch: Any) -> None:
    logs.create("facts")
    queue = queues.queue("work", int)
    queue.put_many(range(5))
    from penstock.queue.unit import UnitOfWork

    commit = UnitOfWork.commit
    monkeypatch.setattr(UnitOfWork, "commit", lambda self, **options: (_ for _ in ()).throw(RuntimeError("dead")))
    with pytest.raises(RuntimeError):
        QueueToLog("move", queue, logs.log("facts", int)).step()
    monkeypatch.setattr(UnitOfWork, "commit", commit)
    queue.put(5)
    assert QueueToLog("move", queue, logs.log("facts", int)).drain() == 6
    assert sorted(record.value for record in stored(logs)) == [0, 1, 2, 3, 4, 5]


def test_several_bridges_at_once(queues: Any, logs: Any) -> None:
    logs.create("facts")
    queue = queues.queue("work", int)
    queue.put_many(range(300))
    made = [QueueToLog("move", queue, logs.log("facts", int), batch=7) for _ in range(3)]
    threads = [threading.Thread(target=one.drain) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(record.value for record in stored(logs)) == list(range(300))


def test_records_become_entries(queues: Any, logs: Any) -> None:
    logs.create("facts", 2)
    log = logs.log("facts", int)
    for number in range(20):
        log.append(number, key=f"k{number}", headers={"trace": f"t{number}"})
    queue = queues.queue("work", int)
    with LogToQueue("jobs", log, queue, options=lambda record: {"labels": {"key": record.key}}, batch=6) as bridge:
        assert bridge.drain() == 20
    assert sorted(entry.value for entry in queue.find()) == list(range(20))
    [entry] = queue.find(labels={"key": "k7"})
    assert (entry.value, entry.headers["trace"]) == (7, "t7")
    assert log.lag("jobs").lag == 0


def test_a_repeated_put_has_one_effect(queues: Any, logs: Any, monkeypatch: Any) -> None:
    logs.create("facts")
    log = logs.log("facts", int)
    log.append_many(range(5))
    queue = queues.queue("work", int)
    bridge = LogToQueue("jobs", log, queue)
    monkeypatch.setattr(bridge._tail, "commit", lambda: (_ for _ in ()).throw(RuntimeError("dead")))
    with pytest.raises(RuntimeError):
        bridge.step()
    bridge.close()
    with queues.unit() as unit:
        assert len(unit.take(queue, 2)) == 2
        unit.commit()
    with LogToQueue("jobs", log, queue) as again:
        assert again.drain() == 5
    assert len(queue.find()) == 3, "also those that have ended meanwhile are not put again"


def test_run_until_stopped(queues: Any, logs: Any) -> None:
    logs.create("facts")
    queue = queues.queue("work", int)
    bridge = QueueToLog("move", queue, logs.log("facts", int))
    stop = threading.Event()
    thread = threading.Thread(target=bridge.run, args=(stop,), kwargs={"poll": "5ms"})
    thread.start()
    queue.put(1)
    with logs.tailer("facts", "g") as tail:
        assert tail.read(timeout="10s")[0].value == 1
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_bad_input(queues: Any, logs: Any) -> None:
    logs.create("facts")
    queue, log = queues.queue("work", int), logs.log("facts", int)
    for make in (
        lambda: QueueToLog("no good", queue, log),
        lambda: QueueToLog("x", queue, log, batch=0),
        lambda: LogToQueue("no good", log, queue),
        lambda: LogToQueue("x", log, queue, batch=0),
    ):
        with pytest.raises(BadInput):
            make()
