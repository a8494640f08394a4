"""The context of a trace goes with a record, on every log store."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.contract.log.shorthand import LogContract

from penstock import telemetry
from penstock.log.store import LogStore


class TestTraces(LogContract):
    """Appended here, read there."""

    def test_what_is_read_is_linked_to_its_append(self, store: LogStore) -> None:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = telemetry.trace(store, provider=provider)
        store.create("clicks", partitions=1)
        with store.appender("clicks", int) as out, store.tailer("clicks", "billing", int) as tail:
            out.append(1)
            out.append_many([2, 3])
            records = []
            while len(records) < 3:
                records += tail.read(timeout="10s")
            tail.commit()
        tracer.close()
        spans = exporter.get_finished_spans()
        appended = [span.context.span_id for span in spans if span.name == "append clicks"]
        linked = [link.context.span_id for span in spans if span.name == "read clicks" for link in span.links]
        assert len(appended) == 2
        assert list(dict.fromkeys(linked)) == appended
        system = "kafka" if type(store).__name__.startswith("Kafka") else "penstock"
        assert {span.attributes["messaging.system"] for span in spans} == {system}
