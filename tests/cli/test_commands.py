"""The commands that look at a store and change it, on a real SQLite file."""

import os
import re
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import Run

import penstock
from penstock import Bus, QueueStore, Reject, Retry, Worker
from penstock.clock import duration_micros


def some_dead(store: QueueStore, number: int = 3) -> list[str]:
    """Dead letters in the queue mails; a handler there succeeds afterwards."""
    mails = store.queue("mails", dict)
    ids = [result.id for result in mails.put_many([{"n": n} for n in range(number)])]
    mails.add_handler(lambda mail: Reject("no such address"))
    Worker(store).drain()
    mails.remove_handler()
    assert mails.counts().dead == number
    return ids


# --- list and show -----------------------------------------------------------------------------------


def test_list_shows_counts_ages_and_locks(run: Run, store: QueueStore) -> None:
    assert run("queue", "list").out == "There is no queue yet.\n"
    some_dead(store, 1)
    store.queue("mails").put({"n": 1})
    store.queue("mails").put({"n": 2}, delay="1h")
    store.queue("orders", fifo=True).put(1)
    store.queue("orders").lock(holder="billing", reason="end of month")
    out = run("queue", "list").out
    assert "oldest ready" in out
    assert "billing: end of month" in out
    assert "orders (fifo)" in out
    mails, orders = run("queue", "list", "--json").json()
    assert (mails["queue"], mails["ready"], mails["delayed"], mails["dead"]) == ("mails", 1, 1, 1)
    assert 0 <= mails["oldest_ready_seconds"] < 30
    assert orders["fifo"] is True
    assert orders["locks"][0]["holder"] == "billing"
    assert [one["queue"] for one in run("queue", "list", "--family", "ma", "--json").json()] == ["mails"]


def test_show_prints_the_traceback_of_each_failed_attempt_once(run: Run, store: QueueStore) -> None:
    queue = store.queue("mails", str)

    def send_the_mail(mail: str) -> None:
        raise ConnectionError("nobody there")

    queue.add_handler(send_the_mail, retry=Retry(attempts=1))
    queue.put("x")
    Worker(store).drain()
    assert "send_the_mail" not in run("queue", "show", "mails").out
    out = run("queue", "show", "mails", "--traceback").out
    assert out.count("in send_the_mail") == 1, "the dead letter and the history have the same"
    assert "Traceback (most recent call last)" in out
    shown = run("queue", "show", "mails", "--json").json()
    assert shown["history"][0]["error"] == "ConnectionError: nobody there"
    assert "in send_the_mail" in shown["history"][0]["traceback"]
    assert "in send_the_mail" in shown["dead_letters"][0]["traceback"]


def test_show_has_entries_dead_letters_and_history(run: Run, store: QueueStore) -> None:
    [dead] = some_dead(store, 1)
    live = store.queue("mails", dict).put({"to": "[ann]"}, labels={"customer": "ann"}, delay="1h", priority=5)
    store.queue("mails").lock(reason="lunch")
    out = run("queue", "show", "mails").out
    for text in (live.id, dead, "rejected: no such address", "customer=ann", '{"to":"[ann]"}', "in 59m", "lunch"):
        assert text in out
    shown = run("queue", "show", "mails", "--json").json()
    assert shown["entries"][0]["payload"] == {"to": "[ann]"}
    assert shown["entries"][0]["priority"] == 5
    assert datetime.fromisoformat(shown["entries"][0]["due"]) > datetime.now(UTC) + timedelta(minutes=59)
    assert shown["dead_letters"][0]["error"] == "rejected: no such address"
    assert [row["state"] for row in shown["history"]] == ["dead"]


def test_show_gives_bytes_as_base64(run: Run, store: QueueStore) -> None:
    store.queue("raw", bytes).put(b"\x00\xff")
    assert run("queue", "show", "raw", "--json").json()["entries"][0]["payload"] == {"base64": "AP8="}
    assert "·" in run("queue", "show", "raw").out


def test_a_slip_in_a_name_is_no_empty_queue(run: Run, store: QueueStore) -> None:
    some_dead(store, 1)
    store.queue("customer.ann").put(1)
    store.queue("customer.ben").put(1)
    for words in (["show", "mail"], ["replay", "mail", "--all", "--yes"], ["purge", "mail", "--dead"],
                  ["cancel", "mail", "x"], ["unlock", "mail"]):  # fmt: skip
        told = run("queue", *words, code=2).err
        assert told == "error: there is no queue 'mail'. Did you mean mails? See: penstock queue list\n"
    family = run("queue", "show", "customer.", code=2).err
    assert "Of its family there are 2 queues: penstock queue list --family customer." in family
    made = run("queue", "put", "mials", "1")
    assert "mials is a new queue. Did you mean mails?" in made.err
    assert run("queue", "put", "mials", "1").err == ""


def test_queues_with_history_only_are_there(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails", str)
    mails.add_handler(lambda mail: None)
    mails.put("x")
    Worker(store).drain()
    assert "0 ready" in run("queue", "show", "mails").out


def test_a_queue_that_only_a_schedule_fills_is_listed(run: Run, store: QueueStore) -> None:
    store.queue("reports", str).schedule("daily", "sales", every="1h")
    out = run("queue", "list").out
    assert "next fire" in out
    assert "reports" in out
    assert "in 59m" in out
    [told] = run("queue", "list", "--json").json()
    assert datetime.fromisoformat(told["next_fire"]) > datetime.now(UTC) + timedelta(minutes=58)
    assert run("queue", "list", "--family", "mails", "--json").json() == []
    run("queue", "show", "reports")


def test_show_has_generations_and_filters_by_label(run: Run, store: QueueStore) -> None:
    [dead] = some_dead(store, 1)
    mails = store.queue("mails", dict)
    assert "generation" not in run("queue", "show", "mails").out
    mails.replay(dead)
    assert "generation" in run("queue", "show", "mails").out
    ann, ben = (mails.put({"n": name}, labels={"customer": name}).id for name in ("ann", "ben"))
    shown = run("queue", "show", "mails", "--label", "customer=ann", "--json").json()
    assert [one["id"] for one in shown["entries"]] == [ann]
    assert ben not in run("queue", "show", "mails", "--label", "customer=ann").out


def test_cancel_by_id_and_by_label(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails", dict)
    first = mails.put({"n": 1}).id
    others = [mails.put({"n": n}, labels={"customer": "ann"}).id for n in range(2)]
    asked = run("queue", "cancel", "mails", first, code=4).out
    assert first in asked
    assert "add --yes" in asked
    assert run("queue", "cancel", "mails", first, "--yes").out.endswith("cancelled 1 entry of mails\n")
    [held] = store.unit().take(mails, limit=1)
    assert held.id == others[0]
    assert "cancelled 1 entry of mails" in run("queue", "cancel", "mails", "--label", "customer=ann", "--yes").out
    assert [one.id for one in mails.find()] == [held.id], "what is being worked on is left alone"
    assert "not cancelled" in run("queue", "cancel", "mails", held.id, "--yes", code=1).err
    run("queue", "cancel", "mails", held.id, "--yes", "--force")
    assert mails.find() == []
    assert "needs ids, --label and --error, or --all" in run("queue", "cancel", "mails", code=2).err
    assert "there is no entry 'nonsense' in queue 'mails'" in run("queue", "cancel", "mails", "nonsense", code=2).err


def test_a_preview_of_cancel_refuses_what_the_action_refuses(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails", dict)
    ids = [mails.put({"n": n}).id for n in range(2)]
    [held] = store.unit().take(mails, limit=1)
    [waiting] = set(ids) - {held.id}
    for options, code, shown in (((), 4, "cancel 1 entry of mails"), (("--yes",), 1, "cancelled 1 entry of mails")):
        done = run("queue", "cancel", "mails", *ids, *options, code=code)
        assert shown in done.out
        assert waiting in done.out
        assert held.id not in done.out
        assert f"not cancelled: {held.id}" in done.err
        assert "is being worked on" in done.err
    only = run("queue", "cancel", "mails", held.id, code=1)
    assert "add --yes" not in only.out
    assert f"not cancelled: {held.id}" in only.err
    assert "cancel 1 entry of mails" in run("queue", "cancel", "mails", held.id, "--force", code=4).out


@pytest.mark.parametrize("width", ["60", "80"])
def test_ids_are_never_broken(run: Run, store: QueueStore, url: str, width: str) -> None:
    [dead] = some_dead(store, 1)
    live = store.queue("mails", dict).put({"text": "x" * 200}, labels={"customer": "ann"}, priority=3).id
    out = run("queue", "show", "mails", env={"PENSTOCK_URL": url, "COLUMNS": width}).out
    assert max(len(line) for line in out.splitlines()) <= int(width)
    assert live in out
    assert out.count(dead) == 2


# --- put and lock ------------------------------------------------------------------------------------


def test_put_takes_every_option(run: Run, store: QueueStore) -> None:
    words = ["--delay", "1h", "--priority", "7", "--unique", "order-1", "--label", "customer=ann", "--label", "a=b=c"]
    id_ = run("queue", "put", "mails", '{"to": "ann"}', *words).out.strip()
    entry = store.queue("mails", dict).get(id_)
    assert (entry.value, entry.priority, entry.unique) == ({"to": "ann"}, 7, "order-1")
    assert entry.labels == {"customer": "ann", "a": "b=c"}
    assert entry.due - entry.created == timedelta(hours=1)
    again = run("queue", "put", "mails", "{}", "--unique", "order-1")
    assert again.out.strip() == id_
    assert "nothing was put" in again.err


def test_put_due_fifo_and_standard_input(run: Run, store: QueueStore) -> None:
    id_ = run("queue", "put", "steps", "-", "--due", "2030-05-01T08:00:00+02:00", "--fifo", stdin="[1, 2]").out.strip()
    entry = store.queue("steps", list).get(id_)
    assert entry.value == [1, 2]
    assert entry.due == datetime(2030, 5, 1, 6, tzinfo=UTC)
    assert store.queue("steps").counts().fifo


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mails", "{"], "the payload is not JSON"),
        (["mails", "1", "--delay", "soon"], "--delay 'soon' is not a duration. Write it as 500ms"),
        (["mails", "1", "--due", "tomorrow"], "--due 'tomorrow' is not a time"),
        (
            ["mails", "1", "--due", "2030-05-01T08:00:00"],
            "--due 2030-05-01T08:00:00 has no time zone. Write it as 2026",
        ),
        (["mails", "1", "--label", "ann"], "label 'ann' has no value"),
        (["mails", "1", "--priority", "1000"], "priority 1000 is out of range"),
        (["../mails", "1"], "queue name '../mails' is not allowed. Use ASCII letters"),
        (["mails", "1", "--label", "a b=c"], "label name 'a b' is not allowed. Use ASCII letters"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run: Run, words: list[str], told: str) -> None:
    result = run("queue", "put", *words, code=2)
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert told in result.err
    assert result.err.count("\n") == 1
    for advice in ("timedelta", "datetime", "tzinfo", "escape_name"):
        assert advice not in result.err, "advice for a program, not for a shell"


def test_a_lock_of_a_queue_that_is_not_there_has_to_say_create(run: Run, store: QueueStore) -> None:
    store.queue("mails").put(1)
    told = run("queue", "lock", "mailz", code=2).err
    assert told.startswith(
        "error: there is no queue 'mailz'. Did you mean mails? See: penstock queue list, or add --create to"
    )
    assert store.locks() == []
    assert not store.queue("mailz").exists()
    assert run("queue", "lock", "mailz", "--create").out == "mailz is locked by operator\n"
    assert run("queue", "lock", "mailz").err == "", "there is a queue now: the lock has made it"


def test_a_second_lock_of_one_holder_says_that_the_reason_is_replaced(run: Run, store: QueueStore) -> None:
    store.queue("mails").put(1)
    assert run("queue", "lock", "mails", "--reason", "lunch").err == ""
    assert run("queue", "lock", "mails", "--reason", "lunch").err == ""
    again = run("queue", "lock", "mails", "--reason", "moving")
    assert again.out == "mails is locked by operator (moving)\n"
    assert again.err == "the reason of operator was 'lunch' before and is replaced\n"
    assert run("queue", "lock", "mails", "--reason", "audit", "--holder", "ann").err == ""
    assert "was 'moving' before" in run("queue", "lock", "mails").err


def test_lock_and_unlock_by_holder(run: Run, store: QueueStore) -> None:
    store.queue("mails").put(1)
    assert run("queue", "lock", "mails", "--reason", "lunch").out == "mails is locked by operator (lunch)\n"
    run("queue", "lock", "mails", "--holder", "billing")
    assert {lock.holder for lock in store.queue("mails").locks()} == {"operator", "billing"}
    assert run("queue", "unlock", "mails").out == "mails is still locked by billing\n"
    assert "operator held no lock on mails; it is locked by billing" in run("queue", "unlock", "mails", code=1).out
    assert run("queue", "unlock", "mails", "--holder", "billing").out == "mails is unlocked\n"


# --- replay, purge, prune ----------------------------------------------------------------------------


def test_replay_of_named_entries(run: Run, store: QueueStore) -> None:
    first, second, third = some_dead(store)
    assert run("queue", "replay", "mails", first, third).out == "replayed 2 entries of mails\n"
    assert [letter.id for letter in store.queue("mails").dead()] == [second]
    assert "there is no entry 'nonsense'" in run("queue", "replay", "mails", "nonsense", code=2).err
    store.queue("orders").put(1)
    assert "there is no entry" in run("queue", "replay", "orders", second, code=2).err
    live = store.queue("orders").find()[0].id
    assert "has no ended entry" in run("queue", "replay", "orders", live, code=2).err
    run("queue", "replay", "mails", code=2)
    run("queue", "replay", "mails", second, "--all", code=2)
    again = run("queue", "replay", "mails", second, first, code=2).err
    assert f"has no ended entry '{first}': it is waiting" in again
    assert [letter.id for letter in store.queue("mails").dead()] == [second], "all or nothing"


def test_replay_of_all_dead_letters_needs_yes(run: Run, store: QueueStore) -> None:
    ids = some_dead(store, 12)
    asked = run("queue", "replay", "mails", "--all", code=4).out
    assert "replay 12 dead letters of mails" in asked
    assert ids[0] in asked
    assert "... and 2 more" in asked
    assert "add --yes" in asked
    assert store.queue("mails").counts().dead == 12
    assert "replayed 12 dead letters" in run("queue", "replay", "mails", "--all", "--yes").out
    assert (store.queue("mails").counts().ready, store.queue("mails").counts().dead) == (12, 0)
    assert "no such dead letters" in run("queue", "replay", "mails", "--all").out


def test_a_dead_letter_that_cannot_come_back_stops_no_other(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails", dict)
    held = mails.put({"n": 0}, unique="one").id
    mails.put({"n": 1})
    mails.add_handler(lambda mail: Reject("no"))
    Worker(store).drain()
    mails.remove_handler()
    mails.put({"n": 2}, unique="one")
    result = run("queue", "replay", "mails", "--all", "--yes", code=1)
    assert "replayed 1 dead letter of mails" in result.out
    assert f"not replayed: {held}" in result.err
    assert [letter.id for letter in mails.dead()] == [held]


def test_purge_needs_dead_and_yes(run: Run, store: QueueStore) -> None:
    some_dead(store, 2)
    store.queue("mails").put({"n": 9})
    assert "purge needs --dead" in run("queue", "purge", "mails", code=2).err
    assert "purge 2 dead letters of mails" in run("queue", "purge", "mails", "--dead", code=4).out
    assert store.queue("mails").counts().dead == 2
    assert "no such dead letters" in run("queue", "purge", "mails", "--dead", "--before", "1d", "--yes").out
    assert (
        "no such dead letters"
        in run("queue", "purge", "mails", "--dead", "--before", "2020-01-01T00:00:00Z", "--yes").out
    )
    assert store.queue("mails").counts().dead == 2
    assert "purged 2 dead letters of mails" in run("queue", "purge", "mails", "--dead", "--yes").out
    assert (store.queue("mails").counts().ready, store.queue("mails").counts().dead) == (1, 0)


def test_prune_shows_and_needs_yes(run: Run, store: QueueStore) -> None:
    some_done(store, 2)
    assert run("queue", "prune").out == "pruned 0 history rows\n"
    move_history_back(store, "1h")
    some_done(store, 3)
    assert "would prune 2 history rows, older than 30m" in run("queue", "prune", "--older-than", "30m", code=4).out
    assert len(store.queue("mails").history()) == 5
    assert run("queue", "prune", "--older-than", "30m", "--yes").out == "pruned 2 history rows\n"
    assert len(store.queue("mails").history()) == 3


@pytest.mark.parametrize("older_than", ["0s", "5m", "14m"])
def test_prune_shows_what_it_would_do_and_what_it_keeps(run: Run, store: QueueStore, older_than: str) -> None:
    """Ids stay known for a quarter of an hour, whatever is asked; that is said, and counted so."""
    some_done(store, 2)
    move_history_back(store, "1h")
    some_done(store, 3)
    move_history_back(store, "14m30s")
    shown = run("queue", "prune", "--older-than", older_than, code=4).out
    assert "would prune 2 history rows, older than 15m" in shown
    assert "3 history rows of the last 15 minutes kept" in shown
    done = run("queue", "prune", "--older-than", older_than, "--yes").out
    assert "pruned 2 history rows" in done
    assert "3 history rows of the last 15 minutes kept" in done
    assert run("queue", "prune", "--older-than", older_than).out.startswith("pruned 0 history rows\n3 history rows")
    assert len(store.queue("mails").history()) == 3


def some_done(store: QueueStore, number: int) -> None:
    """Entries of the queue mails that were handled."""
    mails = store.queue("mails", dict)
    mails.put_many([{"n": n} for n in range(number)])
    mails.add_handler(lambda mail: None)
    assert Worker(store).drain() == number
    mails.remove_handler()


def move_history_back(store: QueueStore, length: str) -> None:
    """Let what has ended have ended so much earlier."""
    micros = duration_micros(length)
    with sqlite3.connect(store.driver.server.file.path) as db:  # type: ignore[attr-defined]
        db.execute("UPDATE penstock_history SET ended = ended - ?", (micros,))
    db.close()


def test_pause_and_resume_are_other_names_of_lock_and_unlock(run: Run, store: QueueStore) -> None:
    store.queue("mails").put({"n": 1})
    assert "mails is locked by operator (maintenance)" in run("queue", "pause", "mails", "--reason", "maintenance").out
    assert [lock.holder for lock in store.locks("mails")] == ["operator"]
    assert "mails is unlocked" in run("queue", "resume", "mails").out
    assert store.locks("mails") == []
    shown = run("queue", "--help").out
    assert "pause" in shown
    assert "resume" in shown
    assert "another name for lock" in " ".join(run("queue", "pause", "--help").out.split())


# --- doctor and schema -------------------------------------------------------------------------------


def test_doctor_tells_findings_clock_space_and_capabilities(run: Run, store: QueueStore, url: str) -> None:
    out = run("doctor").out
    for text in ("space penstock", "integrity", "the store says 20", "sqlite library", "transactional", "label search"):
        assert text in out
    told = run("doctor", url, "--json", env={}).json()
    assert told["space"] == "penstock"
    assert told["capabilities"]["durable"] is True
    assert {"clock", "integrity", "schema", "durability"} <= {one["what"] for one in told["findings"]}
    assert all(one["level"] != "bad" for one in told["findings"])


def test_doctor_warns_of_dead_letters_and_locks(run: Run, store: QueueStore) -> None:
    some_dead(store, 1)
    store.queue("mails").lock()
    levels = {one["what"]: one["level"] for one in run("doctor", "--json").json()["findings"]}
    assert levels["dead letters"] == levels["locked queues"] == "warning"


def test_doctor_of_a_damaged_file_fails(tmp_path: Path, store: QueueStore, url: str) -> None:
    store.queue("mails").put_many([{"text": "x" * 1000}] * 200)
    store.close()
    path = tmp_path / "shop.db"
    data = bytearray(path.read_bytes())
    for page in range(40, len(data) // 4096 - 5):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "doctor", url], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert re.search("bad +integrity", ended.stdout)


def test_schema_print_check_and_migrate(run: Run, tmp_path: Path) -> None:
    new = f"sqlite:///{tmp_path}/new.db?space=shop"
    printed = run("schema", "print", new).out
    assert "CREATE TABLE IF NOT EXISTS shop_history" in printed
    assert not (tmp_path / "new.db").exists()
    run("schema", "check", new, code=2)
    assert "create the tables" in run("schema", "migrate", new).out
    assert run("schema", "migrate", new).out == "space shop is up to date\n"
    assert "up to date" in run("schema", "check", new).out
    other = new.replace("shop", "other")
    assert "penstock schema migrate" in run("schema", "check", other, code=1).out
    assert "a memory:// store has no SQL schema" in run("schema", "print", "memory://", code=2).err
    with penstock.open_queues(new) as opened:
        opened.queue("mails").put(1)


def test_printed_schema_is_what_a_store_works_on(run: Run, tmp_path: Path) -> None:
    import sqlite3
    from contextlib import closing

    target = f"sqlite:///{tmp_path}/printed.db"
    with closing(sqlite3.connect(tmp_path / "printed.db")) as db:
        db.executescript(run("schema", "print", target).out)
        there = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    assert {"penstock", "penstock_dead", "penstock_ready"} <= there
    assert "create the tables" in run("schema", "migrate", target).out


# --- schedules and the bus ---------------------------------------------------------------------------


def test_schedules_are_listed_and_removed(run: Run, store: QueueStore) -> None:
    assert run("schedule", "list").out == "There is no schedule.\n"
    store.queue("reports", str).schedule("daily", "sales", cron="0 8 * * *", zone="Europe/Zurich")
    store.queue("reports", str).schedule("often", "alive", every="90s")
    out = run("schedule", "list").out
    assert "0 8 * * * (Europe/Zurich)" in out
    assert "every 1m 30s" in out
    assert [one["name"] for one in run("schedule", "list", "--json").json()] == ["daily", "often"]
    assert "would remove" in run("schedule", "remove", "often", code=4).out
    assert len(store.schedules()) == 2
    run("schedule", "remove", "often", "--yes")
    assert [one.name for one in store.schedules()] == ["daily"]
    assert "there is no schedule 'often'" in run("schedule", "remove", "often", "--yes", code=2).err


def test_subscriptions_are_listed(run: Run, store: QueueStore) -> None:
    assert run("bus", "list").out == "There is no subscription.\n"
    bus = Bus(store)
    bus.subscribe("mails", dict)
    bus.publish({"order": 1})
    assert "bus.mails" in run("bus", "list").out
    [told] = run("bus", "list", "--json").json()
    assert (told["name"], told["types"], told["live"]) == ("mails", ["dict"], 1)


# --- what goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("sqlite:///no/such/shop.db", "there is no store no/such/shop.db"),
        ("memory://", "lives inside one process"),
        ("shop.db", "'shop.db' is not a store URL"),
        ("oracle://shop", "no queue store is known for oracle://"),
    ],
)
def test_a_store_that_is_not_there_is_one_line(run: Run, wrong: str, told: str) -> None:
    result = run("queue", "list", "--url", wrong, code=2)
    assert result.err.startswith("error: ")
    assert told in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("words", [["queue", "list", "--url"], ["schema", "migrate"], ["schema", "check"], ["doctor"]])
def test_one_reading_of_urls(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """A URL that the library refuses is refused by every command, and makes no file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    for wrong, told in (
        ("sqlite://orders.db", "names no file. Write three slashes"),
        ("sqlite:///:memory:", "use memory://"),
        ("sqlite:///folder", "is a folder"),
        ("sqllite:///x.db", "Did you mean sqlite://?"),
    ):
        result = run(*words, wrong, code=2)
        assert told in result.err
        assert result.err.count("\n") == 1
        if "folder" not in wrong:
            with pytest.raises(penstock.PenstockError):
                penstock.open_queues(wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_looking_creates_nothing(run: Run, store: QueueStore, url: str, tmp_path: Path) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    run("doctor", f"sqlite:///{tmp_path}/typo.db", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert "has no space 'typo'" in run("queue", "list", "--url", f"{url}?space=typo", code=2).err
    assert "has no space 'typo'" in run("queue", "list", "--url", f"{url}?space=typo", code=2).err


def test_without_url_the_option_is_named(run: Run) -> None:
    assert "--url" in run("queue", "list", env={"PENSTOCK_URL": ""}, code=2).err


def test_the_module_runs_and_tells_its_version() -> None:
    out = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True)
    assert out.stdout == f"penstock {penstock.__version__}\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_the_install_line_is_printed(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from penstock.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f'penstock: the command line needs {missing}. Run: pip install "penstock[cli]"\n'


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "h11"])
def test_what_needs_the_extra_service_says_so(missing: str, tmp_path: Path) -> None:
    start = f"import sys; sys.modules[{missing!r}] = None; "
    serve = [sys.executable, "-c", start + "from penstock.cli import main; main()", "serve", "--url", "memory://"]
    ended = subprocess.run(serve, capture_output=True, text=True, check=False)
    said = f'the service needs {missing}, which is not installed. Run: pip install "penstock[service]"'
    assert (ended.returncode, ended.stderr) == (2, f"error: {said}\n")
    imported = [sys.executable, "-c", start + "from penstock.service import serve"]
    ended = subprocess.run(imported, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == f"penstock.errors.MissingExtra: {said}"


def test_keys_are_made_without_the_extra_service(tmp_path: Path) -> None:
    start = "import sys; sys.modules['fastapi'] = None; from penstock.cli import main; main()"
    for command in (["new", "shop", "--scope", "read"], ["list"], ["remove", "shop"]):
        keys = [sys.executable, "-c", start, "key", *command, "--keys", str(tmp_path / "keys.json")]
        ended = subprocess.run(keys, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr


def test_retry_is_shown_while_it_waits(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails", dict)
    mails.put({"n": 1})
    mails.add_handler(_fail, retry=Retry(attempts=3, delays=["1h"]))
    Worker(store).drain()
    [told] = run("queue", "list", "--json").json()
    assert told["retrying"] == 1
    assert run("queue", "show", "mails", "--json").json()["entries"][0]["error"] == "ValueError: not now"


def _fail(mail: dict) -> None:
    raise ValueError("not now")


def test_tables_fit_a_narrow_terminal(run: Run, store: QueueStore, url: str) -> None:
    store.queue("mails").put({"text": "x" * 200})
    out = run("queue", "show", "mails", env={"PENSTOCK_URL": url, "COLUMNS": "60"}).out
    assert max(len(line) for line in out.splitlines()) <= 60
    assert os.linesep in out
