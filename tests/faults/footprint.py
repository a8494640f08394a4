"""What the data of a space takes on its server, asked of nobody but the server: rows, bytes, logs, memory."""

import contextlib
import resource
import socket
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from tests.faults.arena import Arena
from tests.stores.own_servers import mysql_cursor

SPACE = "penstock"
Sizes = dict[str, int]


def footprint(play: Arena) -> Sizes:
    """Every measure by its name; those of bytes end with it."""
    match play.kind:
        case "sqlite":
            return _sqlite(Path(urlsplit((play.folder / "url").read_text()).path.removeprefix("/")))
        case "postgresql":
            return _postgres(play.server)
        case "mysql":
            return _mysql(play.server)
        case "redis":
            return _redis(play.server)
        case "zookeeper":
            return _zookeeper(play.server)
    raise AssertionError(f"nobody can measure {play.kind}")


def _sqlite(path: Path) -> Sizes:
    with contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as db:
        db.execute("PRAGMA wal_autocheckpoint = 0")
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'penstock*'").fetchall()
        rows = {f"{name} rows": db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for (name,) in tables}
    wal = path.with_name(path.name + "-wal")
    return {**rows, "file bytes": path.stat().st_size, "WAL bytes": wal.stat().st_size if wal.exists() else 0}


def _postgres(server: Any) -> Sizes:
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as db:
        tables = db.execute(
            "SELECT c.relname, pg_total_relation_size(c.oid), coalesce(s.n_dead_tup, 0)"
            " FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid"
            " WHERE c.relkind = 'r' AND c.relname LIKE 'penstock%'"
        ).fetchall()
        rows = {f"{name} rows": _first(db.execute(f"SELECT count(*) FROM {name}").fetchone()) for name, _, _ in tables}
        wal = _first(db.execute("SELECT coalesce(sum(size), 0)::bigint FROM pg_ls_waldir()").fetchone())
    return {
        **rows,
        **{f"{name} bytes": size for name, size, _ in tables},
        "dead rows": sum(dead for _, _, dead in tables),
        "WAL bytes": wal,
    }


def _first(row: Any) -> int:
    return int(row[0])


def _mysql(server: Any) -> Sizes:
    with mysql_cursor(server.port, database="penstock") as cursor:
        cursor.execute("SHOW TABLES LIKE 'penstock%'")
        names = [name for (name,) in cursor.fetchall()]
        rows: Sizes = {}
        for name in names:
            cursor.execute(f"SELECT count(*) FROM {name}")
            rows[f"{name} rows"] = cursor.fetchone()[0]
        cursor.execute("SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
        (undo,) = cursor.fetchone()
    data = server.folder / "data"
    files = {f"{path.stem} bytes": path.stat().st_size for path in (data / "penstock").glob("*.ibd")}
    system = sum(path.stat().st_size for path in (*data.glob("ibdata*"), *data.glob("undo*")))
    return {**rows, **files, "system and undo bytes": system, "history list": undo}


def _redis(server: Any) -> Sizes:
    with Redis(port=server.port) as client:
        memory: dict[str, Any] = client.info("memory")
        # Replies are kept for a quarter of an hour, whatever else is forgotten sooner.
        kinds = Counter(key.decode().split(":")[1] for key in client.scan_iter(count=1000) if b":reply:" not in key)
        hashes = {name: client.hlen(f"{{{SPACE}}}:{name}") for name in ("entries", "states", "ids", "history", "nodes")}
        log = client.info("persistence").get("aof_current_size", 0)
    return {
        **{f"{name} rows": count for name, count in hashes.items()},
        "keys": sum(kinds.values()),
        "data bytes": int(memory["used_memory_dataset"]),
        "used bytes": int(memory["used_memory"]),
        "functions bytes": int(memory["used_memory_functions"]),
        "Lua bytes": int(memory["used_memory_vm_functions"]) + int(memory["used_memory_scripts_eval"]),
        "append-only file bytes": int(log),
    }


def _zookeeper(server: Any) -> Sizes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(b"mntr")
        answer = b""
        while part := link.recv(65536):
            answer += part
    said = dict(line.split("\t", 1) for line in answer.decode().splitlines() if "\t" in line)
    statm = Path(f"/proc/{server.process.pid}/statm").read_text()
    return {
        "znodes": int(said["zk_znode_count"]),
        "watches": int(said["zk_watch_count"]),
        "ephemerals": int(said["zk_ephemerals_count"]),
        "data bytes": int(said["zk_approximate_data_size"]),
        "process bytes": int(statm.split()[1]) * resource.getpagesize(),
    }
