"""What the pages read from the stores: the one place that reads, so that pages only show.

What many pages need (all counts, workers, figures) is read at most every two seconds for all visitors. While a new
reading is under way the last one is shown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from penstock.breaker.breaker import Breaker
from penstock.breaker.circuit import CircuitView
from penstock.clock import Micros
from penstock.errors import EntryNotFound, PenstockError
from penstock.log.record import Lag
from penstock.log.store import LogStore
from penstock.queue.changes import Change, recent_changes
from penstock.queue.entry import Counts, Entry, HistoryRow, with_traceback
from penstock.queue.protocol import EndedCount, Find, Finding, Schedule, Subscription
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.removal import is_deleted
from penstock.queue.search import Hit, mentions, search
from penstock.queue.worker.figure_history import FigureHistory, Series
from penstock.queue.worker.figures import HOURS_KEPT, MINUTE, Tally
from penstock.queue.worker.presence import KnownWorker, known_workers
from penstock.service.dashboard.formatting import whole_number
from penstock.service.dashboard.rates import Rates
from penstock.service.keys import ApiKey

logger = logging.getLogger("penstock.service.dashboard")

T = TypeVar("T")
Row = TypeVar("Row", Entry[Any], HistoryRow)

FRESH = 2.0  # seconds for which a reading is good
SOON = 0.1  # seconds that a page waits for a slow reading
LAST_RESORT = 600.0  # seconds for which it is shown until there is a new one, which open pages then get
STALE = 15.0  # seconds for which it is better than waiting
PAGE = 50
MOST_SCANNED = 5000  # rows that are looked through for a page whose filter the store cannot apply
MOST_IN_HAND = 200  # entries of all workers together, with their payloads
COUNTED = (60, 360, 1440)  # minutes of history that are counted
LOOK_BACK = 24 * 60  # minutes of figures
LAST_HOUR = 75  # minutes: an hour of minutes that all workers have written


class Cached(Generic[T]):
    """A value that is read again when it is requested and old; one reading at a time."""

    def __init__(self, read: Callable[[], T]) -> None:
        """Nothing is read before :meth:`get`."""
        self._read = read
        self._lock = threading.Lock()
        self._value: tuple[T, float] | None = None

    def get(self) -> T:
        """The value: at once if it is not too old, else a new reading, or, if that takes long, one from minutes ago."""
        known, now = self._value, time.monotonic()
        if known is not None and now - known[1] < FRESH:
            return known[0]
        if known is not None and now - known[1] < LAST_RESORT:
            refreshing = None
            if self._lock.acquire(blocking=False):
                if self._value is not known:  # it was read or forgotten just now
                    self._lock.release()
                    return self.get()
                refreshing = threading.Thread(target=self._refresh_and_release, name="penstock-dashboard", daemon=True)
                refreshing.start()
            if refreshing is None or now - known[1] < STALE:
                return known[0]
            refreshing.join(SOON)
            if refreshing.is_alive() or self._value is not None:
                return (self._value or known)[0]
            # It failed: read here, so that the page shows the error.
        with self._lock:
            known = self._value
            if known is None or time.monotonic() - known[1] >= FRESH:
                known = self._value = (self._read(), time.monotonic())
            return known[0]

    def forget(self) -> None:
        """Forget the value: something was changed."""
        self._value = None

    def _refresh_and_release(self) -> None:
        begin = time.monotonic()
        try:
            value = self._read()
            if self._value is not None:
                self._value = (value, begin)
        except PenstockError as error:
            logger.info("a page could not be refreshed: %s", error)
            self._value = None  # the next caller gets the error
        finally:
            self._lock.release()


class Looked(Generic[T]):
    """A value that takes long to read: it is read in the background, and the page shows it when it is ready.

    While it is read again the last one is shown.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        """Nothing is read before :meth:`get`."""
        self._read = read
        self._lock = threading.Lock()
        self._reading: Future[T] | None = None
        self._since = 0.0
        self._last: T | None = None

    def get(self) -> T | None:
        """The value if it is ready within a tenth of a second, else the last one or None. Raises what it raised."""
        with self._lock:
            if self._reading is None or (self._reading.done() and time.monotonic() - self._since > STALE):
                self._reading = Future()
                threading.Thread(
                    target=self._run, args=(self._reading,), name="penstock-dashboard", daemon=True
                ).start()
            reading = self._reading
        try:
            return reading.result(SOON)
        except TimeoutError:
            return self._last

    def _run(self, reading: Future[T]) -> None:
        try:
            self._last = self._read()
            reading.set_result(self._last)
        except Exception as error:
            self._last = None
            reading.set_exception(error)
        self._since = time.monotonic()


class Ended(msgspec.Struct, frozen=True):
    """How many attempts ended, by queue and outcome, or None where the store could not count them."""

    rows: list[EndedCount] | None


class Totals(msgspec.Struct, frozen=True):
    """How many attempts ended by outcome, once they are counted; and why not, if not."""

    state: Literal["counted", "counting", "many", "long", "partial"]
    by_state: Mapping[str, int] = {}


class Slice(msgspec.Struct, frozen=True):
    """A page of rows, where the next one begins, and whether the filter gave up before the end."""

    rows: Sequence[Any]
    next: str | None
    is_cut: bool = False


class Reading:
    """Reads from the stores of one service."""

    def __init__(self, queues: QueueStore, logs: LogStore | None, breaker: Breaker) -> None:
        """Nothing is read yet."""
        self.queues = queues
        self.logs = logs
        self._breaker = breaker
        self._counts = Cached(queues.counts)
        self._workers = Cached(lambda: known_workers(queues))
        by_minute, by_hour = FigureHistory(queues), FigureHistory(queues, by_hour=True)
        self._last_hour = Cached(partial(by_minute.look, LAST_HOUR))
        self._last_day = Cached(partial(by_minute.look, LOOK_BACK))
        self._last_month = Cached(partial(by_hour.look, HOURS_KEPT // MINUTE))
        self._findings = Looked(self._all_findings)
        self._in_hand = Looked(self._all_in_hand)
        self._ended = {minutes: Looked(partial(self._all_ended, minutes)) for minutes in COUNTED}
        self.rates = Rates()
        self._lags = Cached(self._all_lags)

    def forget(self) -> None:
        """Forget all values, so that a change by hand shows at once."""
        for cached in (self._counts, self._workers, self._lags):
            cached.forget()

    def now(self) -> Micros:
        """The store's time."""
        return self.queues.now()

    # --- queues ------------------------------------------------------------------------------------

    def counts(self, key: ApiKey) -> list[Counts]:
        """What all queues within the key's reach hold."""
        return [queue for queue in self._counts.get() if key.sees(queue.queue)]

    def counts_of(self, key: ApiKey, name: str) -> Counts:
        """What one queue holds: from the shared reading, or read now if it is not in there yet."""
        known = next((queue for queue in self._counts.get() if queue.queue == name), None)
        return known if known is not None and key.sees(name) else self.queue(name).counts()

    def queue(self, name: str) -> Queue[Any]:
        """An existing queue."""
        queue: Queue[Any] = self.queues.queue(name)
        if not queue.exists():
            if is_deleted(self.queues, name):
                raise EntryNotFound(
                    f"queue {name!r} was deleted.",
                    hint="A put brings it back; entries that ended in it are found by their ids until they are pruned.",
                )
            raise EntryNotFound(
                f"there is no queue {name!r}.", hint="Its name has a slip, or nothing was ever put into it."
            )
        return queue

    def waiting(self, queue: Queue[Any], tab: str, labels: dict[str, str], text: str, after: str, now: Micros) -> Slice:
        """Live entries: ready, delayed, retrying, held or leased, in the order they were put."""
        where = Find(
            queue=queue.name, labels=labels, states=(tab if tab in ("leased", "held") else "waiting",),
            before_us=now + 1 if tab == "ready" else None, from_us=now + 1 if tab in ("delayed", "retrying") else None,
        )  # fmt: skip

        def fits(entry: Entry[Any]) -> bool:
            if (entry.state == "held") != (tab == "held"):
                return False
            return (tab != "delayed" or not entry.attempt) and (tab != "retrying" or bool(entry.attempt))

        first = whole_number(after) or 0
        rows: list[Entry[Any]] = []
        scanned = 0
        while len(rows) < PAGE and scanned < MOST_SCANNED:
            page = self.queues.driver.find(msgspec.structs.replace(where, after=first, limit=200))
            for entry in page:
                scanned, first = scanned + 1, entry.seq
                if fits(entry) and mentions(entry.error, text):
                    rows.append(with_traceback(entry))
                    if len(rows) == PAGE:
                        return Slice(rows, str(first))
            if len(page) < 200:
                return Slice(rows, None)
        return Slice(rows, str(first), is_cut=True)

    def dead(self, where: Find, text: str, before: str) -> Slice:
        """Dead letters, the newest first."""
        return self._newest(self.queues.driver.dead, where, text, before)

    def history(self, where: Find, text: str, before: str) -> Slice:
        """Ended attempts, the newest first."""
        return self._newest(self.queues.driver.history, where, text, before)

    def _newest(self, read: Callable[[Find], list[Row]], where: Find, text: str, before: str) -> Slice:
        """Rows with a lower sequence number, whose error mentions a text. The numbers are in the order of the ends."""
        after = whole_number(before) or 0
        rows: list[Row] = []
        scanned = 0
        while len(rows) < PAGE and scanned < MOST_SCANNED:
            limit = PAGE + 450 if text else PAGE
            page = read(msgspec.structs.replace(where, after=after, newest_first=True, limit=limit))
            for row in page:
                scanned, after = scanned + 1, row.seq
                if mentions(row.error, text):
                    rows.append(with_traceback(row))
                    if len(rows) == PAGE:
                        return Slice(rows, str(after))
            if len(page) < limit:
                return Slice(rows, None)
        return Slice(rows, str(after), is_cut=True)

    def matching_dead(self, where: Find, text: str, most: int) -> list[Entry[Any]]:
        """Dead letters by label and by what their error mentions, the oldest first; at most so many."""
        matching: list[Entry[Any]] = []
        after = 0
        while len(matching) < most:
            page = self.queues.driver.dead(msgspec.structs.replace(where, after=after, limit=1000))
            for entry in page:
                after = entry.seq
                if mentions(entry.error, text) and len(matching) < most:
                    matching.append(entry)
            if len(page) < 1000:
                break
        return matching

    def entry(self, queue: str, id_: str) -> tuple[Entry[Any] | None, list[HistoryRow]]:
        """A live entry or dead letter, and the attempts that have ended, the oldest first."""
        where = Find(queue=queue, ids=(id_,), limit=1)
        entry = next(iter(self.queues.driver.find(where)), None) or next(iter(self.queues.driver.dead(where)), None)
        rows = self.queues.driver.history(Find(queue=queue, ids=(id_,), limit=500))
        if entry is None and not rows:
            raise EntryNotFound(
                f"queue {queue!r} has no entry {id_!r}.", hint="It has ended and its history was removed, or never was."
            )
        return (None if entry is None else with_traceback(entry)), [with_traceback(row) for row in rows]

    def search(self, key: ApiKey, text: str) -> list[Hit]:
        """Entries of all queues by ``label=value``, id or a part of it, or unique id; at most one page of them."""
        name, equals, value = text.partition("=")
        family = key.prefix or None
        hits = search(self.queues, labels={name: value}, family=family, limit=PAGE) if equals else []
        if not hits:
            hits = search(self.queues, text.removeprefix("…"), family=family, limit=PAGE)
        return hits

    # --- workers, figures, schedules, bus ----------------------------------------------------------

    def workers(self, key: ApiKey) -> list[KnownWorker]:
        """The workers that serve something within the key's reach."""
        from penstock.service.workers import within

        return within(self._workers.get(), key)

    def in_hand(self, key: ApiKey) -> list[Entry[Any]] | None:
        """The entries in hand, those put first, or None while they are read."""
        entries = self._in_hand.get()
        return None if entries is None else [entry for entry in entries if key.sees(entry.queue)]

    def _all_in_hand(self) -> list[Entry[Any]]:
        return self.queues.driver.find(Find(states=("leased",), limit=MOST_IN_HAND))

    def last_hour(self, key: ApiKey, now: Micros) -> list[Tally]:
        """What each handler did in the last hour, minute by minute."""
        return self._last_hour.get().since(now // MINUTE - LAST_HOUR, key.prefix)

    def figures(self, minutes: int) -> Series:
        """What workers did in a range: minute by minute for a day, hour by hour beyond."""
        if minutes <= 60:
            return self._last_hour.get()
        return (self._last_day if minutes <= LOOK_BACK else self._last_month).get()

    def ended(self, key: ApiKey, minutes: int, queue: str | None = None) -> Totals:
        """What ended in a range, counted in the history: exact, whoever ended it. One queue, or all within reach."""
        if not self.queues.capabilities.full_history:
            return Totals("partial")
        if minutes not in self._ended:
            return Totals("long")
        counted = self._ended[minutes].get()
        if counted is None:
            return Totals("counting")
        if counted.rows is None:
            return Totals("many")
        by_state: Counter[str] = Counter()
        for row in counted.rows:
            if key.sees(row.queue) and queue in (None, row.queue):
                by_state[row.state] += row.count
        return Totals("counted", by_state)

    def _all_ended(self, minutes: int) -> Ended:
        return Ended(self.queues.driver.count_ended(self.queues.now() - minutes * MINUTE))

    def schedules(self, key: ApiKey) -> list[Schedule]:
        """The schedules within the key's reach."""
        return [
            schedule for schedule in self.queues.schedules() if key.sees(schedule.name) and key.sees(schedule.queue)
        ]

    def subscriptions(self, key: ApiKey) -> list[Subscription]:
        """The subscriptions whose queues are within the key's reach."""
        return [subscription for subscription in self.queues.driver.subscriptions() if key.sees(subscription.queue)]

    def changes(self, key: ApiKey) -> list[Change]:
        """Who changed what, the newest first."""
        return [change for change in recent_changes(self.queues) if key.sees(change.target)]

    # --- logs, circuits, health --------------------------------------------------------------------

    def lags(self, key: ApiKey) -> list[tuple[str, str, Lag]]:
        """How far each group is behind, by log and group, or none without logs."""
        return [row for row in self._lags.get() if key.sees(row[0])]

    def _all_lags(self) -> list[tuple[str, str, Lag]]:
        if self.logs is None:
            return []
        store = self.logs
        return [(name, group, store.lag(name, group)) for name in store.names() for group in store.groups(name)]

    def circuits(self, key: ApiKey) -> list[CircuitView]:
        """All circuits, those that are not closed first. They concern all queues, so keys with a prefix see none."""
        if key.prefix:
            return []
        return sorted(self._breaker.circuits(), key=lambda circuit: (-circuit.level, circuit.circuit))

    def findings(self) -> list[Finding] | None:
        """The findings of ``doctor`` about the stores, or None while it checks, which may take long."""
        return self._findings.get()

    def _all_findings(self) -> list[Finding]:
        findings = list(self.queues.check())
        if self.logs is not None:
            findings += [Finding(finding.level, finding.what, finding.detail) for finding in self.logs.check()]
        return findings


def errors_of(entries: Iterable[Entry[Any]]) -> list[tuple[str, int]]:
    """Errors by how often they occur, the most frequent first: the first line, without what differs by entry."""
    counted: dict[str, int] = {}
    for entry in entries:
        line = (with_traceback(entry).error or "no error was kept").splitlines()[0][:200]
        counted[line] = counted.get(line, 0) + 1
    return sorted(counted.items(), key=lambda error_and_count: -error_and_count[1])
