"""Every call that the service offers is a method of both clients, and does there what it says."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
import pytest
from tests.serving import Served

from penstock import open_logs, open_queues
from penstock.client import AsyncClient, Client, NewEntry, admin_calls, calls
from penstock.client.call import Call
from penstock.errors import BadInput, Conflict, EntryNotFound, LogNotFound
from penstock.service import ServiceSettings, create_app


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    service = Served(
        "--url", f"sqlite:///{folder}/q.db", "--logs", f"file://{folder}/logs", "--no-deliver", "--topology",
        "tests.dashboard_scenes:topology",
    )  # fmt: skip
    yield service
    service.close()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.url) as opened:
        yield opened


# --- completeness ------------------------------------------------------------------------------------

SAMPLES: dict[str, Any] = {
    "queue": "q", "name": "n", "id": "i", "holder": "h", "log": "l", "group": "g", "circuit": "c", "entries": [1],
    "records": [1], "config": {}, "settings": {}, "before": datetime(2030, 1, 1, tzinfo=UTC), "state": "close",
    "method": "GET", "path": "/x", "leases": (), "offsets": {0: 0},
}  # fmt: skip
# Their first argument is what was claimed; where they go is said here.
FROM_LEASES = {"end": ("POST", "/v1/queues/q/outcomes"), "extend": ("POST", "/v1/queues/q/extend")}


def calls_made() -> set[tuple[str, str]]:
    """Method and path of every call there is, with samples for names."""
    made = set(FROM_LEASES.values())
    for module in (calls, admin_calls):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name in FROM_LEASES:
                continue
            parameters = inspect.signature(function).parameters.values()
            needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
            if not str(inspect.signature(function).return_annotation).startswith("Call["):
                continue
            positional = [SAMPLES[one.name] for one in needed if one.kind is not one.KEYWORD_ONLY]
            named = {one.name: SAMPLES[one.name] for one in needed if one.kind is one.KEYWORD_ONLY}
            call = function(*positional, **named)
            if isinstance(call, Call):
                made.add((call.method, call.path))
    return made


def test_every_route_of_the_service_has_a_call(tmp_path: Path) -> None:
    with open_queues("memory://routes") as queues, open_logs(f"file://{tmp_path}/logs") as logs:
        paths = create_app(ServiceSettings(queues=queues.name), queues, logs, ()).openapi()["paths"]
    offered = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/v1/") or path in ("/live", "/ready")
    }
    # A stream, which is a method of the clients; and one entry is cancelled by the same call as many.
    offered -= {("GET", "/v1/signals"), ("DELETE", "/v1/queues/{queue}/entries/{id}")}
    calls_there_are = calls_made()
    missing = [
        (method, path)
        for method, path in offered
        if not any(method == used and _pattern(path).fullmatch(where) for used, where in calls_there_are)
    ]
    assert sorted(missing) == []


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path.replace(".", "[.]")))


def test_both_clients_have_all_of_them() -> None:
    names = {
        name for module in (calls, admin_calls) for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and str(inspect.signature(function).return_annotation).startswith("Call[")
    }  # fmt: skip
    for kind in (Client, AsyncClient):
        assert names <= set(dir(kind)), names - set(dir(kind))
        assert callable(kind.signals)


# --- what they do ------------------------------------------------------------------------------------


def test_ids_of_your_own(client: Client) -> None:
    first = client.put("own", 1, id="order/17")
    again = client.put("own", 1, id="order/17")
    assert (first.id, first.created) == (again.id, True) == ("order/17", True)
    assert client.entry("own", "order/17").value == 1
    puts = client.put_many("own", [NewEntry(value=1, id="a"), NewEntry(value=2, id="b")])
    assert [put.id for put in puts] == ["a", "b"]
    with pytest.raises(BadInput, match="both an id and"):
        client.put("own", 1, id="x", idempotency_key="y")
    with pytest.raises(BadInput, match="others have none"):
        client.put_many("own", [NewEntry(value=1, id="c"), 2])
    with pytest.raises(BadInput, match="not allowed"):
        client.put("own", 1, id="a/../b")


def test_entries_are_changed_and_purged_and_queues_deleted(client: Client) -> None:
    put = client.put("changing", {"n": 1}, labels={"a": "b"})
    changed = client.change("changing", put.id, {"n": 2}, labels={"c": "d"}, priority=5)
    assert changed is not None
    assert (changed.value, changed.labels, changed.priority) == ({"n": 2}, {"c": "d"}, 5)
    moved = client.change("changing", put.id, delay="1h")
    assert moved is not None
    assert moved.due > datetime.now(UTC) + timedelta(minutes=50)
    with pytest.raises(Conflict, match="not empty"):
        client.delete_queue("changing")
    client.cancel("changing", put.id)
    client.delete_queue("changing")
    assert "changing" not in [one.queue for one in client.queues().items]
    with pytest.raises(EntryNotFound, match="was deleted"):
        client.delete_queue("changing")
    assert [row.id for row in client.history("changing").items] == [put.id]
    client.put("dying", 1)
    client.end(client.claim("dying"), "dead")
    assert client.purge_dead("dying", before=datetime.now(UTC) + timedelta(hours=1), labels={"no": "such"}) == 0
    assert client.purge_dead("dying", before=datetime.now(UTC) + timedelta(hours=1)) == 1


def test_schedules_workers_and_figures(client: Client) -> None:
    made = client.set_schedule("nightly", "reports", {"kind": "night"}, cron="0 3 * * *", labels={"a": "b"})
    assert (made.name, made.paused, made.value) == ("nightly", False, {"kind": "night"})
    assert [one.name for one in client.schedules().items] == ["nightly"]
    paused = client.pause_schedule("nightly")
    assert (paused.paused, paused.next) == (True, None)
    assert client.resume_schedule("nightly").next is not None
    put = client.run_schedule("nightly")
    assert client.entry("reports", put.id).value == {"kind": "night"}
    client.remove_schedule("nightly")
    with pytest.raises(EntryNotFound):
        client.remove_schedule("nightly")
    assert isinstance(client.workers().items, list)
    assert {change.target for change in client.changes(target="nightly", limit=5).items} == {"nightly"}
    assert client.figures(minutes=5, queue="reports").bounds


def test_logs_and_groups(client: Client) -> None:
    client.create_log("clicks", partitions=2)
    client.append("clicks", [{"n": number} for number in range(10)], partition=0)
    assert [part.end for part in client.log("clicks").partitions] == [10, 0]
    reset = client.reset_group("clicks", "billing", offsets={0: 4})
    assert (reset.group, reset.partitions[0].committed) == ("billing", 4)
    assert client.groups("clicks").items == ["billing"]
    assert client.reset_group("clicks", "billing", time=datetime.now(UTC) - timedelta(days=1)).lag == 10
    client.forget_group("clicks", "billing")
    with pytest.raises(LogNotFound):
        client.forget_group("clicks", "billing")
    client.delete_log("clicks")
    assert "clicks" not in client.logs()


def test_circuits_breaker_topologies_and_health(client: Client) -> None:
    config = client.breaker_config()
    assert client.set_breaker_config({**config, "circuitCheckEnabled": True})["circuitCheckEnabled"] is True
    assert client.breaker_changes().items[-1].after is not None
    assert client.set_breaker_settings(client.breaker_settings()) == client.breaker_settings()
    client.reset_breaker_config()
    assert client.topologies().items == ["web"]
    assert [one.name for one in client.topology("web").computations] == ["count"]
    assert "count" in client.picture("web", form="text")
    client.live()
    client.ready()
    assert "penstock" in client.metrics()


def test_signals_are_read_as_they_come(served: Served, client: Client) -> None:
    seen: list[Any] = []
    listening = threading.Event()

    def listen() -> None:
        with Client(served.url) as listener:
            stream = listener.signals("put", limit=1)
            listening.set()
            seen.extend(stream)

    thread = threading.Thread(target=listen)
    thread.start()
    assert listening.wait(10)
    while thread.is_alive():
        client.put("heard", 1)
        thread.join(0.2)
    assert (seen[0].kind, seen[0].queue) == ("put", "heard")


def test_the_asynchronous_client_does_the_same(served: Served) -> None:
    async def use() -> None:
        async with AsyncClient(served.url) as client:
            await client.put("own", 1, id="async-1")
            assert (await client.entry("own", "async-1")).id == "async-1"
            assert (await client.schedules()).items == []

    anyio.run(use)


@pytest.mark.parametrize("id_", ["%00", "%2F", "a%2Fb", "%2e%2e", "100%", "%25", "%2525"])
def test_ids_that_look_escaped_can_be_reached(served: Served, client: Client, id_: str) -> None:
    client.put("escaped", 1, id=id_)
    address = f"{served.url}/v1/queues/escaped/entries/{quote(id_, safe='')}"
    assert httpx2.get(address).json()["id"] == id_
    assert httpx2.get(f"{served.url}/ui/queues/escaped/entries/{quote(id_, safe='')}").status_code == 200
    assert httpx2.delete(address).json() == {"count": 1}


def test_how_much_work_there_is(client: Client) -> None:
    client.put("scaled.a", 1)
    client.put("scaled.b", 1)
    assert client.scale(queues=["scaled.a"]).backlog == 1
    assert client.scale(queues=["scaled.a", "scaled.b"]).ready == 2
    assert client.scale(families=["scaled."]).ready == 2
