"""Verdicts: what middleware has learnt from attempts is written in the call that settles them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.queue.handling.middleware import Layer, VerdictSink
from penstock.queue.handling.outcomes import Ended
from penstock.queue.protocol import DocumentWrite, Settled

Writes = list[tuple[VerdictSink, Sequence[DocumentWrite]]]


class Verdicts:
    """The sinks to which the middleware of this worker's handlers gives its verdicts."""

    def __init__(self) -> None:
        """Start without sinks."""
        self._sinks: list[VerdictSink] = []
        self._begun: list[VerdictSink] = []

    def follow(self, layers: Iterable[Layer], *, begin: bool) -> None:
        """A handler with this middleware is served from now on; ``begin``: in the background."""
        for layer in layers:
            if layer.sink is None or layer.sink in self._sinks:
                continue
            self._sinks.append(layer.sink)
            if begin:
                layer.sink.begin()
                self._begun.append(layer.sink)

    def close(self) -> None:
        """The worker serves nobody any more."""
        self._sinks.clear()
        while self._begun:
            self._begun.pop().end()

    def writes(self, outcomes: list[Ended]) -> Writes:
        """What to write together with these outcomes."""
        if not self._sinks:
            return []
        by_sink: dict[int, tuple[VerdictSink, list[Any]]] = {}
        for _, context in outcomes:
            for sink, verdict in () if context is None or context.verdicts is None else context.verdicts:
                if id(sink) not in by_sink:
                    by_sink[id(sink)] = (sink, [])
                by_sink[id(sink)][1].append(verdict)
        return [(sink, sink.writes(verdicts)) for sink, verdicts in by_sink.values()]

    def written(self, writes: Writes, reply: Settled, outcomes: list[Ended]) -> None:
        """The call came through."""
        results = iter(reply.written)
        for sink, its_writes in writes:
            sink.written(its_writes, [next(results) for _ in its_writes])
        for _, context in outcomes:
            if context is not None:
                context.verdicts = None  # what is settled in a second try says nothing new

    def not_written(self, writes: Writes) -> None:
        """The call failed. Its verdicts will be sent again."""
        for sink, its_writes in writes:
            sink.written(its_writes, None)
