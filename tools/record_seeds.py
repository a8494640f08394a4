"""Let the Java originals write their tables and keys, and record those for ``tests/adopt``.

``python -m tools.record_seeds JARS`` expects a folder with one folder of jars per library: ``killbill``, ``redisques``,
``delayedqueue``. The first two come from Maven Central (``killbill-queue`` 0.26.15 with ``killbill-api`` 0.54.0,
``ST4`` and a JDBC driver for each database;
``redisques`` 3.1.0); delayedQueue is not there and has to be built from its tag 0.5.1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pymysql
import redis
from pymysql.constants import CLIENT
from tests.adopt.layout import KILLBILL_TABLES, killbill_ddl
from tools.servers import Mysql, Postgres, Redis, free_port

HERE = Path(__file__).parent.parent / "tests" / "adopt"
TIMEOUT = 60


def main(jars: Path) -> None:
    """Record all of them."""
    with tempfile.TemporaryDirectory() as made:
        classes = Path(made)
        record("killbill-postgresql", killbill_postgresql(jars, classes))
        record("killbill-mariadb", killbill_mariadb(jars, classes))
        record("delayedqueue", delayed_queue(jars, classes))
        keys, exchanges = redisques(jars, classes)
        record("redisques", keys)
        record("redisques-http", exchanges)


def record(name: str, value: Any) -> None:
    """Write one recording."""
    path = HERE / "data" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def java(jars: Path, classes: Path, library: str, program: str, *arguments: str, **properties: str) -> list[str]:
    """Compile a program of ours; the command that runs it."""
    path = f"{jars / library}/*"
    subprocess.run(
        ["javac", "-nowarn", "-cp", path, "-d", str(classes), str(HERE / "java" / f"{program}.java")], check=True
    )
    given = [f"-D{name}={value}" for name, value in properties.items()]
    return ["java", *given, "-cp", f"{classes}:{path}", program, *arguments]


def killbill_postgresql(jars: Path, classes: Path) -> dict[str, Any]:
    """The four tables in PostgreSQL."""
    server = Postgres().start()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(killbill_ddl("postgresql"))
            run_killbill(
                jars, classes, f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?user=penstock",
                "org.postgresql.ds.PGSimpleDataSource",
            )  # fmt: skip
            return {table: rows_of(connection.cursor(), table) for table in KILLBILL_TABLES}
    finally:
        server.close()


def killbill_mariadb(jars: Path, classes: Path) -> dict[str, Any]:
    """The four tables in MariaDB."""
    server = Mysql().start()
    try:
        with pymysql.connect(
            host="127.0.0.1", port=server.port, user="root", database="mysql", autocommit=True, ssl_disabled=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
        ) as connection:  # fmt: skip
            cursor = connection.cursor()
            cursor.execute("CREATE DATABASE killbill; USE killbill;" + killbill_ddl("mysql"))
            while cursor.nextset():
                pass
            run_killbill(
                jars, classes, f"jdbc:mariadb://127.0.0.1:{server.port}/killbill?user=root",
                "org.mariadb.jdbc.MariaDbDataSource",
            )  # fmt: skip
            return {table: rows_of(cursor, table) for table in KILLBILL_TABLES}
    finally:
        server.close()


def run_killbill(jars: Path, classes: Path, url: str, source: str) -> None:
    """One node after the other."""
    for phase in ("first", "second"):
        name = {"org.killbill.queue.creator.name": f"{phase}-node"}
        command = java(jars, classes, "killbill", "KillbillWriter", url, source, phase, **name)
        subprocess.run(command, check=True, timeout=TIMEOUT)


def rows_of(cursor: Any, table: str) -> dict[str, Any]:
    """A table as it is."""
    cursor.execute(f"SELECT * FROM {table} ORDER BY record_id")
    return {"columns": [one[0] for one in cursor.description], "rows": [list(row) for row in cursor.fetchall()]}


def delayed_queue(jars: Path, classes: Path) -> dict[str, Any]:
    """The keys of delayedQueue."""
    server = Redis().start()
    try:
        command = java(jars, classes, "delayedqueue", "DelayedQueueWriter", f"redis://127.0.0.1:{server.port}")
        subprocess.run(command, check=True, timeout=TIMEOUT)
        return keys_of(server.port)
    finally:
        server.close()


def keys_of(port: int) -> dict[str, Any]:
    """All keys of a Redis server, by type."""
    client = redis.Redis(port=port, decode_responses=True)
    read = {
        "zset": lambda key: [[member, score] for member, score in client.zrange(key, 0, -1, withscores=True)],
        "hash": client.hgetall,
        "list": lambda key: client.lrange(key, 0, -1),
        "string": client.get,
    }
    kinds = {key: client.type(key) for key in sorted(client.keys())}
    return {key: {"type": kind, "value": read[kind](key)} for key, kind in kinds.items()}


REQUEST = {
    "method": "PUT", "uri": "/shop/orders/17?full=true",
    "headers": [["x-queue", "orders"], ["content-type", "application/json"]],
    "payloadObject": {"total": 17, "name": "käse"}, "queueTimestamp": 1_700_000_000_000,
}  # fmt: skip
TEXT = {
    "method": "POST", "uri": "/shop/notes", "headers": [["content-type", "text/plain"]], "payloadString": "hello",
}  # fmt: skip
# What is asked of the real interface, in this order; the recording has what it answered.
ASKED: list[tuple[str, str, Any]] = [
    ("GET", "/", None),
    ("GET", "/queues", None), ("GET", "/queues?count", None), ("GET", "/locks", None), ("GET", "/monitor", None),
    ("PUT", "/locks/orders", {}), ("GET", "/locks/orders", None), ("GET", "/locks/nobody", None),
    ("PUT", "/enqueue/orders/", REQUEST), ("PUT", "/enqueue/orders/", TEXT), ("PUT", "/enqueue/orders/", "{bad"),
    ("PUT", "/enqueue/orders/", {"method": "PUT"}),
    ("PUT", "/enqueue/notes%3Aann/?locked", TEXT), ("PUT", "/enqueue/notes%3Aann/?locked=true", "{bad"),
    ("PUT", "/enqueue/free/?locked=false", TEXT),
    ("POST", "/queues/orders/", TEXT), ("POST", "/queues/orders/", "{bad"),
    ("GET", "/queues", None), ("GET", "/queues?filter=ord", None), ("GET", "/queues?filter=nothing", None),
    ("GET", "/queues?filter=*abc", None), ("GET", "/queues?count", None), ("GET", "/queues?count=true&filter=o", None),
    ("GET", "/queues?count&filter=*abc", None),
    ("GET", "/queues/orders", None), ("GET", "/queues/orders?limit=2", None), ("GET", "/queues/orders?limit=x", None),
    ("GET", "/queues/orders?count", None), ("GET", "/queues/nobody", None), ("GET", "/queues/nobody?count", None),
    ("GET", "/queues/notes%3Aann", None),
    ("GET", "/queues/orders/0", None), ("GET", "/queues/orders/1", None), ("GET", "/queues/orders/9", None),
    ("GET", "/queues/orders/x", None), ("GET", "/queues/nobody/0", None),
    ("PUT", "/queues/free/0", TEXT), ("PUT", "/queues/free/0", "{bad"), ("DELETE", "/queues/free/0", None),
    ("PUT", "/queues/orders/1", REQUEST), ("GET", "/queues/orders/1", None), ("PUT", "/queues/orders/9", REQUEST),
    ("PUT", "/queues/orders/1", "{bad"), ("PUT", "/queues/orders/x", REQUEST),
    ("DELETE", "/queues/orders/9", None), ("DELETE", "/queues/orders/x", None), ("DELETE", "/queues/orders/2", None),
    ("DELETE", "/queues/orders/2", None),
    ("GET", "/monitor", None), ("GET", "/monitor?limit=1", None), ("GET", "/monitor?limit=x", None),
    ("GET", "/monitor?emptyQueues", None), ("GET", "/monitor/orders", None),
    ("GET", "/locks", None), ("GET", "/locks?filter=ord", None), ("GET", "/locks?filter=*abc", None),
    ("POST", "/locks", {"locks": ["a", "b"]}), ("POST", "/locks", {"locks": [1]}), ("POST", "/locks", {"other": []}),
    ("POST", "/locks", "{bad"), ("POST", "/locks", {"locks": []}),
    ("POST", "/locks?bulkDelete", {"locks": ["a", "none"]}), ("POST", "/locks?bulkDelete=true", {"locks": [1]}),
    ("POST", "/locks?bulkDelete", {"locks": []}), ("POST", "/locks?bulkDelete", {}),
    ("POST", "/locks?bulkDelete", "{bad"),
    ("DELETE", "/locks/b", None), ("DELETE", "/locks/b", None), ("GET", "/locks", None),
    ("PUT", "/queues/orders", TEXT), ("POST", "/queues", {"queues": ["free"]}),
    ("POST", "/queues?bulkDelete", {"queues": ["free", "none"]}), ("POST", "/queues?bulkDelete", {"queues": [1]}),
    ("POST", "/queues?bulkDelete", {"queues": []}), ("POST", "/queues?bulkDelete", {}),
    ("POST", "/queues?bulkDelete", "{bad"),
    ("DELETE", "/queues/orders", None), ("DELETE", "/queues/orders", None), ("GET", "/locks/orders", None),
    ("PUT", "/enqueue/orders/", TEXT), ("DELETE", "/queues/orders?unlock", None), ("GET", "/locks/orders", None),
    ("GET", "/configuration", None), ("GET", "/configuration/", None),
    ("POST", "/configuration", {"processorDelayMax": 0}),
    ("POST", "/configuration", {"processorDelayMax": "x"}), ("POST", "/configuration", {"other": 1}),
    ("POST", "/configuration", {}), ("POST", "/configuration", "{bad"),
    ("GET", "/statistics", None), ("GET", "/statistics?filter=*abc", None), ("GET", "/speed", None),
    ("GET", "/speed?filter=*abc", None),
    ("DELETE", "/locks", None), ("DELETE", "/locks", None), ("GET", "/unknown", None),
    ("DELETE", "/configuration", None),
    ("GET", "/queues/", None), ("GET", "/locks/", None), ("GET", "/monitor/", None),
]  # fmt: skip


def redisques(jars: Path, classes: Path) -> tuple[dict[str, Any], list[Any]]:
    """The keys of redisques, and what its HTTP interface answered."""
    server, port = Redis().start(), free_port()
    command = java(jars, classes, "redisques", "RedisquesServer", str(server.port), str(port))
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert node.stdout is not None
        while "started" not in node.stdout.readline():
            pass
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}/queuing", timeout=30) as client:
            exchanges = [exchange(client, *asked) for asked in ASKED]
            fill(client)
            await_failures(server.port)
        keys = keys_of(server.port)
    finally:
        node.kill()
        node.wait()
        server.close()
    return keys, exchanges


def await_failures(port: int) -> None:
    """Its processor refuses what is not locked, and it counts that."""
    deadline = time.monotonic() + TIMEOUT
    with redis.Redis(port=port) as client:
        while not client.hexists("redisques:stats", "free"):
            assert time.monotonic() < deadline, "redisques counted no failure"
            time.sleep(0.1)


def exchange(client: httpx2.Client, method: str, path: str, body: Any) -> dict[str, Any]:
    """One request and its answer."""
    answer = ask(client, method, path, body)
    return {
        "method": method, "path": path, "body": body, "status": answer.status_code,
        "type": answer.headers.get("content-type"), "answer": answer.text,
    }  # fmt: skip


def ask(client: httpx2.Client, method: str, path: str, body: Any) -> httpx2.Response:
    """Send one request; a text is sent as it is."""
    content = None if body is None else body if isinstance(body, str) else json.dumps(body)
    return client.request(method, path, content=content, headers={"x-rp-usr": "ann"})


def fill(client: httpx2.Client) -> None:
    """What is to be taken over: two locked queues, one free one, one that is locked and empty."""
    ask(client, "PUT", "/locks/empty", {})
    for number in range(5):
        ask(client, "PUT", "/enqueue/orders/?locked", {**REQUEST, "uri": f"/shop/orders/{number}"})
    ask(client, "PUT", "/enqueue/notes%3Aann/?locked", TEXT)
    ask(client, "PUT", "/enqueue/notes%3Aann/?locked", TEXT)  # the same once more
    for number in range(3):
        ask(client, "PUT", "/enqueue/free/", {**TEXT, "uri": f"/shop/notes/{number}"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
