"""Traces: spans by the messaging conventions, contexts in headers, and links where time lies between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import baggage, context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode
from tests.backends import backend

import penstock
from penstock import Bus, QueueStore, Reject, Retry, Snooze, Worker, telemetry
from penstock.errors import BadInput
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.routes import Routes
from penstock.stream import LocalRunner, Topology, computation
from penstock.testing import FakeClock

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


class Mail(msgspec.Struct):
    to: str


class Spans:
    """A provider, and what it was told."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Iterator[QueueStore]:
    with penstock.open_queues("memory://", clock=clock) as opened:
        yield opened


def trace(spans: Spans, store: Any, **options: Any) -> Any:
    return telemetry.trace(store, provider=spans.provider, meter_provider=spans.meters, **options)


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def own(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


class TestQueues:
    def test_a_put_and_its_handling_are_linked(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store)
        queue = store.queue("mails", str)
        queue.handler(str.upper)
        with spans.tracer.start_as_current_span("request") as request:
            id_ = queue.put("x").id
        Worker(store).drain()
        [put], [handle] = spans.named("put mails"), spans.named("handle mails")
        assert put.kind is SpanKind.PRODUCER
        assert put.parent is not None
        assert put.parent.span_id == request.get_span_context().span_id
        assert dict(put.attributes or {}) == {
            "messaging.system": "penstock", "messaging.operation.name": "put", "messaging.operation.type": "send",
            "messaging.destination.name": "mails", "messaging.message.id": id_,
        }  # fmt: skip
        assert handle.kind is SpanKind.CONSUMER
        assert handle.parent is None, "a trace of its own"
        assert own(handle)[0] != own(put)[0]
        assert linked(handle) == [own(put)]
        assert dict(handle.attributes or {}) == {
            "messaging.system": "penstock", "messaging.operation.name": "handle",
            "messaging.operation.type": "process", "messaging.destination.name": "mails", "messaging.message.id": id_,
            "penstock.entry.attempt": 1, "penstock.entry.generation": 1,
        }  # fmt: skip
        assert handle.instrumentation_scope is not None
        assert handle.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"

    def test_a_context_that_was_given_stays(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store)
        queue = store.queue("mails", str)
        queue.handler(str.upper)
        with spans.tracer.start_as_current_span("request"):
            queue.put("x", headers={"traceparent": GIVEN, "tracestate": "a=b", "mine": "1"})
        [entry] = queue.find()
        assert entry.headers == {"traceparent": GIVEN, "tracestate": "a=b", "mine": "1"}
        Worker(store).drain()
        expected = [(int(TRACE, 16), int(SPAN, 16))]
        [put], [handle] = spans.named("put mails"), spans.named("handle mails")
        assert put.kind is SpanKind.CLIENT
        assert linked(put) == linked(handle) == expected
        assert handle.links[0].context.trace_state.get("a") == "b"

    @pytest.mark.parametrize("broken", ["", "nonsense", "00-0-0-0", f"00-{'0' * 32}-{SPAN}-01", "x" * 5000])
    def test_a_broken_context_harms_nobody(self, store: QueueStore, spans: Spans, broken: str) -> None:
        trace(spans, store)
        queue = store.queue("mails", str)
        done: list[str] = []
        queue.handler(done.append)
        queue.put("x", headers={"traceparent": broken, "tracestate": "=,,"})
        Worker(store).drain()
        assert done == ["x"]
        [handle] = spans.named("handle mails")
        assert linked(handle) == []

    def test_three_attempts_are_three_traces_linked_to_one_put(
        self, store: QueueStore, spans: Spans, clock: FakeClock
    ) -> None:
        trace(spans, store, relate="child")
        queue = store.queue("mails", int)
        queue.handler(retry=Retry(attempts=3, delays=["1s"]))(lambda number: 1 // number)
        queue.put(0)
        for _ in range(3):
            Worker(store).drain()
            clock.advance("2s")
        [put], handled = spans.named("put mails"), spans.named("handle mails")
        assert [span.attributes["penstock.entry.attempt"] for span in handled] == [1, 2, 3]
        assert [linked(span) for span in handled] == [[own(put)]] * 3
        first, *others = handled
        assert first.parent is not None
        assert first.parent.span_id == own(put)[1], "a first attempt is a child where that was asked for"
        assert [span.parent for span in others] == [None, None]
        for span in handled:
            assert span.attributes["error.type"] == "ZeroDivisionError"
            assert span.status.status_code is StatusCode.ERROR
            assert [event.name for event in span.events] == ["exception"]
        assert len({own(span)[0] for span in others}) == 2
        # A replay is not a first attempt of that put.
        queue.replay(queue.dead()[0].id)
        Worker(store).drain()
        assert spans.named("handle mails")[-1].parent is None
        assert linked(spans.named("handle mails")[-1]) == [own(put)]

    @pytest.mark.parametrize(
        ("outcome", "error_type"),
        [(Reject("no"), "Reject"), (False, "False"), (Snooze("1s"), None), (None, None), (Snooze, None)],
    )
    def test_what_a_handler_returns_may_be_a_failure(
        self, store: QueueStore, spans: Spans, outcome: Any, error_type: str | None
    ) -> None:
        trace(spans, store)
        queue = store.queue("mails", int)
        queue.handler(lambda number: outcome)
        queue.put(1)
        Worker(store).drain()
        assert spans.named("handle mails")[0].attributes.get("error.type") == error_type

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_what_a_handler_puts_belongs_to_its_span(self, store: QueueStore, spans: Spans, kind: str) -> None:
        trace(spans, store)
        first, second = store.queue("first", int), store.queue("second", int)

        def handle(number: int, ctx: Any) -> None:
            ctx.put(second, number)
            with spans.tracer.start_as_current_span("inside"):
                pass
            assert ctx.trace is not None

        async def handle_async(number: int, ctx: Any) -> None:
            handle(number, ctx)

        first.handler(handle if kind == "sync" else handle_async)
        second.handler(lambda number: None)
        first.put(1)
        worker = Worker(store)
        worker.drain()
        [handled], [inside], [later] = (spans.named(name) for name in ("handle first", "inside", "handle second"))
        assert inside.parent.span_id == own(handled)[1]
        assert linked(later) == [own(handled)]

    def test_a_batch_is_one_span_or_one_for_each(self, store: QueueStore, spans: Spans) -> None:
        tracer = trace(spans, store)
        queue = store.queue("mails", int)
        queue.put_many(range(3))
        [put] = spans.all()
        assert put.attributes["messaging.batch.message_count"] == 3
        assert "messaging.message.id" not in put.attributes
        assert len({entry.headers["traceparent"] for entry in queue.find()}) == 1
        tracer.close()
        trace(spans, store, each=True)
        queue.put_many(range(3))
        created = spans.named("create mails")
        assert [span.kind for span in created] == [SpanKind.PRODUCER] * 3
        assert spans.named("put mails")[-1].kind is SpanKind.CLIENT
        named = {entry.headers["traceparent"].split("-")[2] for entry in queue.find()[3:]}
        assert named == {f"{own(span)[1]:016x}" for span in created}

    def test_a_family_has_one_name(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store)
        family = store.family("customer.", int)
        family.handler(lambda number: None)
        family.member("customer.7").put(1)
        Worker(store).drain()
        [handle] = spans.named("handle customer.*")
        assert handle.attributes["messaging.destination.name"] == "customer.7"
        assert handle.attributes["messaging.destination.template"] == "customer.*"

    def test_taking_in_a_unit(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store)
        queue = store.queue("mails", int)
        queue.put_many([1, 2])
        queue.put(3)
        with store.unit() as unit:
            assert unit.take(store.queue("other", int)) == []
            assert len(unit.take(queue, 10)) == 3
            unit.commit()
        [take] = spans.named("take mails")
        assert spans.named("take other") == []
        assert take.kind is SpanKind.CLIENT
        assert take.attributes["messaging.batch.message_count"] == 3
        assert linked(take) == [own(span) for span in spans.named("put mails")]

    def test_an_idle_worker_says_nothing(self, store: QueueStore, spans: Spans, clock: FakeClock) -> None:
        trace(spans, store)
        store.queue("mails", int).handler(lambda number: None)
        worker = Worker(store)
        worker.start()
        for _ in range(60):
            clock.advance("1s")
        Worker(store).drain()
        worker.stop()
        assert spans.all() == []

    def test_a_schedule_belongs_to_no_trace(self, store: QueueStore, spans: Spans, clock: FakeClock) -> None:
        trace(spans, store)
        queue = store.queue("mails", int)
        queue.handler(lambda number: None)
        for name in ("first start", "second start"):
            with spans.tracer.start_as_current_span(name):
                assert queue.schedule("nightly", 1, every="1h", on_conflict="raise")
        clock.advance("61m")
        Worker(store).drain()
        [handle] = spans.named("handle mails")
        assert linked(handle) == []

    def test_a_failed_put_is_a_failed_span(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store)
        with pytest.raises(BadInput):
            store.queue("mails", int).put(1, priority=1000)
        [put] = spans.all()
        assert (put.attributes["error.type"], put.status.status_code) == ("BadInput", StatusCode.ERROR)

    def test_baggage_travels_if_asked(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store, baggage=True)
        queue = store.queue("mails", int)
        seen: list[object] = []
        queue.handler(lambda number: seen.append(baggage.get_baggage("tenant")))
        token = context.attach(baggage.set_baggage("tenant", "ann"))
        queue.put(1)
        context.detach(token)
        Worker(store).drain()
        assert seen == ["ann"]

    def test_after_the_end_nothing_is_touched(self, store: QueueStore, spans: Spans) -> None:
        trace(spans, store).close()
        queue = store.queue("mails", int)
        queue.handler(lambda number: None)
        queue.put(1)
        assert queue.find()[0].headers == {}
        Worker(store).drain()
        assert (spans.all(), store.middleware) == ([], [])

    def test_a_slip_is_told(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="relate"):
            telemetry.trace(store, relate="parent")  # type: ignore[arg-type]


def test_metrics_follow_the_conventions(store: QueueStore, spans: Spans) -> None:
    trace(spans, store)
    family = store.family("customer.", int)
    family.handler(retry=Retry(attempts=1))(lambda number: 1 // number)
    for number in range(4):
        family.member(f"customer.{number}").put(number)
    Worker(store).drain()
    handled = spans.points("messaging.process.duration")
    assert {(point.attributes.get("error.type"), point.count) for point in handled} == {
        (None, 3), ("ZeroDivisionError", 1),
    }  # fmt: skip
    assert {point.attributes["messaging.destination.name"] for point in handled} == {"customer.*"}
    assert sum(point.value for point in spans.points("messaging.client.consumed.messages")) == 4
    assert sum(point.value for point in spans.points("messaging.client.sent.messages")) == 4
    assert sum(point.count for point in spans.points("messaging.client.operation.duration")) == 4


def test_the_bus_carries_the_context(store: QueueStore, spans: Spans) -> None:
    trace(spans, store)
    bus = Bus(store)
    for name in ("one", "two"):
        bus.subscribe(name, Mail).handler(lambda mail: None)
    bus.publish(Mail("ann"))
    Worker(store).drain()
    [publish] = [span for span in spans.all() if span.name.startswith("publish ")]
    assert publish.kind is SpanKind.PRODUCER
    for name in ("one", "two"):
        [handle] = spans.named(f"handle bus.{name}")
        assert linked(handle) == [own(publish)]


class TestLogs:
    def test_appending_and_reading(self, spans: Spans, tmp_path: Path) -> None:
        with penstock.open_logs(f"file://{tmp_path}") as logs:
            trace(spans, logs)
            logs.create("clicks", 1)
            with logs.appender("clicks") as out, logs.tailer("clicks", group="billing") as tail:
                out.append({"n": 1}, headers={"mine": b"1"})
                out.append_many([{"n": 2}, {"n": 3}], headers=[{"traceparent": GIVEN}, None])
                with spans.tracer.start_as_current_span("request") as request:
                    out.send({"n": 4})
                    out.flush()
                records = tail.read(timeout="10s")
                assert len(records) == 4
                assert tail.read() == []
            one, many = spans.named("append clicks")
            assert one.kind is SpanKind.PRODUCER
            assert many.attributes["messaging.batch.message_count"] == 2
            assert records[0].headers["mine"] == b"1"
            assert records[1].headers == {"traceparent": GIVEN}
            sent = request.get_span_context()
            assert records[3].headers["traceparent"].split("-")[2] == f"{sent.span_id:016x}"
            [read] = spans.named("read clicks")
            assert read.attributes["messaging.consumer.group.name"] == "billing"
            given = (int(TRACE, 16), int(SPAN, 16))
            assert linked(read) == [own(one), given, own(many), (sent.trace_id, sent.span_id)]

    def test_a_transaction_carries_the_context_at_work(self, spans: Spans) -> None:
        with penstock.open_logs("memory://") as logs:
            trace(spans, logs)
            logs.create("clicks", 1)
            with spans.tracer.start_as_current_span("request") as request, logs.transaction() as transaction:
                transaction.append("clicks", {"n": 1})
                transaction.commit()
            [record] = logs.log("clicks").records(0)
            assert f"{request.get_span_context().trace_id:032x}" in record.headers["traceparent"]

    def test_a_stream_carries_the_context_through_and_tells_its_checkpoints(self, spans: Spans, tmp_path: Path) -> None:
        @computation("double", inputs="numbers", outputs="doubled")
        def double(record: Any, ctx: Any) -> None:
            ctx.produce("doubled", record.value * 2)

        topology = Topology("sums", partitions=1).stream("numbers", int).stream("doubled", int).add(double)
        with penstock.open_logs(f"file://{tmp_path}") as logs:
            trace(spans, logs)
            with LocalRunner(topology, logs) as runner:
                logs.log("numbers", int).append(7)
                assert runner.drain("30s")
            [record] = logs.log("doubled", int).records(0)
        [append] = spans.named("append numbers")
        assert f"{own(append)[0]:032x}-{own(append)[1]:016x}" in record.headers["traceparent"]
        assert spans.named("checkpoint double")


class TestGateway:
    def deliver(self, store: QueueStore, target: str, **headers: str) -> None:
        gateway = Gateway(store, Routes.read({"/crm/(.*)": f"{target}/api/$1"}))
        deliverer = Deliverer(gateway, retry=Retry(attempts=1))
        try:
            gateway.accept("PUT", "/crm/a?key=secret", [("x-queue", "q"), *headers.items()], b"x")
            Worker(store).drain()
        finally:
            deliverer.close()

    def test_without_a_tracer_the_context_goes_through(self, store: QueueStore) -> None:
        with backend() as far:
            self.deliver(store, far.url, Traceparent=GIVEN)
            [(_, _, headers, _)] = far.calls
        assert {name.lower(): value for name, value in headers.items()}["traceparent"] == GIVEN
        [row] = store.family("requests.").history()
        assert row.headers == {"traceparent": GIVEN}

    @pytest.mark.parametrize("status", [200, 500])
    def test_a_delivery_is_a_span(self, store: QueueStore, spans: Spans, status: int) -> None:
        trace(spans, store)
        with backend() as far:
            far.mode = status
            self.deliver(store, far.url, Traceparent=GIVEN)
            [(_, _, headers, _)] = far.calls
            port = int(far.url.rpartition(":")[2])
        [delivery], [handle] = spans.named("PUT"), spans.named("handle requests.*")
        assert delivery.kind is SpanKind.CLIENT
        assert delivery.parent.span_id == own(handle)[1]
        assert linked(handle) == [(int(TRACE, 16), int(SPAN, 16))]
        sent = {name.lower(): value for name, value in headers.items()}["traceparent"]
        assert sent.split("-")[1:3] == [f"{own(delivery)[0]:032x}", f"{own(delivery)[1]:016x}"]
        attributes = dict(delivery.attributes or {})
        assert attributes["http.request.method"] == "PUT"
        assert attributes["http.response.status_code"] == status
        assert attributes["server.port"] == port
        assert attributes["url.full"] == f"{far.url}/api/a", "what is in the query is nobody's business"
        assert attributes.get("error.type") == (None if status == 200 else "500")


# --- across processes ------------------------------------------------------------------------------

APP = '''
import json, os, sys
import penstock
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from penstock import telemetry

class ToFile(SpanExporter):
    """Appends a line for each span."""

    def export(self, spans):
        with open("spans.jsonl", "a") as file:
            for span in spans:
                links = [[link.context.trace_id, link.context.span_id] for link in span.links]
                own = [span.context.trace_id, span.context.span_id]
                file.write(json.dumps({"name": span.name, "own": own, "links": links, "pid": os.getpid()}) + "\\n")
        return SpanExportResult.SUCCESS

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ToFile(), schedule_delay_millis=3_600_000))
store = penstock.open_queues("sqlite:///shop.db")
telemetry.trace(store, provider=provider)
mails = store.queue("mails", int)
mails.handler(lambda number: None)
'''


@pytest.mark.timeout(150)
@pytest.mark.crash
def test_spans_of_two_processes_are_linked_and_none_is_lost_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "shopapp.py").write_text(APP)
    putting = "import shopapp\nfor n in range(10): shopapp.mails.put(n)\nshopapp.provider.force_flush()"
    subprocess.run([sys.executable, "-c", putting], cwd=tmp_path, check=True, timeout=60)
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "penstock", "worker", "shopapp:store", "--processes", "2"],
            cwd=tmp_path, stderr=log, stdout=log,
        )  # fmt: skip
    try:
        with penstock.open_queues(f"sqlite:///{tmp_path}/shop.db") as store:
            deadline = time.monotonic() + 90
            while store.counts(queue="mails")[0].live:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.02)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
    told = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    puts = [span for span in told if span["name"] == "put mails"]
    handled = [span for span in told if span["name"] == "handle mails"]
    assert (len(puts), len(handled)) == (10, 10)
    assert sorted(link for span in handled for link in span["links"]) == sorted(span["own"] for span in puts)
    assert not {span["pid"] for span in handled} & {span["pid"] for span in puts}


def test_nothing_is_imported_that_is_not_used() -> None:
    code = (
        "import sys, penstock, penstock.telemetry, penstock.telemetry.metrics\n"
        "store = penstock.open_queues('memory://'); queue = store.queue('q', int); queue.handler(print)\n"
        "queue.put(1); penstock.Worker(store).drain()\n"
        "print(sorted(name for name in sys.modules if name.startswith('opentelemetry')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_without_an_sdk_a_child_passes_its_context_on(store: QueueStore) -> None:
    nothing = NoOpTracerProvider()
    telemetry.trace(store, provider=nothing, meter_provider=NoOpMeterProvider(), relate="child")
    queue, onward = store.queue("mails", str), store.queue("onward", str)
    queue.handler(lambda value, ctx: onward.put(value))
    queue.put("x", headers={"traceparent": GIVEN})
    Worker(store).drain()
    [entry] = onward.find()
    assert entry.headers["traceparent"] == GIVEN


def test_an_sdk_that_comes_late_gets_what_follows() -> None:
    code = """
import penstock
from penstock import Worker, telemetry
from opentelemetry import trace
store = penstock.open_queues("memory://")
telemetry.trace(store)
queue = store.queue("q", int)
queue.handler(abs)
queue.put(1)
Worker(store).drain()
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
queue.put(2)
Worker(store).drain()
print([span.name for span in exporter.get_finished_spans()])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "['put q', 'handle q']"


def test_without_the_library_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError('gone', name='opentelemetry')")
    code = "import penstock; penstock.telemetry.trace(penstock.open_queues('memory://'))"
    code = code.replace("import penstock;", "import penstock, penstock.telemetry;")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert 'pip install "penstock[otel]"' in ended.stderr
