"""Tracing with OpenTelemetry: spans and metrics by its messaging conventions (v1.44).

A span that sends puts its context into the headers of what it sends. The span that processes it is a trace of its own
and links to the first one: hours, retries and a batch may be between the two.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import urlsplit

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.util.types import AttributeValue

from penstock.clock import SystemClock
from penstock.errors import BadInput
from penstock.log.store import LogStore
from penstock.policy import Outcome, Snooze
from penstock.queue.handling.context import Context
from penstock.queue.handling.handler import Handler
from penstock.queue.queues import QueueStore
from penstock.tracing import TRACEPARENT, TRACESTATE
from penstock.version import VERSION

Relate = Literal["link", "child"]
Attributes = dict[str, AttributeValue]

NAME = "penstock"
SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
MOST_LINKS = 128
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


LISTEN_EVERY = 1.0  # seconds
_SDK = "opentelemetry.sdk"
_WITHOUT_SDK = (trace.__name__, metrics.__name__)

_clock = SystemClock()  # of the spans, not of a store
_NO_CONTEXT = contexts.Context()  # under which a span is the first of its trace


class Tracer:
    """Listens to one store; see :func:`penstock.telemetry.trace`."""

    def __init__(
        self,
        store: QueueStore | LogStore,
        *,
        provider: Any = None,
        meter_provider: Any = None,
        relate: Relate = "link",
        each: bool = False,
        baggage: bool = False,
    ) -> None:
        """Begin to listen."""
        if relate not in ("link", "child"):
            raise BadInput(f"relate={relate!r} is unknown.", hint='Use "link" or "child".')
        self._provider = provider
        # What is asked for here needs its spans whatever becomes of them.
        self._is_heard = baggage or relate == "child" or provider is not None or meter_provider is not None
        self._listens_next = 0.0
        self._tracer = trace.get_tracer(NAME, VERSION, provider, SCHEMA)
        self._instruments = _Instruments(metrics.get_meter(NAME, VERSION, meter_provider, SCHEMA))
        self._relate = relate
        self.each = each
        self._baggage = baggage
        self._store = store
        self._system = "kafka" if type(store).__name__.startswith("Kafka") else NAME
        self._handled: dict[Handler, tuple[str, Attributes]] = {}
        self._middleware = _Middleware(self)
        if isinstance(store, QueueStore):
            store.driver.tracing = self
            store.middleware.insert(0, self._middleware)
        else:
            store.tracing = self

    def close(self) -> None:
        """Stop listening; running workers keep their middleware."""
        if isinstance(self._store, QueueStore):
            self._store.driver.tracing = None
            if self._middleware in self._store.middleware:
                self._store.middleware.remove(self._middleware)
        else:
            self._store.tracing = None

    def flush(self) -> None:
        """Send what was collected."""
        provider = self._provider or trace.get_tracer_provider()
        force_flush = getattr(provider, "force_flush", None)
        if force_flush is not None:
            force_flush()

    # --- sending -----------------------------------------------------------------------------------

    def sending(self, operation: str, destination: str, given: Mapping[str, Any] | None = None) -> _Running:
        """A span around a call that sends."""
        attributes = self._attributes(operation, "send", destination)
        creation = context_of(given)
        links = [] if creation is None else [Link(creation)]
        # A producer's span is the one whose context is sent; where each message has its own, this is only a call.
        kind = SpanKind.CLIENT if self.each or creation is not None else SpanKind.PRODUCER
        span = self._tracer.start_span(f"{operation} {destination}", kind=kind, attributes=attributes, links=links)
        return _Running(span, attributes, self._instruments.sent)

    def inject(self, headers: dict[str, Any], destination: str) -> dict[str, Any]:
        """The headers with the current context, unless they name one."""
        if TRACEPARENT in headers:
            return headers
        if self.each:
            span = self._tracer.start_span(
                f"create {destination}", kind=SpanKind.PRODUCER,
                attributes=self._attributes("create", "create", destination),
            )  # fmt: skip
            span.end()
            named = _named(span.get_span_context())
        else:
            named = _named(trace.get_current_span().get_span_context())
        if self._baggage:
            from opentelemetry.baggage.propagation import W3CBaggagePropagator

            W3CBaggagePropagator().inject(named)
        return {**headers, **named} if named else headers

    # --- receiving ---------------------------------------------------------------------------------

    def received(
        self, operation: str, destination: str, headers: Iterable[Mapping[str, Any]], began: float, group: str = ""
    ) -> None:
        """A span for a call that has received something."""
        seconds = time.perf_counter() - began
        given = list(headers)
        attributes = self._attributes(operation, "receive", destination)
        attributes["messaging.batch.message_count"] = len(given)
        if group:
            attributes["messaging.consumer.group.name"] = group
        creations = {
            (creation.trace_id, creation.span_id): creation
            for own in given
            if (creation := context_of(own)) is not None
        }
        links = [Link(creation) for creation in list(creations.values())[:MOST_LINKS]]
        now = _clock.micros() * 1000
        span = self._tracer.start_span(
            f"{operation} {destination}", kind=SpanKind.CLIENT, attributes=attributes, links=links,
            start_time=now - int(seconds * 1e9),
        )  # fmt: skip
        span.end(now)
        del attributes["messaging.batch.message_count"]
        self._instruments.consumed(attributes, len(given))
        self._instruments.operation.record(seconds, attributes)

    # --- processing --------------------------------------------------------------------------------

    def is_heard(self) -> bool:
        """Whether anything may come of the span of an attempt.

        Without an SDK nothing is recorded, and a link leads nowhere. A child still passes its context on, and baggage
        travels. OpenTelemetry's own SDK is known as soon as it is imported, any other within a second.
        """
        if not self._is_heard:
            if _SDK in sys.modules:
                self._is_heard = True
            elif (now := time.monotonic()) > self._listens_next:
                self._listens_next = now + LISTEN_EVERY
                providers = trace.get_tracer_provider(), metrics.get_meter_provider()
                self._is_heard = not all(type(provider).__module__.startswith(_WITHOUT_SDK) for provider in providers)
        return self._is_heard

    def process(self, ctx: Context[Any]) -> _Running:
        """A span around one attempt."""
        entry = ctx.entry
        known = self._handled.get(ctx.handler)
        if known is None:
            known = self._handled[ctx.handler] = self._name(ctx.handler)
        name, attributes = known
        more = attributes.copy()
        if ctx.handler.queue.is_family:
            more["messaging.destination.template"] = more["messaging.destination.name"]
            more["messaging.destination.name"] = entry.queue
        more["messaging.message.id"] = entry.id
        more["penstock.entry.attempt"] = entry.attempt
        more["penstock.entry.generation"] = entry.generation
        creation = context_of(entry.headers)
        links = None if creation is None else (Link(creation),)
        parent = _NO_CONTEXT
        if self._relate == "child" and creation is not None and entry.attempt == entry.generation == 1:
            parent = trace.set_span_in_context(NonRecordingSpan(creation), parent)
        if self._baggage:
            from opentelemetry.baggage.propagation import W3CBaggagePropagator

            parent = W3CBaggagePropagator().extract(entry.headers, parent)
        span = self._tracer.start_span(name, parent, SpanKind.CONSUMER, more, links)
        ctx.trace = span.get_span_context
        return _Running(span, attributes, self._instruments.processed, parent)

    def _name(self, handler: Handler) -> tuple[str, Attributes]:
        """The name of a handler's spans, and their common attributes."""
        queue = handler.queue
        template = f"{queue.name}*" if queue.is_family else queue.name
        return f"handle {template}", self._attributes("handle", "process", template)

    # --- the rest ----------------------------------------------------------------------------------

    def checkpointing(self, computation: str, records: int) -> _Running:
        """A span around the commit of a checkpoint."""
        attributes: Attributes = {"penstock.computation": computation, "penstock.checkpoint.records": records}
        span = self._tracer.start_span(f"checkpoint {computation}", attributes=attributes)
        return _Running(span, attributes, None)

    def delivering(self, method: str, url: str) -> tuple[_Running, dict[str, str]]:
        """A span around a request to a backend, by the conventions for HTTP; its query is not shown."""
        parts = urlsplit(url)
        attributes: Attributes = {"http.request.method": method, "server.address": parts.hostname or ""}
        attributes["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
        attributes["url.full"] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        span = self._tracer.start_span(method, kind=SpanKind.CLIENT, attributes=attributes)
        return _Running(span, attributes, None), _named(span.get_span_context())

    def _attributes(self, operation: str, kind: str, destination: str) -> Attributes:
        return {
            "messaging.system": self._system,
            "messaging.operation.name": operation,
            "messaging.operation.type": kind,
            "messaging.destination.name": destination,
        }


class _Running:
    """A span that is the current one until it ends."""

    __slots__ = ("_attributes", "_began", "_count", "_done", "_span", "_token")

    def __init__(
        self,
        span: trace.Span,
        attributes: Attributes,
        done: Callable[[Attributes, int, float], None] | None,
        parent: contexts.Context | None = None,
    ) -> None:
        self._span = span
        self._attributes = attributes
        self._done = done
        self._count = 1
        self._token = contexts.attach(trace.set_span_in_context(span, parent))
        self._began = time.perf_counter()

    def message(self, id: str, count: int = 1) -> None:
        """Set which message the span is about, or how many."""
        self._count = count
        if count == 1:
            self._span.set_attribute("messaging.message.id", id)
        else:
            self._span.set_attribute("messaging.batch.message_count", count)

    def status(self, code: int) -> None:
        """Set the status of an HTTP answer."""
        self._span.set_attribute("http.response.status_code", code)
        if code >= 400:
            self._fail(str(code))

    def returned(self, result: Any) -> None:
        """Set what a handler returned: an outcome may mean that it failed."""
        if isinstance(result, type) and issubclass(result, Outcome):
            name, failed = result.__name__, not issubclass(result, Snooze)
        elif isinstance(result, Outcome):
            name, failed = type(result).__name__, not isinstance(result, Snooze)
        else:
            name, failed = "False", result is False
        if failed:
            self._fail(name)
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """End the span, with or without an error."""
        if error is not None and not isinstance(error, Snooze):
            self._fail(type(error).__name__, str(error))
            if not isinstance(error, Outcome):
                self._span.record_exception(error)
        contexts.detach(self._token)
        self._span.end()
        if self._done is not None:
            self._done(self._attributes, self._count, time.perf_counter() - self._began)

    def _fail(self, error_type: str, description: str | None = None) -> None:
        self._attributes = {**self._attributes, "error.type": error_type}  # all spans of a handler may share it
        self._span.set_attribute("error.type", error_type)
        self._span.set_status(Status(StatusCode.ERROR, description))


class _Middleware:
    """Around every handler of the store: a span for each attempt."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, ctx: Context[Any], call_next: Callable[[], Any]) -> Any:
        if not self._tracer.is_heard():
            return call_next()
        running = self._tracer.process(ctx)
        try:
            result = call_next()
        except BaseException as error:
            running.end(error)
            raise
        running.returned(result)
        return result

    async def in_loop(self, ctx: Context[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        if not self._tracer.is_heard():
            return await call_next()
        running = self._tracer.process(ctx)
        try:
            result = await call_next()
        except BaseException as error:
            running.end(error)
            raise
        running.returned(result)
        return result


class _Instruments:
    """The metrics of the messaging conventions."""

    def __init__(self, meter: metrics.Meter) -> None:
        self.operation = meter.create_histogram(
            "messaging.client.operation.duration", "s", "Duration of messaging operations initiated by a client.",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )  # fmt: skip
        self._process = meter.create_histogram(
            "messaging.process.duration", "s", "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )  # fmt: skip
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Messages sent.")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}", "Messages consumed.")

    def sent(self, attributes: Attributes, count: int, seconds: float) -> None:
        self.operation.record(seconds, attributes)
        self._sent.add(count, attributes)

    def processed(self, attributes: Attributes, count: int, seconds: float) -> None:
        self._process.record(seconds, attributes)
        self._consumed.add(count, attributes)

    def consumed(self, attributes: Attributes, count: int) -> None:
        self._consumed.add(count, attributes)


def context_of(headers: Mapping[str, Any] | None) -> SpanContext | None:
    """The span that headers name, or None if they name none that can be read."""
    named = headers.get(TRACEPARENT) if headers else None
    if not headers or not isinstance(named, str):
        return None
    state = headers.get(TRACESTATE)
    return _context_named(named, state if isinstance(state, str) else None)


@lru_cache(maxsize=128)  # what was put together names the same span
def _context_named(named: str, state: str | None) -> SpanContext | None:
    if (parts := _TRACEPARENT.fullmatch(named)) is None:
        return None
    context = SpanContext(
        int(parts[1], 16), int(parts[2], 16), is_remote=True, trace_flags=TraceFlags(int(parts[3], 16)),
        trace_state=None if state is None else TraceState.from_header([state]),
    )  # fmt: skip
    return context if context.is_valid else None


def _named(context: SpanContext) -> dict[str, str]:
    """The headers that name a span, or none if there is none."""
    if not context.is_valid:
        return {}
    named = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        named[TRACESTATE] = context.trace_state.to_header()
    return named
