"""Other embedded queues and the raw driver, doing the same work with the same durability (WAL, synchronous=FULL)."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Run, durable, timed

PAYLOAD = {"to": "ann@example.org", "order": 17, "body": "x" * 150}


def huey_drain(folder: Path, count: int, threads: int = 1) -> tuple[Run, Run]:
    """huey: put, then dequeue and execute one by one in every thread, as its worker does."""
    from huey import SqliteHuey

    huey = SqliteHuey(filename=str(folder / "huey.db"), fsync=True)

    @huey.task()
    def handle(payload: dict[str, object]) -> None: ...

    put = timed(count, lambda: [handle(PAYLOAD) for _ in range(count)])

    def drain() -> None:
        while (task := huey.dequeue()) is not None:
            huey.execute(task)

    return put, timed(count, drain if threads == 1 else lambda: in_threads(threads, drain))


def in_threads(threads: int, work: Callable[[], object]) -> None:
    """Run the same work in several threads at once."""
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def litequeue_drain(folder: Path, count: int) -> tuple[Run, Run]:
    """litequeue: put, then pop and done one by one."""
    import json

    from litequeue import LiteQueue

    queue = LiteQueue(str(folder / "lite.db"))
    queue.conn.execute("PRAGMA synchronous = FULL")
    put = timed(count, lambda: [queue.put(json.dumps(PAYLOAD)) for _ in range(count)])

    def drain() -> None:
        while (message := queue.pop()) is not None:
            json.loads(message.data)
            queue.done(message.message_id)

    return put, timed(count, drain)


def persistqueue_drain(folder: Path, count: int) -> tuple[Run, Run]:
    """persist-queue: put, then get and ack one by one."""
    from persistqueue import Empty, SQLiteAckQueue
    from persistqueue.serializers import json as json_serializer

    queue = SQLiteAckQueue(str(folder / "persist"), auto_commit=True, serializer=json_serializer)
    put = timed(count, lambda: [queue.put(PAYLOAD) for _ in range(count)])

    def drain() -> None:
        while True:
            try:
                item = queue.get(block=False)
            except Empty:
                return
            queue.ack(item)

    return put, timed(count, drain)


PEERS = {"huey": huey_drain, "litequeue": litequeue_drain, "persist-queue": persistqueue_drain}


def raw_drain(folder: Path, count: int) -> tuple[Run, Run]:
    """A bare sqlite3 loop: insert with executemany; then per transaction delete 100 and insert their history rows."""
    import json

    db = durable(folder / "raw.db")
    db.execute("CREATE TABLE live (id TEXT PRIMARY KEY, queue TEXT, due INTEGER, payload BLOB)")
    db.execute("CREATE INDEX ready ON live (queue, due)")
    db.execute("CREATE TABLE history (id TEXT PRIMARY KEY, queue TEXT, due INTEGER, payload BLOB, ended INTEGER)")
    rows = [(str(uuid.uuid4()), "mails", number) for number in range(count)]

    def fill() -> None:
        for start in range(0, count, 1000):
            db.execute("BEGIN IMMEDIATE")
            db.executemany(
                "INSERT INTO live VALUES (?, ?, ?, ?)",
                [(*row, json.dumps(PAYLOAD).encode()) for row in rows[start : start + 1000]],
            )
            db.execute("COMMIT")

    def drain() -> None:
        while True:
            db.execute("BEGIN IMMEDIATE")
            batch = db.execute(
                "SELECT id, queue, due, payload FROM live WHERE queue = 'mails' AND due <= ? ORDER BY due LIMIT 100",
                (count,),
            ).fetchall()
            db.executemany("DELETE FROM live WHERE id = ?", [(row[0],) for row in batch])
            db.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?)", [(*row, 1) for row in batch])
            db.execute("COMMIT")
            if not batch:
                return

    return timed(count, fill), timed(count, drain)
