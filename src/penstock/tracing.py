"""Tracing as the stores see it: what they ask of a tracer that listens. Without one they do nothing at all.

:func:`penstock.telemetry.trace` brings the tracer. Contexts travel in headers, as W3C writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"


class SpanName(Protocol):
    """What names a span among all spans."""

    @property
    def trace_id(self) -> int:
        """The trace."""

    @property
    def span_id(self) -> int:
        """The span in it."""


class Span(Protocol):
    """Something under way."""

    def message(self, id: str, count: int = 1) -> None:
        """Which message it is about, or how many."""

    def status(self, code: int) -> None:
        """What an HTTP server has answered."""

    def end(self, error: BaseException | None = None) -> None:
        """It has ended, well or not."""


class Tracing(Protocol):
    """A tracer that listens to one store."""

    each: bool  # whether every message has a context of its own

    def sending(self, operation: str, destination: str, given: Mapping[str, Any] | None = None) -> Span:
        """Messages are about to be sent; ``given`` headers may name a context already. The span is the current one."""

    def inject(self, headers: dict[str, Any], destination: str) -> dict[str, Any]:
        """The headers with the current context, unless they name one."""

    def received(
        self, operation: str, destination: str, headers: Iterable[Mapping[str, Any]], began: float, group: str = ""
    ) -> None:
        """Messages were received by a call that began at this time of ``time.perf_counter()``."""

    def checkpointing(self, computation: str, records: int) -> Span:
        """A checkpoint of a computation is about to be committed."""

    def delivering(self, method: str, url: str) -> tuple[Span, dict[str, str]]:
        """A request is about to be sent to a backend. Returns the headers that tell it of the trace."""

    def flush(self) -> None:
        """Send what was collected."""


def begin(tracing: Tracing | None, operation: str, destination: str, given: Mapping[str, Any] | None) -> Span | None:
    """A span for a call that sends, if somebody listens."""
    return None if tracing is None else tracing.sending(operation, destination, given)


def trace_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers of an HTTP request that name its trace."""
    named = {name.lower(): value for name, value in headers if name.lower() in (TRACEPARENT, TRACESTATE)}
    return named if TRACEPARENT in named else {}


def with_trace(own: Mapping[str, str], request: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers of a message that came in an HTTP request: its own trace, or else the request's."""
    return dict(own) if TRACEPARENT in own else {**trace_headers(request), **own}
