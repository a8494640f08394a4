"""What a store holds, read with nothing but its driver: rows for the checker, whatever Penstock would say about them.

The formats are written down here a second time on purpose. A store that mixes up its own records fails to be read.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from tests.crash.checker import Dump, Row


def read(url: str) -> Dump:
    """The rows of the store at a URL."""
    parts = urlsplit(url)
    space = parse_qs(parts.query).get("space", ["penstock"])[-1]
    match parts.scheme:
        case "sqlite":
            return read_sqlite(Path(parts.path.removeprefix("/")), space)
        case "postgresql":
            return _read_postgres(url, space)
        case "mysql":
            return _read_mysql(parts.port or 0, parts.path.strip("/"), space)
        case "redis":
            return _read_redis(parts.port or 0, space)
        case "zookeeper":
            return _read_zookeeper(parts.port or 0, f"{parts.path}/{space}")
    raise AssertionError(f"nobody can read {url}")


# --- SQL -------------------------------------------------------------------------------------------------------------


def read_sqlite(path: Path, space: str = "penstock") -> Dump:
    """The rows of a SQLite store."""
    with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("BEGIN")
        dump = _read_tables(lambda statement: map(dict, db.execute(statement)), space)
        dump.damage += [line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
        return dump


def _read_postgres(url: str, space: str) -> Dump:
    import psycopg
    from psycopg.rows import dict_row

    address, _, query = url.partition("?")
    options = [part for part in query.split("&") if part.startswith("options=")]
    with psycopg.connect("?".join([address, *options]), row_factory=dict_row) as db:
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return _read_collections(lambda statement: db.execute(statement).fetchall(), space)


ARRAYS = ("seqs", "bodies", "dues", "generations", "attempts", "fences", "suspects", "errors")


def _read_collections(ask: Callable[[str], list[Row]], space: str) -> Dump:
    """The rows of entries, ready, claims and history, and where these contradict each other."""
    bodies = {row["body"]: row for row in ask(f"SELECT * FROM {space}")}
    queues = {row["number"]: row for row in ask(f"SELECT * FROM {space}_queues")}
    dump = Dump(holds=ask(f"SELECT * FROM {space}_unique"))

    def whole(row: Row, **more: Any) -> Row:
        body = bodies.get(row["body"])
        if body is None:
            dump.damage.append(f"body {row['body']} is gone, but a row of queue {row['number']} refers to it")
            return {"id": f"body {row['body']}", "queue": "?", "payload": None, **row, **more}
        payload = None if body["payload"] is None else body["payload"].hex()
        return {"id": body["id"], "queue": queues[row["number"]]["queue"], "payload": payload, **row, **more}

    dump.live = [whole(row, leased=False) for row in ask(f"SELECT * FROM {space}_ready")]
    held = []
    for claim in ask(f"SELECT * FROM {space}_claims"):
        columns = [
            claim[name]
            for name in ("seqs", "bodies", "dues", "generations", "attempts", "fences", "suspects", "errors")
        ]
        if len({len(column) for column in columns}) != 1 or not claim["seqs"]:
            dump.damage.append(f"claim {claim['claim']} holds arrays of different lengths")
        if (claim["low"], claim["high"]) != (min(claim["seqs"]), max(claim["seqs"])):
            dump.damage.append(f"claim {claim['claim']} says it holds other entries than it does")
        for seq, body, _, generation, attempt, fence, _, _ in zip(*columns, strict=True):
            row = {"seq": seq, "body": body, "number": claim["number"], "generation": generation, "attempt": attempt}
            held.append(whole(row, fence=fence, leased=True))
    dump.live += held
    for seq in {row["seq"] for row in dump.live if [one["seq"] for one in dump.live].count(row["seq"]) > 1}:
        dump.damage.append(f"entry {seq} is live twice")
    in_flight = {row["in_flight"] for row in queues.values() if row["in_flight"] is not None}
    fifo = {row["seq"] for row in held if queues[row["number"]]["fifo"]}
    if in_flight != fifo:
        dump.damage.append(f"FIFO queues say that {in_flight} are in flight, and {fifo} are held")
    for row in ask(f"SELECT * FROM {space}_history ORDER BY seq"):
        token = None if row["claim"] is None else f"{row['fence']}-{row['claim']}"
        kept = row["state"] in ("done", "cancelled", "expired")
        dump.history.append(whole(row, token=token, **({} if kept else {"payload": None})))
    dump.dead = [whole(row, state="dead", token=None) for row in ask(f"SELECT * FROM {space}_dead ORDER BY seq")]
    return dump


def _read_mysql(port: int, database: str, space: str) -> Dump:
    import pymysql
    from pymysql.cursors import DictCursor

    connection = pymysql.connect(
        host="127.0.0.1", port=port, user="root", database=database, cursorclass=DictCursor, ssl_disabled=True
    )
    with closing(connection), connection.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")

        def ask(statement: str) -> Iterable[Row]:
            cursor.execute(statement)
            return cursor.fetchall()

        return _read_tables(ask, space)


def _read_tables(ask: Callable[[str], Iterable[Any]], space: str) -> Dump:
    def rows(statement: str) -> list[Row]:
        return [{key: value.hex() if isinstance(value, bytes) else value for key, value in row.items()}
                for row in ask(statement)]  # fmt: skip

    dump = Dump(
        live=rows(f"SELECT e.*, l.queue AS its_queue FROM {space} e LEFT JOIN {space}_lanes l ON l.lane = e.lane"),
        history=rows(f"SELECT * FROM {space}_history ORDER BY seq"),
        dead=rows(f"SELECT * FROM {space}_dead ORDER BY seq"),
        holds=rows(f"SELECT * FROM {space}_unique"),
    )
    for row in dump.live:
        row["leased"] = row["state"] == 1
        if row["its_queue"] != row["queue"]:
            dump.damage.append(f"{row['id']} of {row['queue']} is in the lane of {row['its_queue']}")
    return dump


# --- Redis -----------------------------------------------------------------------------------------------------------

_PREFIX = struct.Struct("<IIdIBB")
_KEPT = (
    "id", "queue", "node", "seq", "priority", "created", "due", "first_due", "expires", "attempt", "generation",
    "fence", "suspect", "parked", "labels", "headers", "unique_key", "unique_mode", "error", "codec", "type",
    "settled", "nonce", "owner", "claimed", "most",
)  # fmt: skip
_ENDED = ("state", "started", "ended", "error", "attempt", "settled")


def _read_redis(port: int, space: str) -> Dump:
    from redis import Redis

    with Redis(port=port) as client:
        pipe = client.pipeline(transaction=True)  # one moment for all of it
        for name in ("live", "payloads", "rows", "dead", "holds"):
            pipe.hgetall(f"{{{space}}}:{name}")
        pipe.zrange(f"{{{space}}}:leases", 0, -1)
        live, payloads, rows, dead, holds, leases = pipe.execute()
        indexed = {id_ for key in client.scan_iter(f"{{{space}}}:all:*") for id_ in client.zrange(key, 0, -1)}

    def payload(seq: int) -> str | None:
        found = payloads.get(b"%015d" % seq)
        return None if found is None else found.hex()

    dump = Dump()
    for text in live.values():
        row = _entry(text)
        dump.live.append({**row, "payload": payload(row["seq"]), "leased": row["token"] is not None})
    for seq, text in sorted(rows.items(), key=lambda pair: int(pair[0])):
        row = _ended(text)
        kept = payload(row["seq"]) if row["state"] in ("done", "cancelled", "expired") else None
        dump.history.append({**row, "seq": int(seq), "payload": kept})
    for text in dead.values():
        row = _ended(text)
        dump.dead.append({**row, "payload": payload(row["seq"])})
    for scope, text in holds.items():
        until, _, id_ = text.decode().partition(" ")
        dump.holds.append({"unique_key": scope.decode(), "id": id_, "until": int(until) or None})
    leased = {row["id"].encode() for row in dump.live if row["leased"]}
    dump.damage += [f"{id_} is not in the index of its queue" for id_ in sorted(set(live) - indexed)]
    dump.damage += [f"{id_} is in the index of a queue and nowhere else" for id_ in sorted(indexed - set(live))]
    dump.damage += [f"the lease of {id_} would never run out" for id_ in sorted(leased - set(leases))]
    dump.damage += [f"{id_} has the end of a lease and no lease" for id_ in sorted(set(leases) - leased)]
    dump.damage += [f"{row['id']} has no payload" for row in dump.live if row["payload"] is None]
    return dump


def _entry(text: bytes) -> Row:
    """A prefix of what leases change, then a list."""
    fence, attempt, claimed, _most, _care, size = _PREFIX.unpack_from(text)
    at = _PREFIX.size + size
    parts = []
    for _ in range(2):
        (size,) = struct.unpack_from("<H", text, at)
        parts.append(text[at + 2 : at + 2 + size].decode())
        at += 2 + size
    nonce, owner = parts
    row = dict(zip(_KEPT, msgspec.msgpack.decode(text[at:]), strict=True))
    token = f"{fence}-{nonce}" if nonce else None
    return {
        **{key: None if value is False else value for key, value in row.items()},
        "fence": fence, "attempt": attempt, "claimed": int(claimed), "token": token, "owner": owner or None,
    }  # fmt: skip


def _ended(text: bytes) -> Row:
    (size,) = struct.unpack_from("<H", text)
    head = dict(zip(_ENDED, msgspec.msgpack.decode(text[2 : 2 + size]), strict=True))
    return _entry(text[2 + size :]) | {key: None if value is False else value for key, value in head.items()}


# --- ZooKeeper -------------------------------------------------------------------------------------------------------

_ITEM = (
    "id", "queue", "state", "digest", "codec", "type", "seq", "priority", "created", "due", "first_due", "attempt",
    "generation", "labels", "headers", "unique_key", "expires", "node", "error", "ended", "unique_mode", "period",
    "fence", "attempts", "suspect", "lease", "receipt",
)  # fmt: skip
_ROW = (
    "seq", "id", "queue", "generation", "attempt", "state", "owner", "created", "due", "started", "ended", "error",
    "labels", "headers", "codec", "type", "digest",
)  # fmt: skip


def _read_zookeeper(port: int, root: str) -> Dump:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=f"127.0.0.1:{port}")
    client.start()
    try:
        return _read_nodes(client, root)
    finally:
        client.stop()
        client.close()


def _read_nodes(client: Any, root: str) -> Dump:
    def below(path: str) -> list[str]:
        return sorted(client.get_children(path)) if client.exists(path) else []

    def all_in(path: str) -> Iterator[tuple[str, bytes]]:
        names = [f"{path}/{name}" for name in below(path)]
        for name, pending in [(name, client.get_async(name)) for name in names]:
            yield name.rpartition("/")[2], pending.get(timeout=20)[0]

    dump = Dump()
    for queue in below(f"{root}/queues"):
        place = f"{root}/queues/{queue}"
        changed = {
            name.removeprefix("meta-"): data
            for bucket in below(f"{place}/meta")
            for name, data in all_in(f"{place}/meta/{bucket}")
        }
        locked = {name.removeprefix("lock-") for name in below(f"{place}/locks")}
        for bucket in below(f"{place}/items"):
            for name, data in all_in(f"{place}/items/{bucket}"):
                number = name.removeprefix("item-")
                text, payload = msgspec.msgpack.decode(data)
                row = _item(changed.pop(number, text))
                dump.live.append({**row, "payload": payload.hex(), "leased": row["lease"] is not None})
        dump.damage += [f"{queue} has meta-{number} without an item" for number in changed]
        dump.damage += [f"{queue} has the lock {name} without its twin" for name in locked
                        if (name.partition("_")[0] not in locked if "_" in name
                            else not any(other.startswith(f"{name}_") for other in locked))]  # fmt: skip
        for bucket in below(f"{place}/dlq"):
            for _, data in all_in(f"{place}/dlq/{bucket}"):
                text, payload = msgspec.msgpack.decode(data)
                dump.dead.append({**_item(text), "payload": payload.hex()})
        kept = {name: msgspec.msgpack.decode(data) for name, data in all_in(f"{place}/kept")}
        for page, data in all_in(f"{place}/ended"):
            _, rows, _ = msgspec.msgpack.decode(data)
            for values in rows:
                row = dict(zip(_ROW, values, strict=True))
                found = kept.get(page, {}).get(row["id"]) if row["digest"] else None
                # Rows have no token; the checker takes it from the claim that the attempt was.
                dump.history.append({**row, "payload": None if found is None else found.hex()})
        for name, data in all_in(f"{place}/unique"):
            id_, until = msgspec.msgpack.decode(data)
            dump.holds.append({"unique_key": name, "id": id_, "until": until})
    dump.history.sort(key=lambda row: row["seq"])
    return dump


def _item(text: bytes) -> Row:
    row = dict(zip(_ITEM, msgspec.msgpack.decode(text), strict=True))
    row["token"] = row["lease"][0] if row["lease"] else None
    return row
