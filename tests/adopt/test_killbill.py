"""What killbill-queue 0.26.15 wrote into PostgreSQL and MariaDB, taken over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.adopt.layout import recording
from tests.store_urls import Place

import penstock
from penstock import QueueStore, Worker

Open = Callable[[str], QueueStore]
Killbill = tuple[str, Callable[..., list[Any]]]
NOTIFICATIONS, RETRIES = "invoice%3Adue", "notifications-retries%3A"


def names(store: QueueStore, states: str) -> list[str]:
    rows = store.queue("bus_events").history() if states == "history" else store.queue("bus_events").find()
    return [row.value["name"] for row in rows if row.payload is not None]


def test_without_yes_it_prints_what_it_would_do_and_changes_nothing(
    killbill: Killbill, killbill_tables: Callable[[], Any], target: str, adopt: Any, tmp_path: Any
) -> None:
    before = killbill_tables()
    shown = adopt("killbill", killbill[0], "--to", target, code=4)
    assert "Nothing was changed; add --yes to do it." in shown.out
    assert "bus_events" in shown.out
    plan = adopt("killbill", killbill[0], "--to", target, "--json", code=4).json()
    bus, notifications, *others = plan["queues"]
    assert (bus["queue"], bus["ready"], bus["retrying"], bus["dead"], bus["history"]) == ("bus_events", 2, 2, 1, 7)
    assert (notifications["queue"], notifications["delayed"], notifications["dead"]) == (NOTIFICATIONS, 4, 1)
    assert notifications["history"] == 3
    assert [(one["queue"], one["retrying"], one["history"]) for one in others] == [
        ("invoice%3Aretried", 0, 1), (f"{RETRIES}listener", 1, 0), (f"{RETRIES}retried", 1, 0),
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())
    assert killbill_tables() == before


def test_every_store_takes_it_over_with_equal_counts_and_checksums(
    killbill: Killbill, killbill_tables: Callable[[], Any], any_target: Place, adopt: Any, opened: Open
) -> None:
    before = killbill_tables()
    left = ["--leave-out", "history"] if any_target.url.startswith("zookeeper") else []
    done = adopt("killbill", killbill[0], "--to", any_target.url, "--yes", "--json", *left).json()
    assert done["carried"] == (12 if left else 23)
    assert killbill_tables() == before
    store = opened(any_target.url)
    assert names(store, "live") == ["flaky", "hangs", "waits", "waits, too: ü"]
    assert store.locks() == []
    again = adopt("killbill", killbill[0], "--to", any_target.url, "--yes", *left)
    assert "was taken over before; nothing was carried again" in again.out
    assert len(store.queue("bus_events").find()) == 4


def test_states_attempts_dates_and_keys_mean_what_they_meant(
    killbill: Killbill, target: str, adopt: Any, opened: Open
) -> None:
    adopt("killbill", killbill[0], "--to", target, "--yes")
    store = opened(target)
    flaky, hangs, waits, _ = store.queue("bus_events").find()
    assert (flaky.attempt, hangs.attempt, waits.attempt) == (1, 1, 0)
    assert flaky.labels == {"search_key1": "8", "search_key2": "7"}
    assert flaky.type == "KillbillWriter$Payment"
    assert flaky.headers["creating_owner"] == "second-node"
    assert flaky.headers["user_token"] == flaky.value["userToken"]
    assert hangs.due > hangs.created  # its node may be at it until then
    assert [one.attempt for one in store.queue("bus_events").find(labels={"search_key1": "10"})] == [0]
    dated = store.queue(NOTIFICATIONS).find()
    assert [one.value["text"] for one in dated] == ["später 1", "später 2", "später 3", "no key"]
    assert [one.due.year - one.created.year for one in dated] == [11, 12, 13, 10]
    assert dated[3].labels == {"search_key2": "0"}  # Kill Bill stores 0 for a second key that was not given


def test_history_and_dead_letters_are_there(
    killbill: Killbill, dialect: str, target: str, adopt: Any, opened: Open
) -> None:
    adopt("killbill", killbill[0], "--to", target, "--yes")
    queue = opened(target).queue("bus_events")
    rows = queue.history()
    assert sorted(row.state for row in rows) == ["dead", *["done"] * 5, "reaped"]
    assert {row.owner for row in rows} == {"first-node", "second-node"}
    recorded = recording(f"killbill-{dialect}")["bus_events_history"]
    ended = recorded["columns"].index("processing_available_date")
    assert [f"{row.ended:%Y-%m-%d %H:%M:%S}" for row in rows] == [row[ended] for row in recorded["rows"]]
    [dead] = queue.dead()
    assert (dead.value["name"], dead.attempt, dead.error) == ("bad", 4, "failed 4 times")
    assert [row.state for row in opened(target).queue(NOTIFICATIONS).history()] == ["done", "dead", "cancelled"]


def test_workers_handle_what_was_taken_over(killbill: Killbill, target: str, adopt: Any, opened: Open) -> None:
    adopt("killbill", killbill[0], "--to", target, "--yes")
    store, seen = opened(target), []
    store.queue("bus_events", dict).add_handler(lambda event: seen.append(event["name"]))
    Worker(store).drain()
    assert sorted(seen) == ["flaky", "hangs", "waits", "waits, too: ü"]
    adopt("killbill", killbill[0], "--to", target, "--yes")
    assert Worker(store).drain() == 0


def test_the_history_can_stay_where_it_is(killbill: Killbill, target: str, adopt: Any, opened: Open) -> None:
    adopt("killbill", killbill[0], "--to", target, "--yes", "--leave-out", "history")
    queue = opened(target).queue("bus_events")
    assert queue.history() == []
    assert len(queue.dead()) == 1
    refused = adopt("killbill", killbill[0], "--to", target, "--yes", code=2)
    assert "was begun to be taken over without its history" in refused.err


def test_a_source_that_went_on_after_it_was_taken_over_is_told(killbill: Killbill, target: str, adopt: Any) -> None:
    adopt("killbill", killbill[0], "--to", target, "--yes")
    killbill[1]("DELETE FROM bus_events WHERE record_id = (SELECT * FROM (SELECT max(record_id) FROM bus_events) AS x)")
    refused = adopt("killbill", killbill[0], "--to", target, "--yes", code=2)
    assert "has changed since" in refused.err


def test_an_entry_that_waits_for_a_retry_is_what_it_was_at_first(
    killbill: Killbill, target: str, adopt: Any, opened: Open
) -> None:
    adopt("killbill", killbill[0], "--to", target, "--yes")
    store = opened(target)
    [reminder] = store.queue(f"{RETRIES}retried").find()
    assert (reminder.value, reminder.type) == ({"text": "again"}, "KillbillWriter$Reminder")
    assert (reminder.attempt, reminder.due.year - reminder.first_due.year) == (1, 10)
    [payment] = store.queue(f"{RETRIES}listener").find()
    assert (payment.value["name"], payment.type) == ("again", "KillbillWriter$Payment")
    # The first attempt is history, with its body; it can be replayed, but is not a dead letter.
    queue = store.queue("invoice%3Aretried")
    assert queue.dead() == []
    [row] = queue.history()
    assert (row.state, row.value) == ("cancelled", {"text": "again"})
    assert "retried as an entry of its own" in (row.error or "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE bus_events DROP COLUMN error_count", "it has no column error_count"),
        ("DROP TABLE notifications_history", "table notifications_history: it does not exist"),
        ("UPDATE bus_events SET processing_state = 'PROCESSED'", "its state is 'PROCESSED'"),
        ("UPDATE bus_events_history SET processing_state = 'LOST'", "its state is 'LOST'"),
        ("UPDATE notifications SET event_json = 'no JSON'", "JSON is malformed"),
        ("UPDATE notifications SET event_json = '{}'", "`originalEvent`"),
        ("UPDATE bus_events SET error_count = -3", "it counts -3 attempts"),
        ("ALTER TABLE bus_events RENAME TO busses; ALTER TABLE notifications RENAME TO notes", "no such tables"),
    ],
)
def test_tables_that_are_not_what_is_documented_are_refused(
    killbill: Killbill, target: str, adopt: Any, opened: Open, change: str, said: str
) -> None:
    for statement in change.split(";"):
        killbill[1](statement)
    refused = adopt("killbill", killbill[0], "--to", target, "--yes", code=2)
    assert said in refused.err
    assert "nothing was changed" in refused.err
    assert opened(target).counts() == []


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)  # MariaDB has no such dates
@pytest.mark.parametrize(("date", "said"), [("infinity", "after year 10K"), ("0044-03-15 BC", "before year 1")])
def test_a_date_outside_of_the_calendar_is_refused(
    killbill: Killbill, target: str, adopt: Any, opened: Open, date: str, said: str
) -> None:
    killbill[1](f"UPDATE notifications SET effective_date = '{date}'")
    refused = adopt("killbill", killbill[0], "--to", target, "--yes", code=2)
    assert "table notifications" in refused.err
    assert said in refused.err
    assert "nothing was changed" in refused.err
    assert opened(target).counts() == []


def test_tables_of_another_name_are_named(killbill: Killbill, target: str, adopt: Any, opened: Open) -> None:
    for table in ("bus_events", "bus_events_history"):
        killbill[1](f"ALTER TABLE {table} RENAME TO {table.replace('bus', 'bus_ext')}")
    adopt("killbill", killbill[0], "--to", target, "--yes", "--table", "bus_ext_events")
    assert [one.queue for one in opened(target).counts()] == ["bus_ext_events"]
    adopt("killbill", killbill[0], "--to", target, "--yes", "--table", "notifications")
    assert opened(target).queue(NOTIFICATIONS).counts().delayed == 4
    refused = adopt("killbill", killbill[0], "--to", target, "--table", "x; DROP TABLE y", code=2)
    assert "is not the name of a table" in refused.err


def test_empty_tables_hold_nothing_to_take_over(killbill: Killbill, target: str, adopt: Any) -> None:
    for table in ("bus_events", "bus_events_history", "notifications", "notifications_history"):
        killbill[1](f"DELETE FROM {table}")
    assert "holds nothing to take over" in adopt("killbill", killbill[0], "--to", target, code=2).err


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_database_that_is_down_is_told(scheme: str, target: str, adopt: Any) -> None:
    down = adopt("killbill", f"{scheme}://nobody@127.0.0.1:1/shop", "--to", target, code=3)
    assert "cannot be read" in down.err
    assert "Is the server up" in down.err


def test_a_queue_in_use_is_not_mixed_with(killbill: Killbill, target: str, adopt: Any, opened: Open) -> None:
    opened(target).queue("bus_events", dict).put({"mine": True})
    assert "'bus_events' of" in adopt("killbill", killbill[0], "--to", target, "--yes", code=2).err
    adopt("killbill", killbill[0], "--to", f"{target}?space=fresh", "--yes")
    with penstock.open_queues(f"{target}?space=fresh") as fresh:
        assert fresh.queue("bus_events").counts().live == 4
