"""ProducerPool: threads that fill a log, and may wait until a group has consumed their records."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.clock import Duration, duration
from penstock.errors import BadInput, Closed
from penstock.log.log import Log
from penstock.log.pools.threads import ThreadedPool
from penstock.log.record import Headers, Moment, Offset

T = TypeVar("T")

FORCE = "penstock-force-batch"
PILL = "penstock-poison-pill"
BATCH = 500  # records of one append


class Message(msgspec.Struct, Generic[T]):
    """A value for a log with its key, partition, timestamp or headers.

    ``force_batch`` makes the consumer that reads it close its batch at once.
    """

    value: T
    key: str | bytes | None = None
    partition: int | None = None
    timestamp: Moment | None = None
    headers: Headers | None = None
    force_batch: bool = False


class ProducerStatus(msgspec.Struct):
    """What one producer has done, up to its ``error`` if it failed."""

    producer: int
    appended: int = 0
    seconds: float = 0.0
    error: BaseException | None = None
    consumed: bool | None = None  # whether the group of wait_for has consumed everything

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.error is not None


class ProducerPool(ThreadedPool[ProducerStatus], Generic[T]):
    """Runs ``make(0)``, ``make(1)``, … in threads: each returns an iterable of values or :class:`Message`.

    The order of one producer is kept within a partition. A second pool with the same ``make`` appends it all
    again. An error ends its producer and is kept in its status; ``run`` and ``wait`` do not raise it.

    Args:
        log: where they append
        make: called with the number of the producer
        producers: how many
        key: a function of a value, which decides the partition; by default the partitions take turns
        batch: records of one append
        wait_for: a group: every producer waits until it has committed past its records
        wait: how long
        progress: called with the number of records so far
    """

    def __init__(
        self,
        log: Log[T],
        make: Callable[[int], Iterable[T | Message[T]]],
        producers: int = 1,
        *,
        key: Callable[[T], str | bytes | None] | None = None,
        batch: int = BATCH,
        wait_for: str | None = None,
        wait: Duration = "1h",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Nothing runs before :meth:`start`. ``progress`` is called with the number of appended records."""
        if producers < 1 or batch < 1:
            raise BadInput(f"ProducerPool(producers={producers}, batch={batch}) does nothing.", hint="Use 1 or more.")
        self.log = log
        super().__init__([ProducerStatus(number) for number in range(producers)])
        self._make = make
        self._key = key
        self._batch = batch
        self._group = wait_for
        self._wait = duration(wait, name="wait")
        self._progress = progress
        self._stopping = threading.Event()

    def start(self) -> ProducerPool[T]:
        """Start the threads."""
        self._launch(
            threading.Thread(target=self._run, args=(status,), name=f"penstock-producer-{status.producer}", daemon=True)
            for status in self.statuses
        )
        return self

    def run(self) -> list[ProducerStatus]:
        """Start, and wait for the end."""
        return self.start().wait()

    @property
    def appended(self) -> int:
        """The number of records appended so far."""
        return sum(status.appended for status in self.statuses)

    def close(self) -> None:
        """Stop after the current batches."""
        self._stopping.set()
        self.wait()

    def poison(self, pills: int | None = None) -> None:
        """Append a poison pill to each partition, which ends the consumer that reads it.

        Args:
            pills: the first so many partitions only
        """
        for number in range(self.log.settings.partitions if pills is None else pills):
            append_pill(self.log, number)

    def _run(self, status: ProducerStatus) -> None:
        begin = time.monotonic()
        last: dict[int, Offset] = {}
        try:
            with self.log.appender() as appender:
                waiting: list[Message[T]] = []
                for item in self._make(status.producer):
                    if self._stopping.is_set():
                        raise Closed("the pool was closed before this producer ended.")
                    waiting.append(item if isinstance(item, Message) else self._message(item))
                    if len(waiting) == self._batch:
                        self._append(appender, waiting, status, last)
                        waiting = []
                self._append(appender, waiting, status, last)
            if self._group is not None:
                status.consumed = all(self.log.wait_for(offset, self._group, self._wait) for offset in last.values())
        except BaseException as error:
            status.error = error
        finally:
            status.seconds = time.monotonic() - begin

    def _message(self, value: T) -> Message[T]:
        return Message(value, None if self._key is None else self._key(value))

    def _append(
        self, appender: Any, messages: list[Message[T]], status: ProducerStatus, last: dict[int, Offset]
    ) -> None:
        """Append in as few calls as the order within partitions allows: one per run of the same explicit partition."""
        for run in _runs(messages):
            has_keys = any(message.key is not None for message in run)
            has_times = any(message.timestamp is not None for message in run)
            now = self.log.store.now()
            times = [now if message.timestamp is None else message.timestamp for message in run]
            appended = appender.append_many(
                [message.value for message in run],
                keys=[message.key for message in run] if has_keys else None,
                partition=run[0].partition,
                timestamps=times if has_times else None,
                headers=[_headers(message) for message in run],
            )
            for offset in appended:
                last[offset.partition] = offset
            status.appended += len(run)
        if self._progress is not None and messages:
            self._progress(self.appended)


def append_pill(log: Log[Any], partition: int) -> None:
    """Append a poison pill, which ends the consumer that reads it and is passed to no function."""
    with log.store.appender(log.name, bytes) as appender:
        appender.append(b"", partition=partition, headers={PILL: "1"})


def _headers(message: Message[Any]) -> Headers | None:
    if not message.force_batch:
        return message.headers
    return {**(message.headers or {}), FORCE: "1"}


def _runs(messages: list[Message[T]]) -> list[list[Message[T]]]:
    runs: list[list[Message[T]]] = []
    for message in messages:
        if runs and runs[-1][0].partition == message.partition:
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs
