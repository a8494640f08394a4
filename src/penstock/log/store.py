"""LogStore: the contract every log store fulfils, and its capability flags.

A store gives four things: logs (create, list, delete, bounds), a :class:`Sink` that appends, a :class:`Source` that
reads for a group, and one atomic commit of appends and offsets (:meth:`LogStore.transact`). Typed records, routing by
key, lingering, seeking by name and waiting are built on these once, in ``appender``, ``tailer`` and ``transaction``.

Every store must hold to this, and ``tests/contract/log`` checks it:

- what an append returned is readable at its offset, in order, until retention removes it;
- offsets of a partition rise and are never used again; a committed offset is the next one to read;
- at any time at most one open tailer of a group owns a partition, and a commit of a former owner is ``Fenced``;
- a transaction's records and offsets become visible together or never.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from penstock.clock import Clock, Duration, Micros, SystemClock, duration, to_micros
from penstock.errors import (
    BadInput,
    Closed,
    LogNotFound,
    PartitionNotFound,
    Unsupported,
)
from penstock.log.group import Listener
from penstock.log.limits import check_records
from penstock.log.partitioner import DEFAULT, partitioner
from penstock.log.protocol import (
    Commit,
    Committed,
    Finding,
    LogCapabilities,
    LogSettings,
    Removed,
    Retention,
    Sink,
    Source,
    Stage,
    Staged,
)
from penstock.log.record import (
    Bounds,
    Lag,
    Latency,
    NewRecords,
    Offset,
    Partition,
    RecordBatch,
)
from penstock.names import check_name
from penstock.process import this_process
from penstock.signals import Signals
from penstock.tracing import Tracing

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.log.appender import Appender
    from penstock.log.log import Log
    from penstock.log.tailer import Tailer
    from penstock.log.transaction import Transaction

T = TypeVar("T")

OutOfRange = Literal["error", "earliest", "latest"]
Place = str | Partition | Sequence["str | Partition"]

MAX_PARTITIONS = 10_000
_SYSTEM = SystemClock()
MAX_POLL = timedelta(minutes=5)


class LogStore(ABC):
    """What keeps logs. Open one with :func:`penstock.open_logs`; it is safe to share between threads."""

    capabilities: LogCapabilities = LogCapabilities()
    record_limit: int = 8 * 1024 * 1024
    transaction_bytes: int = 64 * 1024 * 1024

    def __init__(self, clock: Clock, name: str) -> None:
        """Bind the handle to a clock; ``name`` is the masked URL for messages."""
        self.clock = clock
        self.name = name
        self.url = name  # with its credentials, if it was opened from one: how another process opens it
        self.signals = Signals()
        self.tracing: Tracing | None = None
        self.closed = False
        self._open: set[Any] = set()  # appenders and tailers, closed with the store
        self._open_lock = threading.Lock()
        self._is_closing = False
        self._process = this_process()

    # --- logs ------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        partitioner: str = DEFAULT,
        retention: Retention | None = None,
        **settings: Any,
    ) -> bool:
        """Create a log; False, and nothing changed, if it exists. Further options: see :class:`LogSettings`."""
        check_name(name, kind="log")
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
            raise BadInput(f"log {name} cannot have {partitions!r} partitions.", hint=f"Use 1 to {MAX_PARTITIONS:,}.")
        made = self._checked(name, partitions, partitioner, retention, settings)
        self._check_open()
        return self._create(made)

    def _checked(
        self, name: str, partitions: int, hashing: str, retention: Retention | None, more: dict[str, Any]
    ) -> LogSettings:
        partitioner(hashing)
        unknown = more.keys() - set(LogSettings.__struct_fields__)
        if unknown:
            raise BadInput(
                f"log setting {sorted(unknown)[0]!r} is unknown.",
                hint=f"Known: {', '.join(LogSettings.__struct_fields__[2:])}.",
            )
        made = LogSettings(name, partitions, hashing, retention or Retention(), **more)
        if not isinstance(made.segment_bytes, int) or made.segment_bytes < 4096:
            raise BadInput(f"segment_bytes {made.segment_bytes!r} is too small.", hint="Use 4,096 or more.")
        duration(made.segment_age, name="segment_age")
        if made.compression not in (None, "zlib"):
            raise BadInput(f"compression {made.compression!r} is unknown.", hint="Use None or 'zlib'.")
        if made.codec not in (None, "json", "bytes"):
            raise BadInput(f"codec {made.codec!r} is unknown.", hint="Use None, 'json' or 'bytes'.")
        return made

    def settings(self, name: str) -> LogSettings:
        """How a log is kept; raises :class:`LogNotFound`."""
        check_name(name, kind="log")
        self._check_open()
        found = self._settings(name)
        if found is None:
            raise self._not_found(name)
        return found

    def identity(self, name: str) -> str:
        """What tells a log from every other one, also from one of the same name elsewhere or at another time.

        It survives restarts, and a restored backup has it too; a log that was deleted and created again has another.
        Empty for a log made before logs had one.
        """
        check_name(name, kind="log")
        self._check_open()
        found = self._identity(name)
        if found is None:
            raise self._not_found(name)
        return found

    def _not_found(self, name: str) -> LogNotFound:
        return LogNotFound(
            f"there is no log {name!r} in {self.name}.", hint=f"Create it first: create({name!r}, partitions=…)."
        )

    def exists(self, name: str) -> bool:
        """Whether there is such a log."""
        check_name(name, kind="log")
        self._check_open()
        return self._settings(name) is not None

    def delete(self, name: str) -> bool:
        """Remove a log with its records and every group's offsets in it. Returns False if there is none.

        Refused (``Conflict``) while an appender or tailer has it open, and when it holds files of somebody else.
        """
        check_name(name, kind="log")
        self._check_open()
        return self._delete(name)

    @abstractmethod
    def names(self) -> list[str]:
        """All logs, sorted."""

    def partitions(self, name: str) -> list[Partition]:
        """The partitions of a log."""
        return [Partition(name, index) for index in range(self.settings(name).partitions)]

    def bounds(self, name: str) -> list[Bounds]:
        """What each partition holds, in order."""
        return self._bounds(self.settings(name))

    # --- writing and reading -----------------------------------------------------------------------

    @overload
    def log(self, name: str, type: type[T], **options: Any) -> Log[T]: ...

    @overload
    def log(self, name: str, type: Any = ..., **options: Any) -> Log[Any]: ...

    def log(self, name: str, type: Any = Any, **options: Any) -> Log[Any]:
        """A typed handle on one log; see :class:`penstock.Log` for the options."""
        from penstock.log.log import Log

        return Log(self, name, type, **options)

    def appender(self, name: str, type: Any = Any, **options: Any) -> Appender[Any]:
        """An appender of one log; see :class:`penstock.Appender` for the options."""
        from penstock.log.appender import Appender

        return Appender(self, name, type, **options)

    def tailer(self, what: Place, group: str, type: Any = Any, **options: Any) -> Tailer[Any]:
        """A tailer with these partitions: a log, a :class:`Partition`, or several of them, also of several logs."""
        from penstock.log.tailer import Tailer

        return Tailer.manual(self, what, group, type, **options)

    def subscribe(self, logs: str | Sequence[str], group: str, type: Any = Any, **options: Any) -> Tailer[Any]:
        """A tailer whose partitions are dealt out among all subscribers of the group and follow their coming and going.

        ``on_assigned``, ``on_revoked`` and ``on_lost`` are called with lists of partitions, inside ``read``.
        """
        from penstock.log.tailer import Tailer

        return Tailer.subscribed(self, logs, group, type, **options)

    def transaction(self, **options: Any) -> Transaction:
        """Appends and offsets that are committed together; rolls back unless ``commit()`` was called."""
        from penstock.log.transaction import Transaction

        return Transaction(self, **options)

    def batches(self, partition: Partition, start: int | None = None, stop: int | None = None) -> Iterator[RecordBatch]:
        """The records from ``start`` to before ``stop``, by default all there are now; without a group."""
        bounds = self.bounds_of(partition)
        start = bounds.start if start is None else start
        stop = bounds.end if stop is None else min(stop, bounds.end)
        if start < bounds.start or start > bounds.end:
            raise self.out_of_range(partition, start, bounds)
        return self._batches(partition, start, stop)

    def arrow(
        self, partition: Partition, start: int | None = None, stop: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches (see :func:`penstock.log.record.arrow_schema`)."""
        for batch in self.batches(partition, start, stop):
            yield batch.arrow()

    def offset_at(self, partition: Partition, moment: datetime) -> Offset:
        """The first record with a timestamp at or after a moment; the end if there is none."""
        micros = to_micros(moment)
        self.bounds_of(partition)
        return Offset(partition.log, partition.index, self._offset_at(partition, micros))

    def ranges_in_time(
        self, partition: Partition, span: tuple[int, int], since: Micros, until: Micros
    ) -> list[tuple[int, int]]:
        """Ranges of offsets within ``span`` that hold every record with a time from ``since`` to before ``until``.

        Other records may lie in them too: a store says what it can tell without reading records.
        """
        return self._ranges_in_time(partition, span, (since, until)) if since < until else []

    # --- groups ------------------------------------------------------------------------------------

    def groups(self, name: str) -> list[str]:
        """The groups that have committed in this log, sorted."""
        self.settings(name)
        return self._groups(name)

    def committed(self, name: str, group: str) -> list[int | None]:
        """The next offset each partition's reader starts at, or None where the group never committed."""
        check_name(group, kind="group")
        return self._committed(self.settings(name), group)

    def lags(self, name: str, group: str) -> list[Lag]:
        """How far the group is behind, per partition; a group that never was is behind by everything."""
        check_name(group, kind="group")
        # Before the bounds: an offset is never beyond an end read later.
        committed = self._committed_now(self.settings(name), group)
        return [Lag.of(bounds, offset) for bounds, offset in zip(self.bounds(name), committed, strict=True)]

    def lag(self, name: str, group: str) -> Lag:
        """The lag over all partitions."""
        return Lag.total(self.lags(name, group))

    def latencies(self, name: str, group: str) -> list[Latency]:
        """How old the last committed record is, per partition, where there is a lag."""
        now = self.now()
        result = []
        for index, (lag, bounds) in enumerate(zip(self.lags(name, group), self.bounds(name), strict=True)):
            if not lag.lag:
                result.append(Latency(0, timedelta(0)))
                continue
            at = max(bounds.start, lag.lower - 1)
            record = next(
                (batch.records()[0] for batch in self.batches(Partition(name, index), at, at + 1) if len(batch)), None
            )
            if record is None:  # a hole, or retention was faster
                result.append(Latency(lag.lag, timedelta(0)))
                continue
            was_committed = lag.lower > bounds.start
            result.append(
                Latency(
                    lag.lag,
                    timedelta(microseconds=max(0, now - record.time_us)),
                    record.time_us if was_committed else None,
                    record.key if was_committed else None,
                )
            )
        return result

    def latency(self, name: str, group: str) -> Latency:
        """The latency of the partition that is most behind in time, with the total lag."""
        all_ = self.latencies(name, group)
        worst = max(all_, key=lambda one: one.latency)
        return Latency(sum(one.lag for one in all_), worst.latency, worst.committed_us, worst.key)

    def reset(self, group: str, offsets: Mapping[Partition, int | Offset]) -> None:
        """Set a group's offsets from outside; ``PartitionTaken`` while a tailer owns one of the partitions."""
        check_name(group, kind="group")
        if not isinstance(offsets, Mapping):
            raise BadInput(f"reset to {offsets!r} names no partition.", hint="Give {Partition(log, 0): offset, ...}.")
        checked = {}
        for partition, offset in offsets.items():
            bounds = self.bounds_of(partition)
            value = offset.value if isinstance(offset, Offset) else offset
            if not bounds.start <= value <= bounds.end:
                raise self.out_of_range(partition, value, bounds)
            checked[partition] = value
        self._reset(group, checked)

    def forget(self, group: str, name: str | None = None) -> bool:
        """Remove a group's offsets in one log or all. Returns False if it has none. Refused while a tailer is open."""
        check_name(group, kind="group")
        if name is not None:
            self.settings(name)
        self._check_open()
        return self._forget(group, name)

    def wait_for(self, offset: Offset, group: str, timeout: Duration = timedelta(0)) -> bool:
        """Wait until the group has committed past this record. Returns False if it has not in time."""
        check_name(group, kind="group")
        self.check_partition(offset.place)
        settings = self.settings(offset.log)
        deadline = time.monotonic() + duration(timeout, name="timeout").total_seconds()
        with self._commit_watch(group) as wait:
            while True:
                committed = self._committed(settings, group)[offset.partition]
                if committed is not None and committed > offset.value:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                wait(left)

    # --- keeping -----------------------------------------------------------------------------------

    def retain(self, name: str | None = None, *, dry_run: bool = False) -> list[Removed]:
        """Remove what the retention of a log (or of all) allows, now; appends do the same when a segment is full."""
        if not self.capabilities.retention:
            raise self.unsupported("retention by Penstock")
        removed = []
        for one in [name] if name is not None else self.names():
            removed += self._retain(self.settings(one), dry_run)
        for one_removed in removed:
            if not dry_run:
                self.signals.tell(
                    "retained", one_removed.partition.log, (), self.now(),
                    partition=one_removed.partition.index, offset=one_removed.start,
                )  # fmt: skip
        return removed

    def stage(self, name: str) -> Stage:
        """Write records aside for a transaction of another process (see :meth:`Transaction.append_staged`)."""
        if not self.capabilities.staging:
            raise self.unsupported("staging")
        return self._stage(self.settings(name))

    def staged_commit(self) -> str:
        """In words: what the process that commits staged records does with their bytes."""
        raise self.unsupported("staging")

    def discard(self, *staged: Staged) -> None:
        """Throw away what was written aside and will not be committed; what is gone already is not an error."""
        if not self.capabilities.staging:
            raise self.unsupported("staging")
        self._discard(staged)

    def backup(self, target: str, *, dry_run: bool = False) -> list[Finding]:
        """Copy everything to an empty folder, as it is at one moment, while others go on."""
        raise self.unsupported("backup")

    def verify(self, name: str | None = None) -> list[Finding]:
        """Look at every byte; what is damaged comes as findings with their place."""
        raise self.unsupported("verify")

    def repair(self, name: str, *, dry_run: bool = False) -> list[Finding]:
        """Put damaged records aside so that reading goes on behind them; their offsets stay empty."""
        raise self.unsupported("repair")

    def check(self) -> list[Finding]:
        """What ``penstock doctor`` says about this store."""
        return []

    def sync(self) -> None:  # noqa: B027 - nothing to do where nothing is buffered
        """Return when everything appended so far survives a power cut; only the fast profile needs it."""

    def now(self) -> Micros:
        """The clock's time if it is a fake one, else the store's."""
        fixed = self.clock.fixed()
        return _SYSTEM.micros() if fixed is None else fixed

    def close(self) -> None:
        """Close all appenders and tailers that were opened here, and the store."""
        if self.closed:
            return
        if self._process is not this_process():
            self.closed = True  # a forked child: what is open is the parent's
            return
        with self._open_lock:
            self._is_closing = True
            opened = list(self._open)
        for one in opened:
            one.close()
        self.closed = True
        self._close()

    def __enter__(self) -> LogStore:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The URL without its password."""
        return f"<{type(self).__name__} {self.name}>"

    # --- what a store implements ---------------------------------------------------------------------

    @abstractmethod
    def _create(self, settings: LogSettings) -> bool: ...

    @abstractmethod
    def _settings(self, name: str) -> LogSettings | None: ...

    @abstractmethod
    def _identity(self, name: str) -> str | None: ...

    @abstractmethod
    def _delete(self, name: str) -> bool: ...

    @abstractmethod
    def _bounds(self, settings: LogSettings) -> list[Bounds]: ...

    @abstractmethod
    def _batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]: ...

    @abstractmethod
    def _offset_at(self, partition: Partition, micros: Micros) -> int: ...

    def _ranges_in_time(
        self, partition: Partition, span: tuple[int, int], times: tuple[Micros, Micros]
    ) -> list[tuple[int, int]]:
        """All records before the first one of that time can be left out; later ones may have any time."""
        low, high = max(span[0], self._offset_at(partition, times[0])), span[1]
        return [(low, high)] if low < high else []

    @abstractmethod
    def _groups(self, name: str) -> list[str]: ...

    @abstractmethod
    def _committed(self, settings: LogSettings, group: str) -> list[int | None]: ...

    def _committed_now(self, settings: LogSettings, group: str) -> list[int | None]:
        """For somebody who only looks: waits for no transaction that is still undecided."""
        return self._committed(settings, group)

    @abstractmethod
    def _reset(self, group: str, offsets: Mapping[Partition, int]) -> None: ...

    @abstractmethod
    def _forget(self, group: str, name: str | None) -> bool: ...

    @abstractmethod
    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink: ...

    @abstractmethod
    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """A source with exactly these partitions; all of them or ``PartitionTaken``."""

    @abstractmethod
    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        """A source whose partitions follow the group's members; owns none before its first poll."""

    @abstractmethod
    def transact(self, commit: Commit) -> Committed: ...

    def _retain(self, settings: LogSettings, dry_run: bool) -> list[Removed]:
        raise self.unsupported("retention by Penstock")

    def _stage(self, settings: LogSettings) -> Stage:
        raise self.unsupported("staging")

    def _discard(self, staged: Sequence[Staged]) -> None:
        raise self.unsupported("staging")

    def _commit_watch(self, group: str) -> CommitWatch:
        """What ends a wait when the group commits; by default a short sleep."""
        return CommitWatch()

    def _close(self) -> None:  # noqa: B027 - not every store holds something
        """Let go of what the store itself holds."""

    # --- what stores and facades share ---------------------------------------------------------------

    def unsupported(self, what: str) -> Unsupported:
        """The error for a call that this store does not offer."""
        return Unsupported(f"{self.name} does not offer {what}.", hint="See the capabilities in the docs.")

    def out_of_range(self, partition: Partition, offset: int, bounds: Bounds) -> Exception:
        """The error for an offset that is not there."""
        from penstock.errors import OffsetOutOfRange

        return OffsetOutOfRange(
            f"offset {offset} is not in {partition}, which holds {bounds.start} to before {bounds.end}.",
            hint='Seek to the start or end, or open the tailer with out_of_range="earliest" or "latest".',
            partition=str(partition), offset=offset,
        )  # fmt: skip

    def check_records(self, name: str, records: NewRecords) -> None:
        """Raise for what no partition could keep."""
        check_records(name, records, self.record_limit)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"{self.name} was closed.", hint="Open it again to go on.")

    def check_partition(self, partition: Partition) -> LogSettings:
        if not isinstance(partition, Partition):
            raise BadInput(f"{partition!r} is not a Partition.", hint='Write Partition("clicks", 0).')
        settings = self.settings(partition.log)
        check_index(settings, partition.index)
        return settings

    def bounds_of(self, partition: Partition) -> Bounds:
        return self._bounds(self.check_partition(partition))[partition.index]

    def register(self, opened: Any) -> None:
        """Close it with the store; what is opened while the store is being closed is closed at once."""
        with self._open_lock:
            if not self._is_closing:
                self._open.add(opened)
                return
        opened.close()
        raise Closed(f"{self.name} was closed.", hint="Open it again to go on.")

    def unregister(self, opened: Any) -> None:
        with self._open_lock:
            self._open.discard(opened)


class CommitWatch:
    """Waits for a group's commits: ``with watch as wait: wait(seconds)`` returns early when something was committed."""

    POLL = 0.02

    def __init__(self) -> None:
        """Nothing to prepare."""
        self._never = threading.Event()

    def __enter__(self) -> Any:
        """The function that waits."""
        return self.wait

    def __exit__(self, *_: object) -> None:
        """Nothing to undo."""

    def wait(self, seconds: float) -> None:
        """Sleep a little."""
        self._never.wait(min(seconds, self.POLL))


def check_index(settings: LogSettings, index: object) -> int:
    """The partition's number if the log has it."""
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < settings.partitions:
        raise PartitionNotFound(
            f"log {settings.name} has no partition {index!r}; it has {settings.partitions}.",
            hint=f"Use 0 to {settings.partitions - 1}.",
        )
    return index
