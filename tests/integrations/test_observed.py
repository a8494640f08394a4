"""Sentry and structlog: what a handler does is named by its entry."""

import json
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
import structlog
from sentry_sdk.transport import Transport
from tests.docs.pages import ROOT

from penstock import Reject, Retry, Worker, open_queues
from penstock.errors import BadInput
from penstock.integrations.sentry import report_failures
from penstock.integrations.structlog import bind_entry


class Collected(Transport):
    """What would be sent."""

    events: list[dict[str, Any]]

    def capture_envelope(self, envelope: Any) -> None:
        for item in envelope.items:
            event = item.get_event() or item.get_transaction_event()
            if event:
                self.events.append(event)


@pytest.fixture
def events(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """Events of a real client of Sentry's, which come here instead of over the network."""
    Collected.events = []
    rate = getattr(request, "param", None)
    sentry_sdk.init(
        dsn="http://key@127.0.0.1/1", transport=Collected, traces_sample_rate=rate, default_integrations=False
    )
    yield Collected.events
    sentry_sdk.init()


def fail(value: str) -> None:
    raise ValueError(value)


@pytest.mark.parametrize(("which", "attempts"), [("all", [1, 2, 3]), ("first", [1]), ("last", [3])])
def test_failed_attempts_are_events_with_their_entry(events: list[Any], which: Any, attempts: list[int]) -> None:
    with open_queues("memory://") as store:
        store.middleware.append(report_failures(which))
        mails = store.queue("mails", str)
        mails.add_handler(fail, retry=Retry(attempts=3, immediate=2))
        id_ = mails.put("secret", labels={"customer": "ann"}).id
        Worker(store).drain()
    assert [event["contexts"]["penstock"]["attempt"] for event in events] == attempts
    event = events[-1]
    assert event["contexts"]["penstock"]["entry"] == id_
    assert event["contexts"]["penstock"]["labels"] == {"customer": "ann"}
    assert event["tags"] == {"penstock.queue": "mails"}
    assert event["transaction"] == "handle mails"
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert "payload" not in event["contexts"]["penstock"]


def test_async_handlers_are_reported_too_and_decisions_are_not(events: list[Any]) -> None:
    with open_queues("memory://") as store:
        store.middleware.append(report_failures(payload=True))
        mails = store.queue("mails", str)

        @mails.handler(retry=Retry(attempts=1))
        async def send(mail: str) -> None:
            if mail == "bad":
                raise Reject("no address")
            raise ConnectionError("away")

        mails.put_many(["bad", "good"])
        Worker(store).drain()
    assert [event["exception"]["values"][-1]["type"] for event in events] == ["ConnectionError"]
    assert events[0]["contexts"]["penstock"]["payload"] == "'good'"


@pytest.mark.parametrize("events", [1.0], indirect=True)
def test_an_attempt_goes_on_with_the_trace_of_its_put(events: list[Any]) -> None:
    with open_queues("memory://") as store:
        store.middleware.append(report_failures())
        mails = store.queue("mails", str)
        mails.add_handler(lambda mail: None)
        with sentry_sdk.start_transaction(name="order") as order:
            headers = {"sentry-trace": order.to_traceparent()}
            mails.put("x", headers=headers)
        Worker(store).drain()
    traces = {event["transaction"]: event["contexts"]["trace"]["trace_id"] for event in events}
    assert traces["handle mails"] == traces["order"]


def test_a_word_that_names_no_attempts_is_refused() -> None:
    with pytest.raises(BadInput, match="names no attempts"):
        report_failures("some")  # type: ignore[arg-type]


def test_lines_of_a_handler_name_its_entry() -> None:
    with open_queues("memory://") as store:
        store.middleware.append(bind_entry(labels=True))
        mails, bound = store.queue("mails", str), []

        @mails.handler
        def send(mail: str) -> None:
            bound.append(structlog.contextvars.get_contextvars())

        other = store.queue("other", str)

        @other.handler
        async def send_later(mail: str) -> None:
            bound.append(structlog.contextvars.get_contextvars())

        ids = [queue.put("x", labels={"customer": "ann"}).id for queue in (mails, other)]
        Worker(store).drain()
    expected = {"generation": 1, "attempt": 1, "label_customer": "ann"}
    assert sorted(bound, key=lambda one: one["queue"]) == [
        {**expected, "queue": "mails", "entry": ids[0]},
        {**expected, "queue": "other", "entry": ids[1]},
    ]
    assert structlog.contextvars.get_contextvars() == {}


def test_the_example_logs_and_reports(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        runpy.run_path(str(ROOT / "examples" / "integrations" / "observed.py"))["main"]()
    finally:
        structlog.reset_defaults()
        sentry_sdk.init()
    *lines, last = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["queue"] for line in lines] == ["mails", "mails"]
    assert json.loads(lines[0])["label_customer"] == "ann"
    assert last == "dead letters: ['nobody']"
