"""The tables of a space, defined once for every SQL database.

Times are microseconds since 1970 in BIGINT columns. A live entry has a row in ``<space>``; when it ends, the row
leaves for ``<space>_history`` (and ``<space>_dead`` if it died), so the table that claims scan stays small.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.mysql import LONGBLOB, MEDIUMTEXT
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable

# States of a live row. A suspect is an entry whose last worker vanished; it waits, and is claimed by itself.
WAITING, LEASED, SUSPECT = 0, 1, 2

VERSION = 2

_EARLY = (
    "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_limit = 2000"
)

_BIG = BigInteger().with_variant(Integer, "sqlite")  # SQLite's INTEGER is 64 bits, and only it can be a rowid


_TEXT = Text().with_variant(MEDIUMTEXT(collation="utf8mb4_bin"), "mysql", "mariadb")
_BYTES = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")


def _name(length: int = 128) -> String:
    """Text that compares bytewise on every database."""
    return (
        String(length)
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")
    )


def _entry_columns() -> list[Column[Any]]:
    """What an entry keeps through its life and after it."""
    return [
        Column("generation", Integer, nullable=False),
        Column("priority", Integer, nullable=False),
        Column("created", BigInteger, nullable=False),
        Column("due", BigInteger, nullable=False),
        Column("first_due", BigInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("token", _name(90)),
        Column("owner", _name(128)),
        Column("error", _TEXT),
        Column("labels", _TEXT),
        Column("headers", _TEXT),
        Column("unique_key", _name(255)),
        Column("unique_mode", String(8)),
        Column("expires", BigInteger),
        Column("codec", String(32), nullable=False),
        Column("type", _TEXT, nullable=False),
        Column("payload", _BYTES),
    ]


def tables(space: str) -> MetaData:
    """All tables and indexes of one space."""
    meta = MetaData()
    live = Table(
        space,
        meta,
        Column("seq", _BIG, primary_key=True, autoincrement=True),
        Column("id", _name(64), nullable=False, unique=True),
        Column("queue", _name(), nullable=False),
        Column("node", _name(64), nullable=False),
        Column("lane", Integer, nullable=False),  # (queue, node) in <space>_lanes
        Column("fifo", Integer, nullable=False),
        Column("state", Integer, nullable=False),
        *_entry_columns(),
        Column("claimed", BigInteger),
        Column("until", BigInteger),
        Column("max_attempts", Integer),
        Column("suspect", Integer, nullable=False, server_default=text("0")),  # its last lease ran out
        Column("settled", _name(90)),  # the last token that was settled, so that a repeated settle is recognised
        sqlite_autoincrement=True,  # never used twice, so that find(after=) can go on from the last one it saw
    )
    waiting, leased, suspect = (live.c.state == state for state in (WAITING, LEASED, SUSPECT))
    order = (live.c.priority.desc(), live.c.due, live.c.seq)
    _partial(f"{space}_ready", live.c.lane, *order, where=waiting, instead=(live.c.lane, live.c.state, *order))
    _partial(f"{space}_leased", live.c.until, where=leased, instead=(live.c.state, live.c.until))
    _partial(f"{space}_suspects", live.c.due, live.c.lane, where=suspect, instead=(live.c.state, live.c.due))
    by_seq = (live.c.lane, live.c.seq)
    _partial(f"{space}_fifo", *by_seq, where=live.c.fifo == 1, instead=(live.c.fifo, *by_seq))
    _partial(f"{space}_expiring", live.c.expires, where=live.c.expires.is_not(None), instead=(live.c.expires,))
    _partial(f"{space}_sticky", live.c.due, live.c.node, where=live.c.node != "", instead=(live.c.node, live.c.due))

    lanes = Table(
        f"{space}_lanes",
        meta,
        Column("lane", Integer, primary_key=True, autoincrement=True),
        Column("queue", _name(), nullable=False),
        Column("node", _name(64), nullable=False, server_default=text("''")),
        Column("next_due", BigInteger),  # never later than the time at which something can be claimed
        Column("locked", Integer, nullable=False, server_default=text("0")),
        Column("fifo", Integer, nullable=False, server_default=text("0")),
        Column("rate_count", Integer),
        Column("rate_period", BigInteger),
        Column("rate_next", BigInteger),
        Column("limit_label", _name()),
        Column("limit_count", Integer),
        UniqueConstraint("queue", "node"),
    )
    ready = (lanes.c.locked == 0) & lanes.c.next_due.is_not(None)
    _partial(f"{space}_lanes_ready", lanes.c.next_due, where=ready, instead=(lanes.c.locked, lanes.c.next_due))

    for ending in ("history", "dead"):
        Table(
            f"{space}_{ending}",
            meta,
            Column("seq", _BIG, primary_key=True, autoincrement=True),
            Column("id", _name(64), nullable=False, index=ending == "history", unique=ending == "dead"),
            Column("queue", _name(), nullable=False, index=True),
            Column("node", _name(64), nullable=False),
            Column("state", String(12), nullable=False),
            Column("started", BigInteger),
            Column("ended", BigInteger, nullable=False),
            *_entry_columns(),
            sqlite_autoincrement=True,  # never used twice, so that a reader can go on from the last one it saw
        )
    Table(
        f"{space}_labels",
        meta,
        Column("name", _name(), primary_key=True),
        Column("value", _name(255), primary_key=True),
        Column("id", _name(64), primary_key=True, index=True),
        sqlite_with_rowid=False,
    )
    Table(
        f"{space}_unique",
        meta,
        Column("queue", _name(), primary_key=True),
        Column("unique_key", _name(255), primary_key=True),
        Column("id", _name(64), nullable=False),
        Column("until", BigInteger, index=True),  # set for holds that last a period
        sqlite_with_rowid=False,
    )
    Table(
        f"{space}_locks",
        meta,
        Column("queue", _name(), primary_key=True),
        Column("holder", _name(), primary_key=True),
        Column("reason", _TEXT, nullable=False),
        Column("since", BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    Table(
        f"{space}_schedules",
        meta,
        Column("name", _name(), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("next_fire", BigInteger, nullable=False),
        Column("definition", _BYTES, nullable=False),
    )
    Table(
        f"{space}_subscriptions",
        meta,
        Column("name", _name(), primary_key=True),
        Column("queue", _name(), nullable=False),
        Column("types", _TEXT, nullable=False),
    )
    Table(
        f"{space}_nodes", meta, Column("node", _name(64), primary_key=True), Column("seen", BigInteger, nullable=False)
    )
    Table(
        f"{space}_documents",
        meta,
        Column("name", _name(), primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("changed", BigInteger, nullable=False),
        Column("value", _BYTES, nullable=False),
    )
    Table(f"{space}_meta", meta, Column("name", _name(), primary_key=True), Column("value", _TEXT, nullable=False))
    return meta


_made: dict[tuple[str, str, str], list[str]] = {}  # writing them takes longer than running them


def ddl(space: str, dialect: Dialect) -> list[str]:
    """The statements that create a space."""
    # Bytewise, and without taking "a" and "a " for the same: the two servers call that differently.
    bytewise = "utf8mb4_nopad_bin" if getattr(dialect, "is_mariadb", False) else "utf8mb4_0900_bin"
    key = (space, dialect.name, bytewise)
    if key not in _made:
        _made[key] = [statement.replace("utf8mb4_bin", bytewise) for statement in _written(space, dialect)]
    return list(_made[key])


def ddl_of(space: str, table: str, dialect: Dialect) -> list[str]:
    """The statements of :func:`ddl` that create one table, for spaces that were made before it was thought of."""
    return [one for one in ddl(space, dialect) if f" {space}_{table} " in one.split("(", maxsplit=1)[0] + " "]


def _written(space: str, dialect: Dialect) -> list[str]:
    made = []
    mysql = dialect.name in ("mysql", "mariadb")
    for table in tables(space).sorted_tables:
        made.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip())
        made += [
            # MySQL has no IF NOT EXISTS for indexes; one that is there already is no error to the migration.
            str(CreateIndex(index, if_not_exists=not mysql).compile(dialect=dialect)).strip()
            for index in sorted(table.indexes, key=lambda one: str(one.name))
            if index.info.get("mysql", mysql) == mysql
        ]
    if dialect.name == "postgresql":
        # Every entry leaves dead rows behind in these, and claims read past them until they are cleaned up.
        made += [f"ALTER TABLE {name} SET ({_EARLY})" for name in (space, f"{space}_unique", f"{space}_labels")]
    return made


def _partial(name: str, *columns: Any, where: Any, instead: tuple[Any, ...]) -> None:
    """An index of some rows only; MySQL has none such and gets the columns in ``instead``."""
    Index(name, *columns, sqlite_where=where, postgresql_where=where, info={"mysql": False})
    Index(f"{name}_all", *instead, info={"mysql": True})
