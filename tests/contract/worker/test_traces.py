"""The context of a trace goes with an entry, through everything that can become of it, on every store."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.contract.queue.shorthand import Contract, OpenStore

from penstock import telemetry
from penstock.clock import FakeClock
from penstock.policy import Retry
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


class TestTraces(Contract):
    """Put here, handled elsewhere."""

    def test_what_is_handled_elsewhere_is_linked_to_its_put(
        self, store: QueueStore, open_store: OpenStore, clock: FakeClock
    ) -> None:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        elsewhere = open_store(node="two")
        for one in (store, elsewhere):
            telemetry.trace(one, provider=provider)
        queue = store.queue("mails", int)
        queue.put(0, unique="x", headers={"mine": "1"})
        with store.unit() as unit, provider.get_tracer("t").start_as_current_span("request"):
            unit.put(queue, 1)
            unit.commit()
        elsewhere.queue("mails", int).add_handler(
            lambda number: 1 // number, retry=Retry(attempts=2, delays=["1s"])
        )  # fmt: skip
        worker = Worker(elsewhere)
        worker.drain()
        clock.advance("2s")
        worker.drain()  # the second attempt of the first one makes it a dead letter
        [letter] = queue.dead()
        assert letter.headers["mine"] == "1"
        queue.replay(letter.id)
        worker.drain()
        spans = {span.name: span for span in exporter.get_finished_spans()}
        handled = [span for span in exporter.get_finished_spans() if span.name == "handle mails"]
        put, request = spans["put mails"].context, spans["request"].context
        assert len(handled) == 4
        linked = [[link.context.span_id for link in span.links] for span in handled]
        assert sorted(linked) == sorted([[put.span_id]] * 3 + [[request.span_id]])
