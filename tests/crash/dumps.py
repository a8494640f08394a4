"""What a store holds, read with nothing but its driver: rows for the checker, whatever Penstock would say about them.

The formats are written down here a second time on purpose. A store that mixes up its own records fails to be read.
"""

import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

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
        dump = _read_collections(lambda statement: [*map(dict, db.execute(statement))], space, _by_record)
        dump.damage += [line for (line,) in db.execute("PRAGMA integrity_check") if line != "ok"]
        return dump


def _read_postgres(url: str, space: str) -> Dump:
    import psycopg
    from psycopg.rows import dict_row

    address, _, query = url.partition("?")
    options = [part for part in query.split("&") if part.startswith("options=")]
    with psycopg.connect("?".join([address, *options]), row_factory=dict_row) as db:
        db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return _read_collections(lambda statement: db.execute(statement).fetchall(), space, _by_arrays)


ARRAYS = ("seqs", "bodies", "dues", "generations", "attempts", "fences", "suspects", "errors")

Ask = Callable[[str], list[Row]]
Places = tuple[list[Row], list[Row], list[str]]  # what waits, what is held, and what does not fit together


def _by_arrays(ask: Ask, space: str) -> Places:
    """Claims that tell in arrays what they hold."""
    held: list[Row] = []
    damage: list[str] = []
    for claim in ask(f"SELECT * FROM {space}_claims"):
        columns = [claim[name] for name in ARRAYS]
        if len({len(column) for column in columns}) != 1 or not claim["seqs"]:
            damage.append(f"claim {claim['claim']} holds arrays of different lengths")
        if (claim["low"], claim["high"]) != (min(claim["seqs"]), max(claim["seqs"])):
            damage.append(f"claim {claim['claim']} says it holds other entries than it does")
        held += [
            {"seq": seq, "body": body, "number": claim["number"], "generation": generation, "attempt": attempt,
             "fence": fence}
            for seq, body, _, generation, attempt, fence, _, _ in zip(*columns, strict=True)
        ]  # fmt: skip
    return ask(f"SELECT * FROM {space}_ready"), held, damage


def _by_record(ask: Ask, space: str) -> Places:
    """Entries that tell which claim holds them."""
    claims = {claim["record"]: claim for claim in ask(f"SELECT * FROM {space}_claims")}
    waiting, held = [], []
    damage: list[str] = []
    for row in ask(f"SELECT * FROM {space}_ready"):
        (waiting if row["record"] is None else held).append(row)
        if row["record"] is not None:
            claim = claims.get(row["record"])
            if claim is None:
                damage.append(f"entry {row['seq']} is held by record {row['record']}, which is gone")
            elif row["seq"] not in msgspec.json.decode(claim["seqs"]) or row["number"] != claim["number"]:
                damage.append(f"entry {row['seq']} is held by claim {claim['claim']}, which does not name it")
    holding = {row["record"] for row in held}
    damage += [f"claim {claim['claim']} holds nothing" for record, claim in claims.items() if record not in holding]
    return waiting, held, damage


def _by_rows(ask: Ask, space: str) -> Places:
    """Held entries that have a row each."""
    claims = {claim["record"]: claim for claim in ask(f"SELECT * FROM {space}_claims")}
    rows = ask(f"SELECT * FROM {space}_held")
    held: list[Row] = []
    damage: list[str] = []
    for record, claim in claims.items():
        if claim["size"] != [row["record"] for row in rows].count(record) or not claim["size"]:
            damage.append(f"claim {claim['claim']} says it holds {claim['size']} entries, and does not")
    for row in rows:
        claim = claims.get(row["record"], {"claim": "none", "number": 0})
        if claim["claim"] != row["claim"]:
            damage.append(f"entry {row['seq']} is held by claim {row['claim']}, which does not know it")
        else:
            held.append({**row, "number": claim["number"]})
    return ask(f"SELECT * FROM {space}_ready"), held, damage


def _read_collections(ask: Ask, space: str, places: Callable[[Ask, str], Places]) -> Dump:
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

    waiting, claimed, damage = places(ask, space)
    dump.damage += damage
    held = [whole(row, leased=True) for row in claimed]
    dump.live = [*(whole(row, leased=False) for row in waiting), *held]
    for seq in {row["seq"] for row in dump.live if [one["seq"] for one in dump.live].count(row["seq"]) > 1}:
        dump.damage.append(f"entry {seq} is live twice")
    in_flight = {row["in_flight"] for row in queues.values() if row["in_flight"] is not None}
    fifo = {row["seq"] for row in held if queues[row["number"]]["fifo"]}
    if in_flight != fifo:
        dump.damage.append(f"FIFO queues say that {in_flight} are in flight, and {fifo} are held")
    for row in ask(f"SELECT * FROM {space}_history ORDER BY seq"):
        token = None if row["claim"] is None else f"{row['fence']}-{row['claim']}"
        dump.history.append(whole(row, token=token))
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

        def ask(statement: str) -> list[Row]:
            cursor.execute(statement)
            return list(cursor.fetchall())

        return _read_collections(ask, space, _by_rows)


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

_BODY = struct.Struct(">BBqQqI")  # flags, priority, created, first due, expires, size of the list
_STATE = struct.Struct(">BQ6s6sIIIB")  # priority, due, sequence number, number of the body, attempt, …, flags
_META = ("id", "queue", "codec", "type", "labels", "headers", "unique_key", "unique_mode")
_CLAIM = ("claim", "owner", "claimed", "most", "queue", "node", "plain")
_ENDED = ("state", "ended", "claim", "owner", "queue", "error", "node", "settled")
_SIGN = 1 << 63
_STRIPPED = 8  # the flag of a body whose payload is gone


def _read_redis(port: int, space: str) -> Dump:
    from redis import Redis

    with Redis(port=port) as client:
        return _RedisSpace(client, f"{{{space}}}:").dump()


class _RedisSpace:
    """All keys of a space, read in one moment."""

    def __init__(self, client: Any, prefix: str) -> None:
        named = {name: list(client.scan_iter(f"{prefix}{name}:*")) for name in ("live", "ready", "suspect", "parked")}
        pipe = client.pipeline(transaction=True)
        for name in ("entries", "states", "ids", "claims", "history", "dead", "holds"):
            pipe.hgetall(f"{prefix}{name}")
        pipe.zrange(f"{prefix}until", 0, -1)
        for keys in named.values():
            for key in keys:
                pipe.zrange(key, 0, -1)
        self.bodies, self.states, self.ids, self.claims, self.history, self.dead, self.holds, self.until, *sets = (
            pipe.execute()
        )
        self.live: dict[bytes, str] = {}
        self.waiting: list[bytes] = []
        fifo = {name.decode() for name, text in client.hgetall(f"{prefix}queues").items()
                if msgspec.msgpack.decode(text).get("fifo")}  # fmt: skip
        for key, members in zip([key for keys in named.values() for key in keys], sets, strict=True):
            _, name, queue, *_ = [*key.decode().split(":"), ""]
            for member in members:
                if name == "live":
                    self.live[member] = queue
                else:
                    self.waiting.append(member[1:7] if queue in fifo else member[9:15])
        self.named: set[bytes] = set()  # numbers of bodies that something refers to
        self.damage: list[str] = []

    def dump(self) -> Dump:
        """Rows, and whatever does not fit together."""
        claimed = self._claimed()
        dump = Dump(
            live=[self._live(number, claimed) for number in sorted(self.live)],
            history=self._history(),
            dead=self._dead(),
        )
        for scope, text in self.holds.items():
            until, _, id_ = text.decode().partition(" ")
            dump.holds.append({"unique_key": scope.decode(), "id": id_, "until": int(until) or None})
        held = list(claimed)
        self._differ("live and not in one place", sorted(self.live), sorted([*self.waiting, *held]))
        self._differ("claims and their ends", sorted(self.claims), sorted(self.until))
        self._differ("bodies and what refers to them", sorted(self.bodies), sorted(self.named))
        dump.damage += self.damage
        return dump

    def _differ(self, what: str, one: list[bytes], other: list[bytes]) -> None:
        if one != other:
            self.damage.append(f"{what}: {sorted(set(one) ^ set(other)) or 'twice'}")

    def _claimed(self) -> dict[bytes, tuple[bytes, Row]]:
        """By sequence number the item and the record of what is leased."""
        found: dict[bytes, tuple[bytes, Row]] = {}
        for key, text in self.claims.items():
            head, rest = _head(">H", text, _CLAIM)
            count = len(rest) // (6 + _STATE.size)
            for index in range(count):
                number = rest[6 * index : 6 * index + 6]
                start = 6 * count + _STATE.size * index
                found[number] = rest[start : start + _STATE.size], head
                if self.states.get(number) != b"C" + key:
                    self.damage.append(f"{number!r} is held by {key!r}, but its state is {self.states.get(number)!r}")
        return found

    def _live(self, number: bytes, claimed: dict[bytes, tuple[bytes, Row]]) -> Row:
        state = self.states.get(number)
        if number in claimed:
            text, head = claimed[number]
            row = self._entry(text)
            lease = {"token": f"{row['fence']}-{head['claim']}", "owner": head["owner"], "claimed": head["claimed"]}
            return {**row, **lease, "leased": True}
        if state is None:
            body = self.bodies[number]
            text = body[1:2] + body[10:18] + number + number + struct.pack(">IIIB", 0, 1, 0, 0)
        else:
            assert state[:1] in (b"W", b"P"), f"{number!r} lives and its state is {state!r}"
            text = state[1:35]
        row = self._entry(text)
        if self.ids.get(row["id"].encode()) != number:
            self.damage.append(f"{row['id']} is not known by its id")
        if row["queue"] != self.live[number]:
            self.damage.append(f"{row['id']} of {row['queue']} is in the index of {self.live[number]}")
        return {**row, "token": None, "owner": None, "leased": False}

    def _history(self) -> list[Row]:
        rows: list[Row] = []
        for first, text in sorted(self.history.items()):
            head, rest = _head(">I", text, _ENDED)
            count = len(rest) // (_STATE.size + 8)
            for index in range(count):
                row = self._entry(rest[_STATE.size * index : _STATE.size * (index + 1)])
                (started,) = struct.unpack_from(">q", rest, _STATE.size * count + 8 * index)
                token = None if head["claim"] is None else f"{row['fence']}-{head['claim']}"
                if row["queue"] != head["queue"]:
                    self.damage.append(f"{row['id']} of {row['queue']} has a row of {head['queue']}")
                rows.append({
                    **row, "state": head["state"], "ended": head["ended"], "owner": head["owner"],
                    "error": head["error"], "started": started or None, "token": token,
                    "seq": int.from_bytes(first, "big") + index,
                })  # fmt: skip
        return rows

    def _dead(self) -> list[Row]:
        rows = []
        for number, text in sorted(self.dead.items()):
            (ended,) = struct.unpack_from(">q", text)
            _, error = msgspec.msgpack.decode(text[8 + _STATE.size :])
            row = self._entry(text[8 : 8 + _STATE.size])
            if self.states.get(number, b"")[:1] != b"D":
                self.damage.append(f"{row['id']} is a dead letter and its state is {self.states.get(number)!r}")
            rows.append({**row, "state": "dead", "ended": ended, "error": error or None, "token": None, "owner": None})
        return rows

    def _entry(self, text: bytes) -> Row:
        """The item and the body it names."""
        priority, due, seq, number, attempt, generation, fence, flags = _STATE.unpack(text)
        self.named.add(number)
        body = self.bodies[number]
        body_flags, _, created, first_due, expires, size = _BODY.unpack_from(body)
        payload = None if body_flags & _STRIPPED else body[_BODY.size + size :].hex()
        listed = msgspec.msgpack.decode(body[_BODY.size : _BODY.size + size])
        meta = dict.fromkeys(_META) | dict(zip(_META, listed, strict=False))
        return {
            **{key: None if value is False else value for key, value in meta.items()},
            "priority": 100 - priority, "due": due - _SIGN, "seq": int.from_bytes(seq, "big"), "attempt": attempt,
            "generation": generation, "fence": fence, "suspect": flags % 2 == 1, "created": created,
            "first_due": first_due - _SIGN, "expires": expires or None, "payload": payload,
        }  # fmt: skip


def _head(form: str, text: bytes, names: tuple[str, ...]) -> tuple[Row, bytes]:
    (size,), start = struct.unpack_from(form, text), struct.calcsize(form)
    head = dict(zip(names, msgspec.msgpack.decode(text[start : start + size]), strict=True))
    return {key: None if value is False else value for key, value in head.items()}, text[start + size :]


# --- ZooKeeper -------------------------------------------------------------------------------------------------------

_PUT = (
    "number", "id", "digest", "codec", "type", "created", "labels", "headers", "unique_key", "unique_mode", "period"
)  # fmt: skip
_LIVE = (
    "number", "seq", "priority", "due", "first_due", "generation", "attempt", "fence", "suspect", "expires", "node",
    "error",
)  # fmt: skip
_HELD = ("owner", "claimed", "until", "max_attempts", "session", "held")
_ROW = (
    "seq", "state", "attempt", "owner", "started", "ended", "error", "claim", "id", "digest", "live"
)  # fmt: skip


def _read_zookeeper(port: int, root: str) -> Dump:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=f"127.0.0.1:{port}")
    client.start()
    try:
        return _ZookeeperSpace(client, root).read()
    finally:
        client.stop()
        client.close()


class _ZookeeperSpace:
    """The nodes of a space, and where they contradict each other."""

    def __init__(self, client: Any, root: str) -> None:
        self.client = client
        self.root = root
        self.dump = Dump()

    def below(self, path: str) -> list[str]:
        return sorted(self.client.get_children(path)) if self.client.exists(path) else []

    def all_in(self, path: str) -> Iterator[tuple[str, Any]]:
        names = [f"{path}/{name}" for name in self.below(path)]
        for name, pending in [(name, self.client.get_async(name)) for name in names]:
            yield name.rpartition("/")[2], msgspec.msgpack.decode(pending.get(timeout=20)[0])

    def in_buckets(self, path: str) -> Iterator[Any]:
        for bucket in self.below(path):
            for _, data in self.all_in(f"{path}/{bucket}"):
                yield data

    def read(self) -> Dump:
        for queue in self.below(f"{self.root}/queues"):
            self.read_queue(queue, f"{self.root}/queues/{queue}")
        self.dump.history.sort(key=lambda row: row["seq"])
        ids = [row["id"] for row in self.dump.live]
        self.dump.damage += [f"{id_} is live twice" for id_ in sorted(set(ids)) if ids.count(id_) > 1]
        return self.dump

    def read_queue(self, queue: str, place: str) -> None:
        bodies: dict[int, Row] = {}
        as_put: dict[int, Any] = {}
        for put, payload in self.in_buckets(f"{place}/entries"):
            body, live = msgspec.msgpack.decode(put)
            row = dict(zip(_PUT, body, strict=True))
            bodies[row["number"]] = {**row, "queue": queue, "payload": payload.hex()}
            as_put[row["number"]] = live

        def whole(values: Any, what: str) -> Row:
            live = dict(zip(_LIVE, values, strict=True))
            if live["number"] not in bodies:
                self.dump.damage.append(f"{what} of {queue} speaks of body {live['number']}, which is gone")
                return {"id": f"body {live['number']}", "queue": queue, "payload": None, **live}
            as_put.pop(live["number"], None)
            return {**bodies[live["number"]], **live}

        for name, values in self.all_in(f"{place}/ready"):
            self.dump.live.append({**whole(values, f"ready {name}"), "leased": False, "token": None})
        for name, values in self.all_in(f"{place}/claims"):
            claim = dict(zip(_HELD, values, strict=True))
            if not claim["held"]:
                self.dump.damage.append(f"claim {name} of {queue} holds nothing")
            for held in claim["held"]:
                row = whole(held, f"claim {name}")
                token = f"{row['fence']}-{unquote(name.rpartition('~')[0])}"
                self.dump.live.append({**row, "leased": True, "token": token, "owner": claim["owner"]})
        for values, ended in self.in_buckets(f"{place}/dead"):
            self.dump.dead.append({**whole(values, "a dead letter"), "state": "dead", "ended": ended, "token": None})
        for _, (_, texts, rows, _) in self.all_in(f"{place}/history"):
            for values in rows:
                row = dict(zip(_ROW, values, strict=True))
                live = dict(zip(_LIVE, row.pop("live"), strict=True))
                as_put.pop(live["number"], None)
                token = f"{live['fence']}-{texts[row['claim']]}" if row["claim"] else None
                body = bodies.get(live["number"], {})
                self.dump.history.append({
                    **body, **live, **row, "queue": queue, "owner": texts[row["owner"]], "token": token,
                    "payload": body.get("payload"),
                })  # fmt: skip
        # What nothing else speaks of waits as it was put.
        for live in list(as_put.values()):
            self.dump.live.append({**whole(live, "a body"), "leased": False, "token": None})
        for name, (id_, until) in self.all_in(f"{place}/unique"):
            self.dump.holds.append({"unique_key": name, "id": id_, "until": until})
