"""From a URL to a store: the registry of schemes, with lazy imports so that only the driver in use is needed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.errors import MissingExtra, UnknownScheme
from penstock.location import read_url
from penstock.names import check_name, did_you_mean

if TYPE_CHECKING:
    from penstock.location import Location
    from penstock.log.store import LogStore
    from penstock.queue.queues import QueueStore


class _Place(NamedTuple):
    module: str
    driver: str | None
    extra: str | None


QUEUE_STORES = {
    "memory": _Place("penstock.queue.drivers.memory", None, None),
    "sqlite": _Place("penstock.queue.drivers.sql.sqlite", None, None),
    "redis": _Place("penstock.queue.drivers.redis", "redis", "redis"),
    "rediss": _Place("penstock.queue.drivers.redis", "redis", "redis"),
    "postgresql": _Place("penstock.queue.drivers.sql.postgres", "psycopg", "postgres"),
    "postgres": _Place("penstock.queue.drivers.sql.postgres", "psycopg", "postgres"),
    "mysql": _Place("penstock.queue.drivers.sql.mysql", "pymysql", "mysql"),
    "mariadb": _Place("penstock.queue.drivers.sql.mysql", "pymysql", "mysql"),
    "zookeeper": _Place("penstock.queue.drivers.zookeeper", "kazoo", "zookeeper"),
    "zk": _Place("penstock.queue.drivers.zookeeper", "kazoo", "zookeeper"),
}

LOG_STORES = {
    "memory": _Place("penstock.log.drivers.memory", None, None),
    "file": _Place("penstock.log.drivers.files", None, None),
    "kafka": _Place("penstock.log.drivers.kafka", "confluent_kafka", "kafka"),
}


def open_queues(url: str, *, clock: Clock | None = None, node: str | None = None) -> QueueStore:
    """Open the queue store behind a URL, for example ``"sqlite:///shop.db"``.

    Args:
        url: where it is, with options of the store behind ``?``
        clock: the system's by default; for tests a ``FakeClock``
        node: names this machine for sticky entries; by default the host name

    Raises:
        UnknownScheme: there is no such store
        MissingExtra: the driver is not installed
        BadInput: an option is unknown or cannot work
        CannotOpen: no server, refused, or wrong settings of the server
        SchemaMismatch: the tables are of another release
    """
    from penstock.queue.queues import QueueStore

    location = read_url(url)
    if node is not None:
        node = check_name(node, kind="node")[:45]
    module = store_module(location, QUEUE_STORES, "queue")
    return QueueStore(module.open_driver(location, clock or SystemClock()), node=node)


def open_logs(url: str, *, clock: Clock | None = None) -> LogStore:
    """Open the log store behind a URL, for example ``"file:///var/lib/shop/logs"``.

    Args:
        url: where it is, with options of the store behind ``?``
        clock: the system's by default; for tests a ``FakeClock``

    Raises:
        UnknownScheme: there is no such store
        MissingExtra: the driver is not installed
        BadInput: an option is unknown or cannot work
        CannotOpen: no server, refused, or wrong settings of the server
        SchemaMismatch: the store is of another release
    """
    from penstock.log.store import LogStore

    location = read_url(url, f"file://{_folder_in(url)}")
    module = store_module(location, LOG_STORES, "log")
    return LogStore(module.open_driver(location, clock or SystemClock()), url)


def _folder_in(url: object) -> str:
    """The folder that was meant by what is not a URL, for a hint."""
    path = url.removeprefix("file:") if isinstance(url, str) else ""
    return path if path and ":" not in path else "logs"


def store_module(location: Location, known: dict[str, _Place], kind: str) -> Any:
    """The module of a store, whose driver is there."""
    place = known.get(location.scheme) or _third_party(f"penstock.{kind}_stores", location.scheme)
    if place is None:
        meant = did_you_mean(location.scheme, known, "{}://")
        other = "log" if kind == "queue" else "queue"
        if location.scheme in (LOG_STORES if kind == "queue" else QUEUE_STORES):
            meant = f"That is a {other} store: penstock.open_{other}s(). "
        raise UnknownScheme(
            f"no {kind} store is known for {location.scheme}:// in {location.masked}.",
            hint=f"{meant}Known schemes: {', '.join(f'{scheme}://' for scheme in sorted(known))}.",
        )
    if place.driver is not None and importlib.util.find_spec(place.driver) is None:
        raise MissingExtra(
            f"{location.scheme}:// needs the driver {place.driver}, which is not installed.",
            hint=f'Run: pip install "penstock[{place.extra}]"',
        )
    return importlib.import_module(place.module)


def _third_party(group: str, scheme: str) -> _Place | None:
    # Imported here: it takes as long as all of the store that most programs open.
    from importlib.metadata import entry_points

    for point in entry_points(group=group, name=scheme):
        return _Place(point.value, None, None)
    return None
