"""Stores as people find them, for the tests of the dashboard: normal ones, nasty ones, one with thousands of queues."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

from penstock import Breaker, Bus, LogStore, QueueStore, Retry, Worker
from penstock.breaker.settings import BreakerConfig
from penstock.clock import SECOND
from penstock.ids import new_id
from penstock.policy import Reject
from penstock.queue.changes import Change, record_change
from penstock.queue.protocol import ClaimRequest, DocumentWrite, Source
from penstock.queue.results import Progress, note_of
from penstock.queue.worker.figures import MINUTE, Tally
from penstock.queue.worker.figures import PREFIX as FIGURES
from penstock.queue.worker.presence import Serving, WorkerRecord
from penstock.stream import Computation, Topology

NASTY = '"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">\'{{7*7}}'
NASTY_ID = '"><script>window.hacked=1</script>{{7*7}}'


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def not_soon() -> str:
    """A cron line that does not fire while a test looks, whenever that is."""
    return f"*/15 {(datetime.now(UTC).hour + 12) % 24} * * *"


class Ordered(msgspec.Struct):
    """An event."""

    id: int


class Count(Computation):
    """A computation that only has to be drawn."""

    inputs = ("clicks",)
    outputs = ("counts",)

    def process(self, ctx: object, record: object) -> None:
        """Never run here."""


def topology() -> Topology:
    """One computation between two streams."""
    return Topology("web").stream("clicks").stream("counts").add(Count, name="count")


def fill(queues: QueueStore, logs: LogStore | None = None) -> None:
    """A shop: entries in every state, failures, a lock, a schedule, an event, a worker, a log with a group."""
    mails, invoices = queues.queue("mails"), queues.queue("invoices.render")

    def render(value: dict[str, int]) -> None:
        if value["n"] % 3 == 0:
            raise FileNotFoundError("eu/vat-2027.html")
        if value["n"] % 7 == 0:
            raise Reject("amount is negative")

    invoices.add_handler(render, retry=Retry(attempts=2, backoff="0s"))
    mails.add_handler(lambda _: None)
    mails.put_many([{"to": f"user-{number}@example.org"} for number in range(20)], labels={"customer": "ann"})
    for number in range(12):
        invoices.put(
            {"n": number, "customer": {"id": "acme"}}, labels={"customer": ("acme", "globex")[number % 2]},
            headers={"traceparent": TRACE, "authorization": "secret"},
        )  # fmt: skip
    worker = Worker(queues)
    worker.drain()
    worker.write_figures()
    for queue in (mails, invoices):
        queue.remove_handler()
    mails.put_many([{"to": "later"}] * 2, delay="1h", labels={"customer": "bob"})
    mails.put_many([{"to": "now"}] * 3, labels={"customer": "bob"})
    queues.queue("customer.7", fifo=True).put("first")
    queues.queue("stopped").put(1)
    queues.queue("stopped").lock(reason="the bucket moves")
    mails.schedule("digest", {"kind": "digest"}, cron=not_soon())
    Bus(queues).subscribe("audit", Ordered)
    Bus(queues).publish(Ordered(1))
    serving = (Serving("mails", False, 3, 4), Serving("customer.", True, 1, 8))
    record = WorkerRecord("web-1/7-a", "web-1", 7, "0.1.0", queues.now(), False, serving)
    queues.driver.write([DocumentWrite("penstock.worker.web-1.7", msgspec.json.encode(record))])
    if logs is not None:
        logs.create("clicks", partitions=2)
        with logs.appender("clicks") as out:
            for number in range(60):
                out.append({"page": f"/p{number}"}, key=f"user-{number % 5}")
        with logs.tailer("clicks", group="billing") as tail:
            tail.read(timeout="5s")
            tail.commit()


def fill_past(queues: QueueStore) -> None:
    """What workers did in the last hour, for charts that show something."""
    last = queues.now() // MINUTE
    tallies = []
    for ago in range(60, 0, -1):
        done = 240 + round(90 * math.sin(ago / 7)) + 7 * (ago % 5)
        failed = 25 if 20 < ago < 28 else ago % 4
        tallies.append(Tally(last - ago, "mails", False, done, 0, 0, done * 0.02, [0, 0, done // 2, done // 2]))
        tallies.append(
            Tally(last - ago, "invoices.render", False, done // 4, failed, 0, done * 0.2, [0, 0, 0, 0, done // 4])
        )
    queues.driver.write([DocumentWrite(f"{FIGURES}web-1.7.{last // 10}", msgspec.json.encode(tallies))])


def fill_nasty(queues: QueueStore, logs: LogStore) -> None:
    """Text that would do harm in every field that takes text."""
    queue = queues.queue("nasty")

    def fail(_: object) -> None:
        raise ValueError(NASTY)

    queue.add_handler(fail, retry=Retry(attempts=1))
    queue.put({NASTY: [NASTY]}, labels={"label": NASTY}, headers={"header": NASTY}, unique=NASTY)
    Worker(queues).drain()
    queue.remove_handler()
    queue.put(NASTY, labels={"label": NASTY}, unique=NASTY)
    queue.lock(holder="nasty", reason=NASTY)
    queue.schedule("nasty", {NASTY: NASTY}, every="1h")
    record = WorkerRecord(NASTY, NASTY, 7, NASTY, queues.now(), False, (Serving(NASTY, False, 1, 1),))
    queues.driver.write([DocumentWrite("penstock.worker.nasty", msgspec.json.encode(record))])
    _fill_nasty_lives(queues)
    breaker = Breaker(queues)
    breaker.configure(BreakerConfig.active())
    breaker.report(NASTY, "1", True)
    breaker.open(NASTY, by=NASTY, why=NASTY)
    record_change(queues, Change(NASTY, NASTY, NASTY, NASTY, NASTY, NASTY))
    logs.create("nasty")
    with logs.appender("nasty") as out:
        out.append({NASTY: NASTY}, key=NASTY, headers={"header": NASTY})


def _fill_nasty_lives(queues: QueueStore) -> None:
    """A result that is kept, a progress, and an entry that was cancelled because of another."""
    results = queues.queue("nasty-results")
    results.add_handler(lambda _: {NASTY: NASTY}, keep_result="1d")
    results.put(1, id="returned")
    Worker(queues).drain()
    results.remove_handler()
    queues.queue("nasty-progress").put(1, id="at-work")
    claim = ClaimRequest(new_id(), (Source("nasty-progress", 1),), 1, NASTY, "a-node", 3600 * SECOND)
    [leased] = queues.driver.claim(claim).entries
    assert leased.lease is not None
    queues.driver.write([note_of(leased.lease, Progress(1, 2, NASTY))])
    chained = queues.queue("nasty-chain")
    chained.put(1, id=NASTY_ID)
    chained.put(2, id="waiting", after=[NASTY_ID])
    chained.cancel(NASTY_ID)


NASTY_PAGES = (
    "/ui/queues/nasty?tab=dead", "/ui/queues/nasty?tab=ready", "/ui/queues/nasty?tab=history", "/ui/logs/nasty",
    "/ui/do/replay?queue=nasty", "/ui/do/unlock?queue=nasty&holder=nasty",
    "/ui/queues/nasty-results/entries/returned", "/ui/queues/nasty-progress/entries/at-work",
    "/ui/queues/nasty-progress?tab=leased", "/ui/queues/nasty-chain?tab=history",
    "/ui/queues/nasty-chain/entries/waiting", f"/ui/queues/nasty-chain/entries/{quote(NASTY_ID, safe='')}",
    f"/ui/circuits?circuit={quote(NASTY)}", f"/ui/do/circuit-close?circuit={quote(NASTY)}",
    f"/ui/changes?target={quote(NASTY)}", "/ui/topologies/web",
)  # fmt: skip


def nasty_topology() -> Topology:
    """Names of a computation and its streams that no topology takes, put into one all the same."""
    flow = topology()
    [node] = flow.nodes.values()
    flow.nodes = {NASTY: msgspec.structs.replace(node, name=NASTY, inputs={"in": NASTY}, outputs={"out": "counts"})}
    flow.streams = {
        NASTY: msgspec.structs.replace(flow.streams["clicks"], name=NASTY),
        "counts": flow.streams["counts"],
    }
    return flow


LONG = "a-name-as-long-as-one-may-be." + "x" * 99


class LongEvent(msgspec.Struct, tag="AnEventWithAVeryLongName" * 5):
    """An event."""

    id: int


def long_topology() -> Topology:
    """Computations and streams with the longest names, in more columns than a screen is wide."""
    topology = Topology("t" * 100).stream(f"{LONG[:100]}.0")
    for number in range(6):
        topology.stream(f"{LONG[:100]}.{number + 1}")

        class Step(Computation):
            """A computation that only has to be drawn."""

            inputs = (f"{LONG[:100]}.{number}",)
            outputs = (f"{LONG[:100]}.{number + 1}",)

            def process(self, ctx: object, record: object) -> None:
                """Never run here."""

        topology.add(Step, name=f"computation-{number}-" + "y" * 80)
    return topology


def fill_long(queues: QueueStore, logs: LogStore) -> None:
    """The longest names and texts without a space, wherever one can be given."""
    queue, text = queues.queue(LONG), "z" * 200

    def fail(value: dict[str, str]) -> None:
        if value["value"] == text:
            raise ValueError(text * 5)

    labels = {"customer": text[:84], "l" * 84: text}
    queue.add_handler(fail, retry=Retry(attempts=1))
    queue.put_many([{"value": text}] * 3, labels=labels, headers={"h" * 60: text})
    queue.put({"value": "good"}, labels=labels)
    worker = Worker(queues)
    worker.drain()
    worker.write_figures()
    queue.remove_handler()
    queue.put_many([{"value": text}] * 3, labels=labels, headers={"h" * 60: text})
    queue.put({"value": text}, labels=labels, unique=text, delay="1h")
    queues.driver.claim(ClaimRequest(new_id(), (Source(LONG, 1),), 1, f"{LONG}/1", LONG, 3600 * SECOND))
    queue.lock(holder=LONG, reason=text)
    queue.schedule(LONG, {"value": text}, cron=not_soon())
    Bus(queues).subscribe(LONG[:60], LongEvent)
    serving = (Serving(LONG, False, 1, 4), Serving(LONG[:100], True, 0, 8))
    for number in range(2):
        record = WorkerRecord(f"{LONG}/{number}", LONG, 4_194_304, "0.1.0.dev" + "1" * 30, queues.now(), False, serving)
        queues.driver.write([DocumentWrite(f"penstock.worker.long.{number}", msgspec.json.encode(record))])
    record_change(queues, Change(LONG, "lock", LONG, text, text, text))
    breaker = Breaker(queues)
    breaker.open("c" * 120, by=LONG, why=text)
    logs.create(LONG, partitions=2)
    with logs.appender(LONG) as out:
        for _ in range(5):
            out.append({"value": text}, key=text, headers={"h" * 60: text})
    with logs.tailer(LONG, group=LONG[:120]) as tail:
        tail.read(timeout="5s")
        tail.commit()


def fill_many(queues: QueueStore, count: int = 10_000) -> None:
    """Thousands of queues, each with an entry."""
    for start in range(0, count, 500):
        puts = [
            queues.queue(f"customer.{number:05d}").new({"n": number})
            for number in range(start, min(count, start + 500))
        ]
        queues.driver.put(puts)
