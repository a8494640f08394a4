"""What the store handles of one process share: settings of logs, and how often each log is open."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TypeVar

from penstock.log.drivers.kafka.cluster import Cluster
from penstock.log.protocol import Sink, Source
from penstock.log.settings import LogSettings

Opened = TypeVar("Opened", bound=Sink | Source)

_caches: dict[tuple[str, str], dict[str, tuple[float, LogSettings | None]]] = {}
_open: dict[tuple[str, str, str], int] = {}
_shared_lock = threading.Lock()


def settings_cache(cluster: Cluster) -> dict[str, tuple[float, LogSettings | None]]:
    """The settings of logs, with the time when they were read."""
    with _shared_lock:
        return _caches.setdefault((cluster.servers, cluster.prefix), {})


def forget_settings(cluster: Cluster, name: str) -> None:
    """Read the settings of a log again next time."""
    settings_cache(cluster).pop(name, None)


def open_count(cluster: Cluster, name: str) -> int:
    """The number of open appenders and tailers of a log."""
    with _shared_lock:
        return _open.get((cluster.servers, cluster.prefix, name), 0)


def counted(opened: Opened, cluster: Cluster, logs: Sequence[str]) -> Opened:
    """Count an appender or tailer of a log until it is closed; an open log cannot be deleted."""
    keys = [(cluster.servers, cluster.prefix, log) for log in logs]
    with _shared_lock:
        for key in keys:
            _open[key] = _open.get(key, 0) + 1
    close = opened.close
    once = threading.Lock()

    def close_and_count() -> None:
        if once.acquire(blocking=False):
            with _shared_lock:
                for key in keys:
                    _open[key] -= 1
        close()

    opened.close = close_and_count  # type: ignore[method-assign]
    return opened
