"""Transaction: appends to any logs and offsets of tailers, visible together or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, Closed, UnitTooLarge
from penstock.log.protocol import Commit, Committed, Source, Staged
from penstock.log.record import Headers, Moment, NewRecords, Partition
from penstock.log.routing import Router
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer
from penstock.names import check_name
from penstock.scalars import Scalar


class Transaction:
    """Collects appends and offsets, which ``commit()`` commits together. Without it, nothing happens.

    A ``producer`` with a ``sequence`` makes it repeatable: a second commit of the same or a lower sequence changes
    nothing and returns ``duplicate=True``. Only one thread may use it at a time.
    """

    def __init__(self, store: LogStore, *, producer: str | None = None, sequence: int | None = None) -> None:
        """Begin; nothing is written before the commit."""
        if (producer is None) != (sequence is None):
            raise BadInput("a repeatable transaction needs producer and sequence.", hint="Give both, or neither.")
        if sequence is not None and (isinstance(sequence, bool) or not isinstance(sequence, int) or sequence < 0):
            raise BadInput(f"sequence {sequence!r} is not a number from 0.", hint="Use rising whole numbers.")
        self.store = store
        self.closed = False
        self._producer = None if producer is None else check_name(producer, kind="producer")
        self._sequence = sequence
        self._outputs: list[tuple[Partition, NewRecords]] = []
        self._offsets: dict[int, tuple[Source, dict[Partition, int]]] = {}
        self._staged: list[Staged] = []
        self._routers: dict[tuple[str, str], Router] = {}
        self._size = 0

    def append(
        self,
        log: str,
        value: Any,
        type: Any = Any,
        *,
        key: Scalar | bytes = None,
        partition: int | None = None,
        timestamp: Moment | None = None,
        headers: Headers | None = None,
        codec: Codec[Any] | None = None,
    ) -> None:
        """Add a record, which is visible with the commit.

        Args:
            log: its name
        """
        number, records = self._router(log, type, codec).route_one(
            value, key=key, partition=partition, timestamp=timestamp, headers=headers
        )
        self._add(log, [(number, records)])

    def append_many(
        self,
        log: str,
        values: Iterable[Any],
        type: Any = Any,
        *,
        keys: Sequence[Scalar | bytes] | None = None,
        partition: int | None = None,
        timestamps: Sequence[Moment] | None = None,
        headers: Sequence[Headers | None] | None = None,
        codec: Codec[Any] | None = None,
    ) -> None:
        """Add records, which are visible with the commit.

        Args:
            log: its name
            headers: one for each value
        """
        parts, _ = self._router(log, type, codec).route_many(
            values, keys=keys, partition=partition, timestamps=timestamps, headers=headers
        )
        self._add(log, parts)

    def append_staged(self, *staged: Staged) -> None:
        """Add staged records of any process (see :meth:`LogStore.stage`)."""
        self._check()
        if not self.store.capabilities.staging:
            raise self.store.unsupported("staging")
        for records in staged:
            self.store.settings(records.log)
        self._staged += staged

    def commit_offsets(self, tailer: Tailer[Any], offsets: dict[Partition, int] | None = None) -> None:
        """Add the positions of a tailer.

        Args:
            tailer: whose partitions they are
            offsets: the next to read, by partition; by default where the tailer is
        """
        self._check()
        if tailer.store is not self.store:
            raise BadInput("the tailer belongs to another store.", hint="A transaction stays within one store.")
        chosen = tailer.positions() if offsets is None else dict(offsets)
        unowned = chosen.keys() - set(tailer.assignment())
        if unowned:
            raise BadInput(f"{min(unowned)} is not assigned to the tailer.", hint="Commit only what it reads.")
        source = tailer.source
        self._offsets.setdefault(id(source), (source, {}))[1].update(chosen)

    def commit(self) -> Committed:
        """Commit all of it, or nothing.

        Raises:
            Fenced: a tailer has lost a partition meanwhile
            OutcomeUnknown: it may have happened; with ``producer`` and ``sequence`` it can be repeated
        """
        self._check()
        self.closed = True
        merged: dict[Partition, list[NewRecords]] = {}
        for partition, records in self._outputs:
            merged.setdefault(partition, []).append(records)
        outputs = [(partition, NewRecords.concat(parts, self.store.now)) for partition, parts in sorted(merged.items())]
        return self.store.transact(
            Commit(outputs, list(self._offsets.values()), self._staged, self._producer, self._sequence)
        )

    def rollback(self) -> None:
        """Discard everything."""
        self.closed = True
        self._outputs.clear()
        self._offsets.clear()
        self._staged.clear()

    def __enter__(self) -> Transaction:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Roll back what was not committed."""
        if not self.closed:
            self.rollback()

    def _router(self, log: str, type_: Any, codec: Codec[Any] | None) -> Router:
        self._check()
        reader = codec or codec_for(type_)
        kind = (log, f"{reader.name} {reader.type_name} {id(codec) if codec else 0}")
        if kind not in self._routers:
            self._routers[kind] = Router(self.store, self.store.settings(log), reader)
        return self._routers[kind]

    def _add(self, log: str, parts: list[tuple[int, NewRecords]]) -> None:
        size = sum(len(value) for _, records in parts for value in records.values)
        if self._size + size > self.store.transaction_bytes:
            raise UnitTooLarge(
                f"a transaction of more than {self.store.transaction_bytes:,} bytes is too large.",
                hint="Commit more often, or stage() large parts.",
            )
        self._size += size
        self._outputs += [(Partition(log, number), records) for number, records in parts]

    def _check(self) -> None:
        if self.closed:
            raise Closed("the transaction has ended.", hint="Begin a new one.")
