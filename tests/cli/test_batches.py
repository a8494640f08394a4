"""What the command line says of held entries: never one without a reason."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.contract.queue.shorthand import take_one

from penstock import QueueStore, Reject, Retry, Worker
from penstock.queue.changes import recent_changes
from penstock.queue.protocol import Wait
from penstock.queue.results import Progress, note_of


def some_batch(store: QueueStore) -> str:
    """A batch of three, of which one is dead and one is done."""
    pages, reports = store.queue("pages", int), store.queue("reports", str)

    def scan(page: int) -> None:
        if page == 1:
            raise Reject("torn")

    pages.add_handler(scan, retry=Retry(attempts=1))
    with store.batch(then=(reports, "all")) as batch:
        batch.put_many(pages, [0, 1])
        batch.put(pages, 2, delay="1h")
    Worker(store).drain()
    return batch.id


def test_a_batch_is_shown_with_what_it_waits_for(run: Run, store: QueueStore) -> None:
    id_ = some_batch(store)
    out = run("batch", "show", id_).out
    assert f"batch {id_}: its entry in queue reports is held" in out
    assert "ended    1 done; 2 to go" in out
    assert "members  1 dead, 1 done, 1 waiting" in out
    assert out.count("  held     waits for") == 2
    assert "it is dead; replay it (purging it cancels this one)" in out
    shown = run("batch", "show", id_[-12:], "--json").json()
    assert (shown["needs"], shown["tally"]["done"], len(shown["waits_for"])) == (2, 1, 2)


def test_a_held_entry_says_why(run: Run, store: QueueStore) -> None:
    id_ = some_batch(store)
    out = run("queue", "entry", id_).out
    assert "held, 2 to wait for" in out
    assert out.count("held  waits for") == 2
    shown = run("queue", "entry", id_, "--json").json()
    assert (shown["state"], len(shown["waits_for"]), shown["tally"]) == ("held", 2, {"done": 1})
    assert "held" in run("queue", "list").out
    assert {one["queue"]: one["held"] for one in run("queue", "list", "--json").json()} == {"pages": 0, "reports": 1}
    assert "0 dead, 1 held" in run("queue", "show", "reports").out


def test_an_unknown_batch_is_an_error(run: Run, store: QueueStore) -> None:
    id_ = store.queue("q").put(1).id
    assert "no batch" in run("batch", "show", id_, code=2).err


def test_a_batch_is_cancelled(run: Run, store: QueueStore) -> None:
    id_ = some_batch(store)
    asked = run("batch", "cancel", id_, code=4).out
    assert "its entry is held, 1 member has not ended" in asked
    assert "add --yes" in asked
    assert "2 cancelled" in run("batch", "cancel", id_, "--yes").out
    assert "has ended" in run("batch", "cancel", id_, "--yes").out
    assert recent_changes(store)[0].target == id_
    assert "is cancelled" in run("batch", "show", id_).out


def test_doctor_finds_a_held_entry_that_waits_for_nothing(run: Run, store: QueueStore) -> None:
    id_ = some_batch(store)
    assert "all wait for something that can end" in run("doctor").out
    store.driver.load_links([], [Wait(id_, 3, done=1)])
    assert id_ in run("doctor", code=1).out.replace("\n", "")
    assert "see penstock doctor" in run("batch", "show", id_).out


def test_progress_is_shown_while_the_entry_is_worked_on(run: Run, store: QueueStore) -> None:
    id_ = store.queue("q").put(1).id
    entry = take_one(store, "q")
    assert entry.lease is not None
    store.driver.write([note_of(entry.lease, Progress(3, 10, "page 3"))])
    assert "3 of 10: page 3" in run("queue", "entry", id_).out
    assert run("queue", "entry", id_, "--json").json()["progress"]["total"] == 10


def test_what_is_held_is_listed(run: Run, store: QueueStore) -> None:
    id_ = some_batch(store)
    first, second = store.chain((store.queue("pages", int), 7), (store.queue("pages", int), 8))
    out = run("batch", "list").out
    assert id_ in out
    assert second in out
    assert first not in out
    [line] = run("batch", "list", "--queue", "reports", "--json").json()
    assert (line["id"], line["queue"], line["needs"], line["tally"]["done"]) == (id_, "reports", 2, 1)


def test_the_result_of_an_ended_entry_is_shown(run: Run, store: QueueStore) -> None:
    sums = store.queue("sums", int)
    sums.add_handler(lambda number: {"twice": 2 * number}, keep_result="1d")
    id_ = sums.put(21).id
    Worker(store).drain()
    assert '"twice": 42' in run("queue", "entry", id_).out
    assert run("queue", "entry", id_, "--json").json()["result"] == {"twice": 42}


def test_top_counts_what_is_held(run: Run, store: QueueStore) -> None:
    some_batch(store)
    lines = {line["name"]: line for line in run("top", "--json").json()["queues"]}
    assert (lines["reports"]["held"], lines["reports"]["ready"]) == (1, 0)
    assert "held" in run("top", "--once").out
