"""What a queue is asked and given: bad arguments are typed errors that name the call; entries show themselves."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from penstock import Bus, Context, Queue, QueueStore, Unique, Worker
from penstock.errors import BadInput, StoreUnavailable
from penstock.testing import FakeClock


class Mail(msgspec.Struct):
    to: str


@pytest.fixture
def store():
    with penstock.open_queues("memory://", clock=FakeClock(datetime(2026, 5, 1, 8, tzinfo=UTC))) as opened:
        yield opened


@pytest.fixture
def mails(store: QueueStore) -> Queue[Mail]:
    return store.queue("mails", Mail)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"unique": 5}, "unique 5 is not text"),
        ({"labels": ["a"]}, r"labels \['a'\] are not a dict"),
        ({"labels": {"a": 1}}, "label a=1"),
        ({"headers": ["a"]}, "headers .* are not a dict"),
        ({"priority": "high"}, "priority 'high' is not a whole number"),
        ({"priority": 1.0}, "priority 1.0 is not a whole number"),
        ({"priority": True}, "priority True is not a whole number"),
        ({"priority": 1000}, "priority 1000 is out of range"),
    ],
)
def test_bad_options_of_a_put(mails: Queue[Mail], options: dict[str, Any], told: str) -> None:
    for call in (lambda: mails.put(Mail("a"), **options), lambda: mails.put_many([Mail("a")], **options)):
        with pytest.raises(BadInput, match=told) as caught:
            call()
        assert caught.value.hint
    assert mails.find() == []


def test_a_slip_in_an_option_names_the_call_that_was_made(store: QueueStore, mails: Queue[Mail]) -> None:
    with pytest.raises(BadInput, match=r"put_many\(\) has no option 'dely'. Did you mean delay\?"):
        mails.put_many([Mail("a")], dely="5m")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Queue.handler\(\) got an unexpected keyword argument 'retries'"):
        mails.handler(retries=3)  # type: ignore[call-overload]
    with store.unit() as unit:
        with pytest.raises(BadInput, match=r"unit.put\(\) has no option 'dely'"):
            unit.put(mails, Mail("a"), dely="5m")  # type: ignore[call-arg]
        with pytest.raises(BadInput, match=r"unit.publish\(\) has no option 'dely'"):
            unit.publish(Bus(store), Mail("a"), dely="5m")
    errors: list[BadInput] = []

    @mails.handler
    def handle(mail: Mail, ctx: Context[Mail]) -> None:
        for call in (lambda: ctx.put(mails, mail, dely="5m"), lambda: ctx.publish(Bus(store), mail, dely="5m")):
            with pytest.raises(BadInput) as caught:
                call()
            errors.append(caught.value)

    mails.put(Mail("a"))
    Worker(store).drain()
    assert ["ctx.put() has no option" in str(errors[0]), "ctx.publish() has no option" in str(errors[1])] == [True] * 2


def test_every_option_of_a_put_goes_through_units_and_contexts(store: QueueStore, mails: Queue[Mail]) -> None:
    """The names that are let through are those that `Queue.put` has."""
    options: dict[str, Any] = {
        "delay": "1h", "priority": 1, "unique": Unique("u"), "labels": {"a": "1"}, "headers": {"h": "2"},
        "expires": "2h", "sticky": False,
    }  # fmt: skip
    with store.unit() as unit:
        unit.put(mails, Mail("a"), id="mine", **options)
        unit.commit()
    mails.put_many([Mail("b")], **{**options, "unique": None})
    assert [(one.priority, one.labels, one.headers) for one in mails.find()] == [(1, {"a": "1"}, {"h": "2"})] * 2


def test_history_knows_its_states(mails: Queue[Mail]) -> None:
    with pytest.raises(BadInput, match="state 'donee' is unknown") as caught:
        mails.history(state="donee")  # type: ignore[arg-type]
    assert "done, dead" in caught.value.hint
    assert mails.history(state="done") == []


def test_entries_rows_and_counts_show_values_and_times(store: QueueStore, mails: Queue[Mail]) -> None:
    id_ = mails.put(Mail("ann"), delay="45m", labels={"customer": "ann"}).id
    assert repr(mails.find()[0]) == (
        f"Entry(id='{id_}', queue='mails', state='waiting', value=Mail(to='ann'), created=2026-05-01T08:00:00+00:00, "
        "due=2026-05-01T08:45:00+00:00, attempt=0, generation=1, labels={'customer': 'ann'})"
    )
    assert repr(mails.counts()) == "Counts(queue='mails', ready=0, delayed=1, retrying=0, leased=0, dead=0)"
    mails.reschedule(id_, delay="0s")
    assert mails.counts().oldest_ready == datetime(2026, 5, 1, 8, tzinfo=UTC)
    assert "oldest_ready=2026-05-01T08:00:00+00:00" in repr(mails.counts())
    mails.add_handler(lambda mail: None)
    Worker(store).drain()
    [row] = mails.history()
    for text in ("state='done'", "started=2026-05-01T08:00:00", "value=Mail(to='ann')"):
        assert text in repr(row)
    for text in ("_us=", "codec", "payload", "object at"):
        assert text not in repr(row)
    assert mails.counts().oldest_ready is None


def test_an_entry_that_cannot_be_read_shows_its_bytes(store: QueueStore) -> None:
    store.queue("mails", dict).put({"from": "ann"})
    assert """payload=b'{"from":"ann"}'""" in repr(store.queue("mails", Mail).find()[0])


@pytest.mark.parametrize(
    "options", [{"rate": 5}, {"rate": "fast"}, {"in_flight": {"a": "b"}}, {"in_flight": ["a"]}, {"in_flight": {"a": 0}}]
)
def test_bad_limits(store: QueueStore, options: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(options))) as caught:
        store.queue("q", **options)
    assert caught.value.hint


def test_a_forgotten_connection_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    with (
        penstock.open_queues(f"sqlite:///{tmp_path}/shop.db?busy_timeout=0.1") as store,
        closing(sqlite3.connect(tmp_path / "shop.db")) as db,
    ):
        db.execute("CREATE TABLE t (x)")
        db.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(StoreUnavailable, match="is locked") as caught:
            store.queue("q").put("x")
        assert "pass it as connection=" in caught.value.hint
        assert "take before you write" in caught.value.hint
        db.rollback()


def test_a_bus_names_its_own_call(store: QueueStore) -> None:
    with pytest.raises(BadInput, match=r"publish\(\) has no option 'dely'"):
        Bus(store).publish(Mail("a"), dely="5m")
