"""LagSampler: appends the lag of every group to a log at an interval."""

from __future__ import annotations

import logging
import threading

from penstock.clock import Duration, duration, from_micros
from penstock.errors import LogNotFound, PenstockError
from penstock.log.store import LogStore
from penstock.names import check_name

logger = logging.getLogger("penstock.log.maintenance.lag_samples")


def sample_lag(store: LogStore, into: str) -> int:
    """Append one record per log and group to the log ``into``, which is created if needed. Returns their number.

    A record is ``{"at": …, "log": …, "group": …, "lag": …}``, its key the log's name.
    """
    store.create(check_name(into, kind="log"))
    at = from_micros(store.now()).isoformat()
    values, keys = [], []
    for name in store.names():
        if name == into:
            continue
        try:
            for group in store.groups(name):
                values.append({"at": at, "log": name, "group": group, "lag": store.lag(name, group).lag})
                keys.append(name)
        except LogNotFound:
            continue  # the log was deleted meanwhile
    if values:
        with store.appender(into) as appender:
            appender.append_many(values, keys=keys)
    return len(values)


class LagSampler:
    """Samples in the background until it is closed. If a sample fails, the next one is tried as usual."""

    def __init__(self, store: LogStore, into: str, every: Duration = "60s") -> None:
        """Start the thread."""
        self._store, self._into = store, check_name(into, kind="log")
        self._seconds = duration(every, name="every").total_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-lag", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                sample_lag(self._store, self._into)
            except PenstockError as error:
                if self._ended.is_set():
                    return
                logger.warning("the lag could not be sampled this time: %s", error)
            if self._ended.wait(self._seconds):
                return

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()
        self._thread.join(10)
