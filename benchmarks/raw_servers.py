"""The limit on each server: bare loops over the driver that do the least a queue must do, 100 entries at a time."""

from __future__ import annotations

import json
import uuid
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.measure import Run, timed
from benchmarks.server_peers import BODY, _kazoo

ROW = "id VARCHAR(36) PRIMARY KEY, queue VARCHAR(64), due BIGINT, state INT, payload {blob}"


def postgres_drain(url: str, count: int) -> tuple[Run, Run]:
    """COPY in; then per commit lease 100 with SKIP LOCKED, delete the 100 before and insert their history."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        for table in ("raw_live", "raw_history"):
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE TABLE {table} ({ROW.format(blob='BYTEA')})")
        db.execute("CREATE INDEX raw_ready ON raw_live (queue, due) WHERE state = 0")
        rows = [(str(uuid.uuid4()), "mails", number, 0, BODY) for number in range(count)]

        def fill() -> None:
            for start in range(0, count, 1000):
                with db.cursor().copy("COPY raw_live FROM STDIN") as copy:
                    for row in rows[start : start + 1000]:
                        copy.write_row(row)

        put = timed(count, fill)
        db.execute("ANALYZE raw_live")

        def drain() -> None:
            held: list[str] = []
            while True:
                with db.transaction():
                    if held:
                        db.execute(
                            "WITH gone AS (DELETE FROM raw_live WHERE id = ANY(%s) RETURNING id, queue, due, payload) "
                            "INSERT INTO raw_history SELECT id, queue, due, 2, payload FROM gone",
                            (held,),
                        )
                    found = db.execute(
                        "WITH picked AS (SELECT id FROM raw_live WHERE queue = 'mails' AND state = 0 AND due <= %s "
                        "ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED) "
                        "UPDATE raw_live l SET state = 1 FROM picked WHERE l.id = picked.id RETURNING l.id, l.payload",
                        (count,),
                    ).fetchall()
                held = [row[0] for row in found]
                for row in found:
                    json.loads(row[1])
                if not held:
                    return

        return put, timed(count, drain)


def mysql_drain(url: str, count: int) -> tuple[Run, Run]:
    """Multi-row inserts; then per commit what PostgreSQL does, in the statements that MariaDB has."""
    db = connect_mysql(url)
    cursor = db.cursor()
    for table in ("raw_live", "raw_history"):
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
        cursor.execute(f"CREATE TABLE {table} ({ROW.format(blob='BLOB')}, INDEX (queue, state, due)) ENGINE=InnoDB")
    rows = [(str(uuid.uuid4()), "mails", number, 0, BODY) for number in range(count)]

    def fill() -> None:
        for start in range(0, count, 1000):
            cursor.executemany("INSERT INTO raw_live VALUES (%s, %s, %s, %s, %s)", rows[start : start + 1000])
            db.commit()

    def drain() -> None:
        held: list[str] = []
        while True:
            if held:
                marks = ", ".join(["%s"] * len(held))
                cursor.execute(
                    f"INSERT INTO raw_history SELECT id, queue, due, 2, payload FROM raw_live WHERE id IN ({marks})",
                    held,
                )
                cursor.execute(f"DELETE FROM raw_live WHERE id IN ({marks})", held)
            cursor.execute(
                "SELECT id, payload FROM raw_live WHERE queue = 'mails' AND state = 0 AND due <= %s "
                "ORDER BY due LIMIT 100 FOR UPDATE SKIP LOCKED",
                (count,),
            )
            found = cursor.fetchall()
            held = [row[0] for row in found]
            if held:
                cursor.execute(f"UPDATE raw_live SET state = 1 WHERE id IN ({', '.join(['%s'] * len(held))})", held)
            db.commit()
            for row in found:
                json.loads(row[1])
            if not held:
                return

    put, drained = timed(count, fill), timed(count, drain)
    db.close()
    return put, drained


def connect_mysql(url: str) -> Any:
    import pymysql

    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=unquote(parts.username or ""),
        password=unquote(parts.password or ""), database=parts.path.strip("/"), autocommit=False,
        init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    )  # fmt: skip


CLAIM = """
for i = 1, #ARGV - 2 do
  redis.call('ZREM', KEYS[3], ARGV[i])
  redis.call('HDEL', KEYS[2], ARGV[i])
end
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[#ARGV - 1], 'LIMIT', 0, ARGV[#ARGV])
if #ids == 0 then return {{}, {}} end
redis.call('ZREM', KEYS[1], unpack(ids))
for i = 1, #ids do redis.call('ZADD', KEYS[3], 60, ids[i]) end
return {ids, redis.call('HMGET', KEYS[2], unpack(ids))}
"""


def redis_drain(url: str, count: int) -> tuple[Run, Run]:
    """A sorted set and a hash; one script claims 100 and acknowledges the 100 before. No history."""
    import redis

    client = redis.Redis.from_url(url)
    keys = ("{raw}:ready", "{raw}:payloads", "{raw}:leases")
    client.delete(*keys)
    ids = [str(uuid.uuid4()) for _ in range(count)]

    def fill() -> None:
        for start in range(0, count, 1000):
            part = ids[start : start + 1000]
            with client.pipeline(transaction=True) as pipe:
                pipe.hset(keys[1], mapping=dict.fromkeys(part, BODY))
                pipe.zadd(keys[0], {id_: start + number for number, id_ in enumerate(part)})
                pipe.execute()

    def drain() -> None:
        script = client.register_script(CLAIM)
        held: list[bytes] = []
        while True:
            held, payloads = script(keys=keys, args=[*held, count, 100])
            for payload in payloads:
                json.loads(payload)
            if not held:
                return

    return timed(count, fill), timed(count, drain)


def zookeeper_units(url: str, count: int) -> Run:
    """Units of take 1, put 1: one multi that locks, one that deletes, puts and unlocks."""
    client = _kazoo(url)
    client.ensure_path("/raw/items")
    client.ensure_path("/raw/locks")
    client.ensure_path("/raw/out")
    for start in range(0, count, 500):
        transaction = client.transaction()
        for number in range(start, min(start + 500, count)):
            transaction.create(f"/raw/items/{number:010d}", BODY)
        transaction.commit()

    def work() -> None:
        for name in sorted(client.get_children("/raw/items")):
            take = client.transaction()
            take.check(f"/raw/items/{name}", 0)
            take.create(f"/raw/locks/{name}", b"", ephemeral=True)
            take.commit()
            data, _ = client.get(f"/raw/items/{name}")
            commit = client.transaction()
            commit.delete(f"/raw/locks/{name}")
            commit.delete(f"/raw/items/{name}")
            commit.create(f"/raw/out/{name}", data)
            commit.commit()

    run = timed(count, work)
    client.stop()
    return run
