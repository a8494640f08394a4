"""What the processes of the log's crash tests do: append, move records in transactions, roll, retain; and the judge.

A process notes every acknowledgement in a file of its own, in one write, before it goes on. After it died, ``judge``
holds the notes against the store: what was acknowledged is there, at its offset; no transaction is half there; offsets
of the group say exactly what the outputs hold.
"""

import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.crash.driver import write_tally

from penstock import LogStore, PenstockError, open_logs
from penstock.errors import Fenced
from penstock.log import Partition, Retention
from penstock.log.drivers.files.transactions import journal
from penstock.log.drivers.files.writing import adoption
from penstock.log.drivers.files.writing.durability import Durability
from penstock.log.record import NewRecords

# So small that a short life sees it roll and drop what is done.
journal.JOURNAL = msgspec.structs.replace(journal.JOURNAL, segment_bytes=700)
# So small that most of what is staged becomes a segment, and the rest is copied.
adoption.ADOPT_BYTES = 600
BATCHES = 28
PARTITIONS = 2
ENDLESS = 100_000


class Notes:
    """Acknowledgements of one process."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / f"{os.getpid()}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *what: Any) -> None:
        os.write(self._fd, json.dumps(what).encode() + b"\n")


def noted(folder: Path) -> Iterator[list[Any]]:
    for path in sorted(folder.glob("*.notes")):
        whole, _, _ = path.read_text().rpartition("\n")  # behind it is a note that is being written
        yield from map(json.loads, whole.splitlines())


def opened(folder: Path, durability: str = "fast") -> LogStore:
    return open_logs(f"file://{folder / 'store'}?durability={durability}")


def prepare(folder: Path) -> None:
    with opened(folder) as store:
        store.create("in", partitions=PARTITIONS, segment_bytes=4096)
        for name in ("out-a", "out-b"):
            store.create(name, segment_bytes=4096)
        store.create("brief", segment_bytes=4096, retention=Retention(size=8192))


def value(batch: int, rank: int) -> bytes:
    return b"%d/%d/" % (batch, rank) + b"x" * (batch * 37 % 200)


def append_on(
    store: LogStore, notes: Notes | None, until: int = BATCHES, between: Callable[[int], None] | None = None
) -> None:
    """Append what is missing: the sequence numbers say where the last one stopped."""
    with store.appender("in", bytes, producer="life") as out, store.appender("brief", bytes) as brief:
        last = [out.last_sequence(number) for number in range(PARTITIONS)]
        for batch in range(until):
            number = batch % PARTITIONS
            if last[number] is not None and batch <= last[number]:  # type: ignore[operator]
                continue
            values = [value(batch, rank) for rank in range(1 + batch % 4)]
            if notes is not None:
                notes.note("appending")
            placed = out.append_many(values, partition=number, sequence=batch)
            if notes is not None:
                notes.note("appended", number, placed[0].value, [one.decode() for one in values])
            brief.append(b"y" * 700)
            if between is not None:
                between(batch)


def move(store: LogStore, notes: Notes | None, tail: Any) -> int:
    """Take what is there and write it twice, once in staged files, in one transaction with the offsets."""
    records = tail.read(7)
    stages = [store.stage("out-b") for _ in range(2 if len(records) > 4 else 1)]
    for rank, stage in enumerate(stages):
        part = records[:3] if rank == 0 and len(stages) == 2 else records[3 * rank :]
        if part:
            stage.append([(0, NewRecords([one.payload for one in part], [str(one.partition) for one in part]))])
    with store.transaction() as tx:
        for record in records:
            tx.append("out-a", record.payload, bytes, key=str(record.partition))
        tx.append_staged(*(stage.close() for stage in stages))
        tx.commit_offsets(tail)
        tx.commit()
    if notes is not None:
        notes.note("moved", [record.payload.decode() for record in records])
    return len(records)


def life(folder: Path, durability: str = "fast") -> None:
    """Everything once."""
    notes = Notes(folder)
    with opened(folder, durability) as store:
        tail = store.tailer("in", "g", bytes)
        side = store.subscribe("in", "plain", bytes)

        def between(batch: int) -> None:
            if batch % 3 == 2:
                move(store, notes, tail)
            if batch % 5 == 4:
                got = side.read(5)
                side.commit()
                notes.note("committed", {str(one.partition): one.offset + 1 for one in got})
            if batch == BATCHES // 2:
                store.sync()
                store.enforce_retention("brief")

        append_on(store, notes, between=between)
        write_tally("whole")


def afterlife(folder: Path, durability: str = "fast") -> None:
    """Go on where the dead one stopped, to the end."""
    notes = Notes(folder)
    with opened(folder, durability) as store:
        append_on(store, notes)
        with store.tailer("in", "g", bytes) as tail:
            while move(store, notes, tail):
                pass
        write_tally("after")


def payloads(store: LogStore, name: str, partition: int = 0) -> list[str]:
    return [one.decode() for one in store.log(name, bytes).payloads(partition)]


def note_syncs(notes: Notes) -> None:
    """Note when partitions are brought to disk."""
    for name in ("sync", "sync_locked", "sync_current"):
        setattr(Durability, name, _noting(notes, getattr(Durability, name)))


def _noting(notes: Notes, sync: Callable[[Durability], None]) -> Callable[[Durability], None]:
    def noted_sync(durability: Durability) -> None:
        notes.note("syncing")
        try:
            sync(durability)
        finally:
            notes.note("synced")

    return noted_sync


def is_unsynced(folder: Path) -> bool:
    """Whether something was acknowledged that nobody has brought to disk, and nobody is about to."""
    under_way, begun, unsynced = 0, False, False
    for kind, *_ in noted(folder):
        if kind in ("syncing", "synced"):
            under_way += 1 if kind == "syncing" else -1
            begun = unsynced = False
        elif kind == "appending":
            begun = True
        elif kind == "appended":
            unsynced = begun  # else a sync lay between the write and the note
    return unsynced and under_way == 0


def endless(folder: Path, disk: Path, durability: str) -> None:
    """Append and move on a disk of its own, until the power goes; the notes are elsewhere."""
    notes = Notes(folder)
    note_syncs(notes)
    with opened(disk, durability) as store:
        tail = store.tailer("in", "g", bytes)
        append_on(
            store, notes, until=ENDLESS, between=lambda batch: None if batch % 3 else move(store, notes, tail) and None
        )


def judge(folder: Path, *, finished: bool = False, disk: Path | None = None, batches: int = BATCHES) -> None:
    """Hold the notes against the store."""
    with opened(disk or folder) as store:
        inputs = [payloads(store, "in", number) for number in range(PARTITIONS)]
        for number, held in enumerate(inputs):
            expected = [
                value(batch, rank).decode()
                for batch in range(number, batches, PARTITIONS)
                for rank in range(1 + batch % 4)
            ]
            assert held == expected[: len(held)], "in order, each once, nothing torn"
            if finished:
                assert held == expected, "all of it in the end"
        one, other = payloads(store, "out-a"), payloads(store, "out-b")
        assert one == other, "a transaction is whole in both logs or in none"
        assert all(count == 1 for count in Counter(one).values()), "nothing was moved twice"
        committed = store.committed("in", "g")
        keys = Counter(record.key for record in store.log("out-a", bytes).records(0))
        for number in range(PARTITIONS):
            assert keys[str(number)] == (committed[number] or 0), "the offsets say exactly what was moved"
        for kind, *what in noted(folder):
            if kind == "appended":
                number, offset, values = what
                assert inputs[number][offset : offset + len(values)] == values, "acknowledged, so there"
            elif kind == "moved":
                assert set(what[0]) <= set(one), "acknowledged, so moved"
            elif kind == "committed":
                kept = store.committed("in", "plain")
                for number, offset in what[0].items():
                    assert (kept[int(number)] or 0) >= offset, "acknowledged, so kept"
        bad = [finding for finding in store.verify() if finding.level == "bad"]
        assert bad == [], bad
        files = [*store.driver.root.glob("staged/*/*"), *store.driver.root.glob("logs/*/*/*")]  # type: ignore[attr-defined]
        assert all(path.stat().st_nlink == 1 for path in files), "a file is aside or in a log, not both"
        if finished:
            assert sorted(one) == sorted(itertools.chain(*inputs))


# --- several processes ------------------------------------------------------------------------------------------------


def crowd(folder: Path, name: int, seconds: float) -> None:
    """One of several appenders of the same partitions."""
    notes = Notes(folder)
    deadline = time.monotonic() + seconds
    with opened(folder) as store, store.appender("crowd", bytes) as out:
        for number in itertools.count():
            if time.monotonic() > deadline:
                return
            placed = out.append_many([b"%d/%d/%d" % (name, number, rank) for rank in range(3)], partition=number % 2)
            notes.note("placed", number % 2, placed[0].value, name, number)


def member(folder: Path, max_poll: str, ready: str, durability: str = "fast") -> None:
    """A subscriber that moves records until it is killed; it says when it has partitions, and what is refused.

    When there is a file ``stop holding`` or ``stop idle`` it stops itself, with records in hand or without, and never
    in the middle of a step: whoever is stopped with a lock is waited for. In the durable profile no other thread of
    its process has one then either.
    """
    notes = Notes(folder)
    with opened(folder, durability) as store, store.subscribe("in", "g", bytes, max_poll=max_poll) as tail:
        while True:
            records = tail.read(1, timeout="20ms")
            if tail.assignment():
                (folder / ready).touch()
            stop = folder / ("stop holding" if records else "stop idle")
            if stop.exists():
                stop.unlink()
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            if not records:
                continue
            try:
                with store.transaction() as tx:
                    for record in records:
                        for name in ("out-a", "out-b"):
                            tx.append(name, record.payload, bytes, key=str(record.partition))
                    tx.commit_offsets(tail)
                    tx.commit()
            except Fenced:
                notes.note("fenced", [record.payload.decode() for record in records])
                continue
            notes.note("moved", [record.payload.decode() for record in records])


def holder(folder: Path, ready: str) -> None:
    """Owns partitions and reads, until it is killed."""
    with opened(folder) as store, store.subscribe("in", "watchers", bytes) as tail:
        while True:
            tail.read(timeout="50ms")
            tail.commit()
            if tail.assignment():
                (folder / ready).write_text(str(len(tail.assignment())))


def silent(folder: Path) -> None:
    """A manual tailer that reads, sleeps until somebody wakes it up, and only then commits."""
    with opened(folder, "durable") as store:
        tail = store.tailer(Partition("in", 0), "manual", bytes, max_poll="200ms")
        tail.read(3)
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        try:
            while True:
                tail.commit()
                time.sleep(0.05)
        except PenstockError as error:
            Notes(folder).note("refused", type(error).__name__)
