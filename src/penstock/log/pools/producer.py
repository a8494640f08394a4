"""ProducerPool: several producers that fill a log at once, and may wait until a group has consumed what they gave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from penstock.clock import Duration, duration
from penstock.errors import BadInput, Closed
from penstock.log.log import Log
from penstock.log.pools.threads import Crew
from penstock.log.record import Headers, Moment, Offset

T = TypeVar("T")

FORCE = "penstock-force-batch"
PILL = "penstock-poison-pill"
BATCH = 500  # records of one append


class Message(msgspec.Struct, Generic[T]):
    """A value on its way into a log, for producers that say more than the value.

    ``force_batch`` closes the batch of whoever consumes it at once.
    """

    value: T
    key: str | bytes | None = None
    partition: int | None = None
    timestamp: Moment | None = None
    headers: Headers | None = None
    force_batch: bool = False


class ProducerStatus(msgspec.Struct):
    """What one producer came to; ``error`` if it failed, with what it had appended until then."""

    producer: int
    appended: int = 0
    seconds: float = 0.0
    error: BaseException | None = None
    consumed: bool | None = None  # whether the group waited for has consumed it all, or None if nobody waited

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.error is not None


class ProducerPool(Crew[ProducerStatus], Generic[T]):
    """Runs ``make(0)``, ``make(1)``, … in threads: each gives an iterable of values or :class:`Message`.

    Values go by ``key`` (a function of the value) if it is given, else to the partitions in turn. The order of one
    producer is kept within a partition, and a rerun gives the same again. With ``wait_for`` every producer waits until
    that group has committed past its records.
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
        """Nothing runs before :meth:`start`; ``progress`` is told how many records were appended so far."""
        if producers < 1 or batch < 1:
            raise BadInput(f"ProducerPool(producers={producers}, batch={batch}) does nothing.", hint="Use 1 or more.")
        self.log = log
        super().__init__([ProducerStatus(number) for number in range(producers)])
        self._make = make
        self._key = key
        self._batch = batch
        self._group = wait_for
        self._patience = duration(wait, name="wait")
        self._progress = progress
        self._stopping = threading.Event()

    def start(self) -> ProducerPool[T]:
        """Begin in the background."""
        self._launch(
            threading.Thread(target=self._run, args=(status,), name=f"penstock-producer-{status.producer}", daemon=True)
            for status in self.statuses
        )
        return self

    def run(self) -> list[ProducerStatus]:
        """Start and wait for the end."""
        return self.start().wait()

    @property
    def appended(self) -> int:
        """Records appended so far."""
        return sum(status.appended for status in self.statuses)

    def close(self) -> None:
        """Stop after the batches under way."""
        self._stopping.set()
        self.wait()

    def poison(self, pills: int | None = None) -> None:
        """Append one poison pill to every partition, or to the first so many: each ends the consumer that reads it."""
        for number in range(self.log.settings.partitions if pills is None else pills):
            give_pill(self.log, number)

    def _run(self, status: ProducerStatus) -> None:
        begin = time.monotonic()
        last: dict[int, Offset] = {}
        try:
            with self.log.appender() as appender:
                waiting: list[Message[T]] = []
                for one in self._make(status.producer):
                    if self._stopping.is_set():
                        raise Closed("the pool was closed before this producer had ended.")
                    waiting.append(one if isinstance(one, Message) else self._message(one))
                    if len(waiting) == self._batch:
                        self._append(appender, waiting, status, last)
                        waiting = []
                self._append(appender, waiting, status, last)
            if self._group is not None:
                status.consumed = all(
                    self.log.wait_for(offset, self._group, self._patience) for offset in last.values()
                )
        except BaseException as error:
            status.error = error
        finally:
            status.seconds = time.monotonic() - begin

    def _message(self, value: T) -> Message[T]:
        return Message(value, None if self._key is None else self._key(value))

    def _append(
        self, appender: Any, messages: list[Message[T]], status: ProducerStatus, last: dict[int, Offset]
    ) -> None:
        """Append in as few calls as the order within partitions allows: runs of the same explicit partition."""
        for run in _runs(messages):
            dated = any(one.timestamp is not None for one in run)
            now = self.log.store.now()
            appended = appender.append_many(
                [one.value for one in run],
                keys=[one.key for one in run] if any(one.key is not None for one in run) else None,
                partition=run[0].partition,
                timestamps=[now if one.timestamp is None else one.timestamp for one in run] if dated else None,
                headers=[_headers(one) for one in run],
            )
            for offset in appended:
                last[offset.partition] = offset
            status.appended += len(run)
        if self._progress is not None and messages:
            self._progress(self.appended)


def give_pill(log: Log[Any], partition: int) -> None:
    """Append a poison pill: handed to nobody, it ends the consumer that reads it."""
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
