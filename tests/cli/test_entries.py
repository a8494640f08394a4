"""Commands about single entries and chosen ones: short ids, search, bulk replay and cancel, deleting a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.cli.test_commands import some_dead
from tests.contract.queue.shorthand import end, take

from penstock import QueueStore, Retry, Worker, open_queues
from penstock.gateway.item import QueuedRequest, RequestCodec
from penstock.queue.changes import recent_changes


def some_failed(store: QueueStore) -> dict[str, str]:
    """Dead letters with different labels and errors, by name."""
    mails = store.queue("mails", dict)
    ids = {
        name: mails.put({"n": name}, labels={"customer": name[:3]}).id
        for name in ("ann-refused", "ann-lost", "ben-lost")
    }

    def send(mail: dict[str, str]) -> None:
        raise ConnectionError("refused") if mail["n"].endswith("refused") else TimeoutError("Lost on the way")

    mails.add_handler(send, retry=Retry(attempts=1))
    Worker(store).drain()
    mails.remove_handler()
    return ids


# --- queued requests ---------------------------------------------------------------------------------

SECRETS = ("k=1q", "Bearer abc", "key-ghi", "key-jkl", "token-mno")


def test_credentials_of_queued_requests_are_shown_by_no_command(
    run: Run, store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # wide enough for all that a table has
    names = ("cookie", "Authorization", "X-Api-Key", "api-key", "X-AUTH-TOKEN")
    headers = (*zip(names, SECRETS, strict=True), ("content-type", "application/json"))
    requests = store.queue("requests.crm", codec=RequestCodec())
    request = QueuedRequest("PUT", "/crm", headers, b'{"name": "ann"}')
    waiting, dead, leased, done = (requests.put(request, labels={"far": "crm"}).id for _ in range(4))
    taken = {entry.id: entry for entry in take(store, "requests.crm", limit=4)}
    end(store, taken[dead], "dead", error="refused")
    end(store, taken[done])
    end(store, taken[waiting], "retry", error="later")
    commands = [
        ("queue", "show", "requests.crm"),
        ("queue", "replay", "requests.crm", "--all"),
        ("queue", "cancel", "requests.crm", "--label", "far=crm"),
        ("queue", "find", "--label", "far=crm"),
        ("queue", "find", leased[-8:]),
        *(("queue", "entry", id_) for id_ in (waiting, dead, leased, done)),
    ]
    for command in commands:
        asks = command[1] in ("replay", "cancel")
        for more in ((),) if asks else ((), ("--json",), ("--traceback",) if command[1] == "show" else ()):
            shown = run(*command, *more, code=4 if asks else 0)
            text = shown.out + shown.err
            assert not [secret for secret in SECRETS if secret in text], (command, more)
            assert "crm" in text, (command, more)
    assert '"/crm"' in run("queue", "entry", leased, "--json").out
    assert "***" in run("queue", "entry", leased).out
    assert store.queue("requests.crm", codec=RequestCodec()).find()[0].value.header("authorization") == "Bearer abc"


# --- one entry ---------------------------------------------------------------------------------------


def test_an_entry_of_any_queue_is_shown_with_its_life(run: Run, store: QueueStore) -> None:
    orders = store.queue("orders", dict)
    id_ = orders.put({"to": "[ann]"}, labels={"customer": "ann"}, unique="order-17", headers={"trace": "t-1"}).id

    def fail_in_here(order: dict[str, str]) -> None:
        raise ConnectionError("nobody there")

    orders.add_handler(fail_in_here, retry=Retry(attempts=2, backoff="0s"))
    assert "ready, for" in run("queue", "entry", id_).out
    Worker(store).drain()
    out = run("queue", "entry", id_[-8:]).out
    for text in (id_, "orders", "dead letter", "customer=ann", "order-17", "trace", '"to": "[ann]"', "nobody there"):
        assert text in out
    assert out.count("retried") == 1
    assert "fail_in_here" not in out
    assert run("queue", "entry", id_, "--traceback").out.count("in fail_in_here") == 2
    shown = run("queue", "entry", id_, "--json").json()
    assert (shown["queue"], shown["state"], shown["payload"]) == ("orders", "dead", {"to": "[ann]"})
    assert [(row["attempt"], row["state"]) for row in shown["history"]] == [(1, "retried"), (2, "dead")]


def test_attempts_show_the_payload_they_saw(run: Run, store: QueueStore) -> None:
    queue = store.queue("mails", str)
    id_ = queue.put("first").id
    with store.unit() as unit:
        unit.take(queue)
        unit.rollback()
    queue.update(id_, "second")
    assert 'attempt 1 saw "first"' in run("queue", "entry", id_).out
    [row] = run("queue", "entry", id_, "--json").json()["history"]
    assert (row["payload"], row["gap"]) == ("first", None)
    queue.add_handler(fails, retry=Retry(attempts=1))
    Worker(store).drain()
    queue.purge_dead()
    assert "payload  removed" in run("queue", "entry", id_).out
    rows = run("queue", "entry", id_, "--json").json()["history"]
    assert [(row["payload"], row["gap"]) for row in rows] == [(None, "removed")] * 2


def fails(value: str) -> None:
    raise ConnectionError(value)


def test_an_entry_that_is_done_is_shown_too(run: Run, store: QueueStore) -> None:
    queue = store.queue("mails", str)
    id_ = queue.put("x").id
    queue.add_handler(lambda mail: None)
    Worker(store).drain()
    assert "done" in run("queue", "entry", id_).out
    assert run("queue", "entry", id_, "--json").json()["state"] == "done"


def test_a_part_of_an_id_is_enough_where_it_is_unique(run: Run, store: QueueStore) -> None:
    for id_ in ("job-1a", "job-1b", "job-2a"):
        store.queue("jobs").put(1, id=id_)
    store.queue("other").put(1, id="job-1c")
    told = run("queue", "entry", "job-1", code=2).err
    for candidate in ("job-1a (waiting in jobs)", "job-1b (waiting in jobs)", "job-1c (waiting in other)"):
        assert candidate in told
    assert "Give more of the id" in told
    assert "job-2a" in run("queue", "entry", "job-2").out
    assert "job-1c" in run("queue", "entry", "b-1c").out
    assert "job-1c" in run("queue", "entry", "job-1", "--queue", "other").out
    run("queue", "cancel", "jobs", "job-2", "--yes")
    assert sorted(entry.id for entry in store.queue("jobs").find()) == ["job-1a", "job-1b"]
    assert run("queue", "replay", "jobs", "job-2").out == "replayed 1 entry of jobs\n"
    assert "there is no entry" in run("queue", "entry", "nothing", code=2).err


# --- search ------------------------------------------------------------------------------------------


def test_find_looks_in_all_queues(run: Run, store: QueueStore) -> None:
    failed = some_failed(store)
    live = store.queue("orders").put(1, id="order-0001", labels={"customer": "ann"}, unique="u-17").id

    def ids(*words: str) -> set[str]:
        return {hit["id"] for hit in run("queue", "find", *words, "--json").json()}

    assert ids("order-00") == ids("u-17") == {live}
    assert ids("--label", "customer=ann") == {live, failed["ann-refused"], failed["ann-lost"]}
    assert ids("customer=ben") == {failed["ben-lost"]}
    assert ids("--error", "LOST on") == {failed["ann-lost"], failed["ben-lost"]}
    assert ids("--error", "lost", "--label", "customer=ann") == {failed["ann-lost"]}
    assert ids("--label", "customer=ann", "--family", "ord") == {live}
    out = run("queue", "find", failed["ben-lost"]).out
    for text in ("mails", "dead", "TimeoutError: Lost on the way"):
        assert text in out
    assert run("queue", "find", "nowhere", code=1).out == "Nothing matches.\n"
    assert "nothing to search for" in run("queue", "find", code=2).err


# --- many at once ------------------------------------------------------------------------------------


def test_replay_by_label_and_error_counts_first(run: Run, store: QueueStore) -> None:
    failed = some_failed(store)
    asked = run("queue", "replay", "mails", "--error", "lost", code=4).out
    assert "replay 2 dead letters of mails" in asked
    assert "add --yes" in asked
    assert store.queue("mails").counts().dead == 3
    run("queue", "replay", "mails", "--error", "lost", "--label", "customer=ann", "--yes")
    assert {letter.id for letter in store.queue("mails").dead()} == {failed["ann-refused"], failed["ben-lost"]}
    run("queue", "replay", "mails", "--label", "customer=ben", "--yes")
    assert [letter.id for letter in store.queue("mails").dead()] == [failed["ann-refused"]]
    assert "no such dead letters" in run("queue", "replay", "mails", "--label", "customer=eve", "--yes").out
    run("queue", "replay", "mails", "--all", "--label", "customer=ann", code=2)


def test_cancel_by_error_and_all(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails", dict)
    for number in range(3):
        mails.put({"n": number})

    def send(mail: dict[str, int]) -> None:
        if mail["n"] == 0:
            raise ConnectionError("refused")

    mails.add_handler(send, retry=Retry(attempts=3, backoff="1h"))
    Worker(store).drain()
    mails.remove_handler()
    mails.put({"n": 9})
    assert mails.counts().retrying == 1
    assert "cancel 1 entry of mails" in run("queue", "cancel", "mails", "--error", "refused", code=4).out
    run("queue", "cancel", "mails", "--error", "refused", "--yes")
    assert (mails.counts().retrying, mails.counts().ready) == (0, 1)
    mails.put_many([{"n": number} for number in range(600)], delay="1h")
    assert "cancel 601 entries of mails" in run("queue", "cancel", "mails", "--all", code=4).out
    assert "cancelled 601 entries of mails" in run("queue", "cancel", "mails", "--all", "--yes").out
    assert mails.counts().live == 0


def test_an_empty_queue_is_deleted(run: Run, store: QueueStore) -> None:
    store.queue("mial").put(1)
    store.queue("mails").put(1)
    assert "is not empty" in run("queue", "delete", "mial", "--yes", code=2).err
    run("queue", "cancel", "mial", "--all", "--yes")
    assert "would delete the empty queue mial" in run("queue", "delete", "mial", code=4).out
    assert [row["queue"] for row in run("queue", "list", "--json").json()] == ["mails", "mial"]
    assert run("queue", "delete", "mial", "--yes").out == "deleted mial\n"
    assert [row["queue"] for row in run("queue", "list", "--json").json()] == ["mails"]
    assert "queue 'mial' was deleted" in run("queue", "show", "mial", code=2).err
    [ended] = store.queue("mial").history()
    run("queue", "replay", "mial", ended.id)
    assert store.queue("mial").counts().ready == 1, "what ended in it can come back"


# --- schedules ---------------------------------------------------------------------------------------


def test_schedules_are_added_paused_resumed_and_run(run: Run, store: QueueStore) -> None:
    said = run("schedule", "add", "nightly", "reports", '{"kind": "night"}', "--cron", "0 3 * * *")
    assert "nightly puts into reports in" in said.out
    assert "reports is a new queue" in said.err
    assert "already" in run("schedule", "add", "nightly", "reports", "1", "--every", "1h", code=2).err
    assert "cron line or an interval" in run("schedule", "add", "x", "reports", "1", code=2).err
    assert "not JSON" in run("schedule", "add", "x", "reports", "{", "--every", "1h", code=2).err
    assert run("schedule", "pause", "nightly").out == "nightly is paused\n"
    assert run("schedule", "pause", "nightly", code=1).out == "nightly is paused already\n"
    listed = run("schedule", "list")
    assert "paused" in listed.out
    [shown] = run("schedule", "list", "--json").json()
    assert (shown["paused"], shown["next"]) == (True, None)
    for words in (["schedule", "list"], ["schedule", "list", "--json"], ["queue", "list"], ["queue", "list", "--json"]):
        assert "9999" not in run(*words).out
        assert "7972y" not in run(*words).out
    id_ = run("schedule", "run", "nightly").out.strip()
    assert store.queue("reports", dict).get(id_).value == {"kind": "night"}
    assert "nightly continues, in" in run("schedule", "resume", "nightly").out
    assert run("schedule", "resume", "nightly", code=1).out == "nightly is not paused\n"
    assert run("schedule", "list", "--json").json()[0]["paused"] is False
    assert "Did you mean nightly?" in run("schedule", "run", "nightlly", code=2).err


# --- changes -----------------------------------------------------------------------------------------


def _lock_and_unlock(run: Run, store: QueueStore) -> None:
    run("queue", "lock", "mails", "--reason", "moving")
    run("queue", "unlock", "mails")


def _end_entries(run: Run, store: QueueStore) -> None:
    dead = some_dead(store, 3)
    run("queue", "replay", "mails", dead[0])
    run("queue", "replay", "mails", "--label", "nothing=here", "--yes")
    run("queue", "purge", "mails", "--dead", "--yes")
    run("queue", "cancel", "mails", "--all", "--yes")
    run("queue", "delete", "mails", "--yes")


def _schedule(run: Run, store: QueueStore) -> None:
    run("schedule", "add", "often", "jobs", "1", "--every", "1h")
    run("schedule", "pause", "often")
    run("schedule", "resume", "often")
    run("schedule", "run", "often")
    run("schedule", "remove", "often", "--yes")


def _break_circuit(run: Run, store: QueueStore) -> None:
    run("breaker", "open", "crm", "--why", "tests", "--yes")
    run("breaker", "close", "crm", "--why", "tests are over", "--yes")


@pytest.mark.parametrize(
    ("act", "did"),
    [
        (lambda run, store: run("queue", "put", "mails", "1"), ["put"]),
        (_lock_and_unlock, ["lock", "unlock"]),
        (_end_entries, ["replay", "purge of dead letters", "cancelling", "deletion of queue"]),
        (
            _schedule,
            ["adding of schedule", "pausing of schedule", "resuming of schedule", "running of schedule",
             "removal of schedule"],
        ),
        (_break_circuit, ["opening of circuit", "closing of circuit"]),
    ],
)  # fmt: skip
def test_what_is_changed_is_recorded(
    run: Run, store: QueueStore, act: Callable[[Run, QueueStore], object], did: list[str]
) -> None:
    store.queue("mails").put(1) if act is _lock_and_unlock else None
    act(run, store)
    changes = recent_changes(store)[::-1]
    assert [change.did for change in changes] == did
    assert all("@" in change.by for change in changes)
    assert all(change.after for change in changes)
    if act is _lock_and_unlock:
        assert [(change.before, change.after, change.why) for change in changes] == [
            ("not locked", "locked by operator (moving)", "moving"), ("locked by operator (moving)", "not locked", ""),
        ]  # fmt: skip


def test_changes_of_logs_and_tables_are_recorded(run: Run, tmp_path: Path) -> None:
    url, logs, there = f"sqlite:///{tmp_path}/new.db", f"file://{tmp_path}/logs", f"file://{tmp_path}/there"
    run("schema", "migrate", url)
    run("schema", "migrate", url)
    for words in (
        ("create", "clicks", "--url", logs), ("append", "clicks", "1", "2", "--url", logs),
        ("copy", "clicks", logs, there), ("copy", "clicks", logs, there),
    ):  # fmt: skip
        run("log", *words, env={"PENSTOCK_URL": url})
    with open_queues(url) as store:
        changes = [(change.did, change.target) for change in recent_changes(store)[::-1]]
    did = ["migration of tables", "creation of log", "append by hand", "copy of log"]
    assert [one for one, _ in changes] == did
    assert [target for _, target in changes][1:] == ["clicks"] * 3


def test_what_is_refused_or_only_asked_is_not_recorded(run: Run, store: QueueStore) -> None:
    some_dead(store, 1)
    run("queue", "replay", "mails", "--all", code=4)
    run("queue", "purge", "mails", "--dead", code=4)
    run("queue", "delete", "mails", code=2)
    run("queue", "list")
    assert recent_changes(store) == []
