"""What is changed over HTTP is recorded with who, what, before and after; every id that is taken can be reached."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.browser.conftest import Site
from tests.dashboard_scenes import fill
from tests.service.test_dashboard import do

from penstock import LogStore, QueueStore, open_queues
from penstock.errors import BadInput
from penstock.queue.changes import Change, recent_changes
from penstock.service import ServiceSettings, create_app
from penstock.testing import FakeClock

Act = Callable[[TestClient], Any]


def changes_of(queues: QueueStore) -> list[Change]:
    return recent_changes(queues)[::-1]


# --- changes -----------------------------------------------------------------------------------------

CHANGES: list[tuple[str, str, str, dict[str, Any] | None]] = [
    ("definition of queue", "PATCH", "/v1/queues/mails", {"rate": "5/s"}),
    ("lock", "PUT", "/v1/queues/mails/locks/ops", {"reason": "lunch"}),
    ("unlock", "DELETE", "/v1/queues/stopped/locks/operator", None),
    ("change of entry", "PATCH", "/v1/queues/mails/entries/one", {"priority": 5}),
    ("change of entry", "PATCH", "/v1/queues/mails/entries/one", {"delay": "1h"}),
    ("cancelling", "DELETE", "/v1/queues/mails/entries/one", None),
    ("cancelling", "POST", "/v1/queues/mails/cancel", {"ids": ["one"]}),
    ("replay", "POST", "/v1/queues/gone/replay", {"ids": ["ended"]}),
    ("purge of dead letters", "DELETE", "/v1/queues/invoices.render/dead?before=2100-01-01T00:00:00Z", None),
    ("deletion of queue", "DELETE", "/v1/queues/gone", None),
    ("setting of schedule", "PUT", "/v1/schedules/often", {"queue": "mails", "value": 1, "every": "1h"}),
    ("pausing of schedule", "POST", "/v1/schedules/digest/pause", None),
    ("resuming of schedule", "POST", "/v1/schedules/digest/resume", None),
    ("running of schedule", "POST", "/v1/schedules/digest/run", None),
    ("removal of schedule", "DELETE", "/v1/schedules/digest", None),
    ("creation of log", "PUT", "/v1/logs/fresh", {"partitions": 2}),
    ("deletion of log", "DELETE", "/v1/logs/clicks", None),
    ("reset of group", "PUT", "/v1/logs/clicks/groups/billing", {"offsets": {"0": 0}}),
    ("forgetting of group", "DELETE", "/v1/logs/clicks/groups/billing", None),
]


def test_every_change_is_recorded_and_no_look_is(
    serving: Callable[..., TestClient], queues: QueueStore, logs: LogStore
) -> None:
    fill(queues, logs)
    client = serving()
    gone = queues.queue("gone")
    seen = 0
    for did, method, path, body in CHANGES:
        if path.startswith("/v1/queues/mails") and not queues.queue("mails").history("one"):
            if not [one for one in queues.queue("mails").find() if one.id == "one"]:
                queues.queue("mails").put(1, id="one")
        elif method == "POST" and path.endswith("/cancel"):
            queues.queue("mails").replay("one")
        if did == "replay":
            gone.put(1, id="ended")
            gone.cancel("ended")
        elif did == "deletion of queue":
            gone.cancel("ended")
        elif did == "reset of group":
            logs.create("clicks", partitions=2)
            with logs.appender("clicks") as out:
                out.append(1, key="a")
            with logs.tailer("clicks", group="billing") as tail:
                tail.read(timeout="5s")
                tail.commit()
        answer = client.request(method, path, json=body)
        assert answer.status_code < 300, (did, path, answer.text)
        changes = changes_of(queues)
        assert len(changes) == seen + 1, did
        seen += 1
        assert (changes[-1].did, changes[-1].by) == (did, "anybody")
        assert changes[-1].after, did
    for path in ("/v1/queues", "/v1/schedules", "/v1/logs", "/v1/queues/mails/entries", "/v1/locks", "/v1/circuits"):
        assert client.get(path).status_code == 200
    assert client.post("/v1/queues/mails/entries", json={"value": 1}).status_code == 201
    assert client.post("/v1/queues/mails/cancel", json={"ids": ["not-there"]}).status_code == 404
    assert len(changes_of(queues)) == seen, "looking, putting and what was refused are not changes by hand"


def test_before_and_after_are_said(client: TestClient, queues: QueueStore) -> None:
    queues.queue("mails").put(1, id="one", priority=1)
    client.put("/v1/queues/mails/locks/ops", json={"reason": "lunch"})
    client.patch("/v1/queues/mails/entries/one", json={"priority": 7, "value": "secret"})
    client.put("/v1/circuits/crm/state", json={"state": "close"})
    locked, changed = changes_of(queues)[:2]
    assert (locked.before, locked.after, locked.why) == ("not locked", "locked by ops: lunch", "lunch")
    assert '"priority":1' in changed.before
    assert '"priority":7' in changed.after
    assert "secret" not in changed.after


def test_the_breaker_is_recorded(client: TestClient, queues: QueueStore) -> None:
    resource = client.get("/v1/breaker/config").json()
    changed = {**resource, "circuitCheckEnabled": True}
    assert client.put("/v1/breaker/config", json=changed).status_code == 200
    assert client.delete("/v1/breaker/config").status_code == 200
    assert [change.did for change in changes_of(queues)] == ["configuration of breaker"] * 2
    assert '"circuitCheckEnabled":true' in changes_of(queues)[0].after


def test_a_paused_schedule_is_shown_as_paused(client: TestClient, queues: QueueStore) -> None:
    queues.queue("mails").schedule("nightly", 1, cron="0 3 * * *")
    assert client.post("/v1/schedules/nightly/pause").json()["paused"] is True
    [shown] = client.get("/v1/schedules").json()["items"]
    assert (shown["paused"], shown["next"]) == (True, None)
    assert "9999" not in client.get("/v1/schedules").text
    body = {"queue": "mails", "value": 2, "cron": "0 4 * * *", "version": 2}
    assert client.put("/v1/schedules/nightly", json=body).json()["paused"] is True
    made = client.post("/v1/schedules/nightly/run").json()
    assert queues.queue("mails").get(made["id"]).value == 2
    assert client.post("/v1/schedules/nightly/resume").json()["next"] is not None
    assert client.post("/v1/schedules/nothing/pause").status_code == 404


# --- ids ---------------------------------------------------------------------------------------------

LEGAL = "".join(chr(code) for code in range(32, 127))
ODD = [".", "..", "/", "//", "a/b", "/a", "a/", "bulk", "%2F", "%2e%2e", "a?b#c", "\\", " ", "+", ";"]
parts = st.lists(st.sampled_from([*ODD, *string.ascii_letters]), min_size=1, max_size=6).map("/".join)
# The test client decodes an address twice; test_client_calls asks for those that this changes over a real connection.
ids = st.one_of(st.text(LEGAL, min_size=1, max_size=64), parts.filter(lambda text: len(text) <= 64)).filter(
    lambda text: unquote(text) == text
)

Memory = tuple[QueueStore, httpx2.Client, FakeClock]


@pytest.fixture(scope="module")
def in_memory() -> Iterator[Memory]:
    clock = FakeClock()
    with open_queues("memory://ids", clock=clock) as store:
        # A real server: Starlette's client for tests decodes an address twice.
        site = Site(create_app(ServiceSettings(queues=store.name), store, None, ()))
        with httpx2.Client(base_url=site.url, timeout=60) as client:
            yield store, client, clock
        site.close()


def is_taken(store: QueueStore, id_: str) -> bool:
    try:
        return store.queue("q").put(1, id=id_).created
    except BadInput:
        return False


@settings(max_examples=100, deadline=None)
@given(id_=ids)
def test_every_id_that_is_taken_can_be_reached(in_memory: Memory, id_: str) -> None:
    store, client, clock = in_memory
    if not is_taken(store, id_):
        assert {".", ".."} & set(id_.split("/")), "only what a browser would take out of an address is refused"
        answer = client.post("/v1/queues/q/entries", json={"value": 1, "id": id_})
        assert (answer.status_code, "is not allowed" in answer.json()["detail"]) == (400, True)
        return
    try:
        path = f"/v1/queues/q/entries/{quote(id_, safe='')}"
        assert client.get(path).json()["id"] == id_
        assert client.patch(path, json={"priority": 3}).json()["priority"] == 3
        assert client.get(f"/ui/queues/q/entries/{quote(id_, safe='')}").status_code == 200
        assert client.delete(path).json() == {"count": 1}
        assert client.get(path).status_code == 404
    finally:
        clock.advance("1d")  # so that the id can be given again
        store.queue("q").cancel(*(entry.id for entry in store.queue("q").find()))
        clock.advance("1d")
        store.driver.prune(older_than_us=0)


# --- the dashboard's forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["replay", "purge", "cancel"])
def test_nothing_chosen_is_not_everything(
    serving: Callable[..., TestClient], queues: QueueStore, logs: LogStore, action: str
) -> None:
    fill(queues, logs)
    client = serving()
    before = queues.counts()
    asked = client.get(f"/ui/do/{action}", params={"queue": "invoices.render", "id": ""})
    assert asked.status_code == 400
    assert "Nothing is chosen" in asked.text
    done = do(client, action, queue="invoices.render", id="", sure="invoices.render")
    assert done.status_code in (200, 400)
    assert [(one.queue, one.live, one.dead) for one in queues.counts()] == [
        (one.queue, one.live, one.dead) for one in before
    ]
