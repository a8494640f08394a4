"""From a URL to a store: the registry of schemes, with lazy imports so that only the driver in use is needed."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from penstock.clock import Clock, SystemClock
from penstock.errors import MissingExtra, UnknownScheme
from penstock.location import read_url
from penstock.names import check_name

if TYPE_CHECKING:
    from penstock.queue.store import QueueStore


class _Place(NamedTuple):
    module: str
    driver: str | None
    extra: str | None


QUEUE_STORES = {
    "memory": _Place("penstock.queue.stores.memory", None, None),
    "sqlite": _Place("penstock.queue.stores.sql.sqlite", None, None),
    "redis": _Place("penstock.queue.stores.redis", "redis", "redis"),
    "rediss": _Place("penstock.queue.stores.redis", "redis", "redis"),
    "postgresql": _Place("penstock.queue.stores.sql.postgres", "psycopg", "postgres"),
    "postgres": _Place("penstock.queue.stores.sql.postgres", "psycopg", "postgres"),
    "mysql": _Place("penstock.queue.stores.sql.mysql", "pymysql", "mysql"),
    "mariadb": _Place("penstock.queue.stores.sql.mysql", "pymysql", "mysql"),
    "zookeeper": _Place("penstock.queue.stores.zookeeper", "kazoo", "zookeeper"),
    "zk": _Place("penstock.queue.stores.zookeeper", "kazoo", "zookeeper"),
}


def open_queues(url: str, *, clock: Clock | None = None, node: str | None = None) -> QueueStore:
    """Open the queue store behind a URL, for example ``"sqlite:///shop.db"``.

    ``node`` names this machine for sticky entries (default: the host name); ``clock`` is for tests.
    """
    location = read_url(url)
    if node is not None:
        node = check_name(node, kind="node")[:45]
    place = QUEUE_STORES.get(location.scheme) or _third_party("penstock.queue_stores", location.scheme)
    if place is None:
        raise UnknownScheme(
            f"no queue store is known for {location.scheme}:// in {location.masked}.",
            hint=f"Known schemes: {', '.join(f'{scheme}://' for scheme in sorted(QUEUE_STORES))}.",
        )
    if place.driver is not None and importlib.util.find_spec(place.driver) is None:
        raise MissingExtra(
            f"{location.scheme}:// needs the driver {place.driver}, which is not installed.",
            hint=f'Run: pip install "penstock[{place.extra}]"',
        )
    module = importlib.import_module(place.module)
    store: QueueStore = module.open_store(location, clock or SystemClock())
    if node is not None:
        store.node = node
    return store


def _third_party(group: str, scheme: str) -> _Place | None:
    for point in entry_points(group=group, name=scheme):
        return _Place(point.value, None, None)
    return None
