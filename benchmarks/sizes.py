"""How much room entries and records take, as slopes between a small and a large store: `python -m benchmarks.sizes`.

Sizes do not depend on how busy the machine is. The result is in ``benchmarks/sizes.json``, and the table in
``docs/operate.md`` is drawn from it; with ``--page`` only the table is written.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools import servers

import penstock

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "sizes.json"
PAGE = ROOT / "docs" / "operate.md"
BEGIN, END = "<!-- sizes -->", "<!-- /sizes -->"
FEW, MANY = 5_000, 25_000
PAYLOADS = (200, 2_000)
BATCHES = (1, 100)
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "mysql": "MariaDB", "redis": "Redis"}

Measure = Callable[[], int]


def payloads(size: int, count: int) -> list[bytes]:
    """Payloads that no store can compress."""
    seed = random.Random(7)
    return [seed.randbytes(size) for _ in range(count)]


def sqlite(stack: ExitStack) -> tuple[str, Measure]:
    """Pages in use, without the write-ahead log."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "queues.db"

    def measure() -> int:
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            pages, free, size = (
                db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
            )
            return int((pages - free) * size)

    return f"sqlite:///{path}?durability=fast", measure


def postgres(stack: ExitStack) -> tuple[str, Measure]:
    """Tables and indexes, once the space of deleted rows is given back."""
    import psycopg

    server = stack.enter_context(closing(servers.Postgres().start()))

    def measure() -> int:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("VACUUM FULL")
            row = db.execute(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'penstock%' AND relkind = 'r'"
            ).fetchone()
            return int(row[0]) if row else 0

    return f"{server.url}?durability=fast", measure


def mysql(stack: ExitStack) -> tuple[str, Measure]:
    """The files of the tables, once the space of deleted rows is given back."""
    import pymysql

    server: Any = stack.enter_context(closing(servers.Mysql().start()))
    url = server.url + ("&" if "?" in server.url else "?") + "durability=fast"

    def measure() -> int:
        with closing(pymysql.connect(host="127.0.0.1", port=server.port, user="root", ssl_disabled=True)) as db:
            cursor = db.cursor()
            cursor.execute(
                "SELECT concat('`', table_schema, '`.`', table_name, '`') FROM information_schema.tables"
                " WHERE table_name LIKE 'penstock%' AND table_type = 'BASE TABLE'"
            )
            names = ", ".join(row[0] for row in cursor.fetchall())
            cursor.execute(f"OPTIMIZE TABLE {names}")
            cursor.fetchall()
            cursor.execute(
                "SELECT sum(file_size) FROM information_schema.innodb_sys_tablespaces WHERE name LIKE '%/penstock%'"
            )
            return int(cursor.fetchone()[0])  # type: ignore[index]

    return url, measure


def redis(stack: ExitStack) -> tuple[str, Measure]:
    """Memory that the server has in use."""
    from redis import Redis

    server = stack.enter_context(closing(servers.Redis().start()))

    def measure() -> int:
        with Redis(port=server.port) as client:
            return int(client.info("memory")["used_memory"])

    return server.url, measure


def entries(store: Callable[[ExitStack], tuple[str, Measure]], payload: int) -> dict[str, int]:
    """Bytes for each entry: while it waits, and after it has ended, with its history."""
    sizes: dict[str, dict[int, int]] = {"waiting": {}, "ended": {}}
    for count in (FEW, MANY):
        with ExitStack() as stack:
            url, measure = store(stack)
            with penstock.open_queues(url) as queues:
                queue = queues.queue("mails", bytes)
                queue.put_many(payloads(payload, count), chunk=1000)
                sizes["waiting"][count] = measure()
                queue.add_handler(lambda value: None)
                penstock.Worker(queues).drain()
                sizes["ended"][count] = measure()
    return {when: round((sizes[when][MANY] - sizes[when][FEW]) / (MANY - FEW)) for when in sizes}


def records(payload: int, batch: int) -> int:
    """Bytes for each record of a file log, appended so many at a time."""
    sizes = {}
    for count in (FEW, MANY):
        with tempfile.TemporaryDirectory() as folder:
            with penstock.open_logs(f"file://{folder}/logs?durability=fast") as logs:
                logs.create("clicks")
                with logs.appender("clicks", bytes) as out:
                    for _ in range(0, count, batch):
                        out.append_many(payloads(payload, batch), keys=["ann"] * batch)
            sizes[count] = sum(path.stat().st_size for path in Path(folder, "logs", "logs").rglob("*.seg"))
    return round((sizes[MANY] - sizes[FEW]) / (MANY - FEW))


def measured() -> dict[str, Any]:
    """All slopes."""
    stores = {"sqlite": sqlite, "postgres": postgres, "mysql": mysql, "redis": redis}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "entries": {name: {str(size): entries(store, size) for size in PAYLOADS} for name, store in stores.items()},
        "records": {str(size): {str(batch): records(size, batch) for batch in BATCHES} for size in PAYLOADS},
    }


def table(result: dict[str, Any]) -> str:
    """The slopes as Markdown."""
    small, large = map(str, PAYLOADS)
    lines = [
        f"| bytes for each | payload of {small} | payload of {int(large):,} |",
        "|---|---:|---:|",
    ]
    for name, sizes in result["entries"].items():
        for when, title in (("waiting", "entry that waits"), ("ended", "entry that has ended, in the history")):
            lines.append(f"| {title}, {NAMES[name]} | {sizes[small][when]:,} | {sizes[large][when]:,} |")
    for batch in map(str, BATCHES):
        how = "appended alone" if batch == "1" else f"of an `append_many` of {batch}"
        lines.append(
            f"| record {how}, file log | {result['records'][small][batch]:,} | {result['records'][large][batch]:,} |"
        )
    measured_at = f"Measured {result['date']} between {FEW:,} and {MANY:,} entries or records, with random bytes."
    return "\n".join(lines) + f"\n\n{measured_at}"


def page() -> str:
    """The page with a fresh table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{table(json.loads(RESULT.read_text()))}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--page" not in sys.argv:
        RESULT.write_text(json.dumps(measured(), indent=1) + "\n")
    PAGE.write_text(page())
