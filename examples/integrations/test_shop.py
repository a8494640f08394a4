"""Tests of a program with the fixtures of the pytest plugin, which pytest finds by itself.

pytest examples/integrations/test_shop.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock import LogStore, QueueStore, Record, aio
from penstock.stream import Topology, filter_values
from penstock.testing import FakeClock


def test_a_reminder_comes_after_a_day(
    penstock_queues: QueueStore, penstock_clock: FakeClock, penstock_drain: Callable[..., int]
) -> None:
    mails, sent = penstock_queues.queue("mails", str), []
    mails.add_handler(sent.append)
    mails.put("is all well?", delay="24h")
    assert penstock_drain() == 0
    penstock_clock.advance("24h")
    assert penstock_drain() == 1
    assert sent == ["is all well?"]


def test_only_long_visits_are_passed_on(penstock_logs: LogStore, penstock_run: Callable[..., None]) -> None:
    topology = Topology("visits")
    topology.stream("visits", int)
    topology.stream("long-visits", int)
    topology.add(filter_values("long", lambda seconds: seconds > 10, "visits", "long-visits"))
    penstock_logs.create("visits")
    penstock_logs.log("visits", int).append_many([1, 50, 3, 70])
    penstock_run(topology)
    records: list[Record[int]] = list(penstock_logs.log("long-visits", int).records(0))
    assert [record.value for record in records] == [50, 70]


def test_async_programs_use_the_same_stores(penstock_aio_queues: aio.QueueStore) -> None:
    async def main() -> int:
        mails = await penstock_aio_queues.queue("mails", str)
        await mails.put("dear ann")
        return (await mails.counts()).ready

    assert asyncio.run(main()) == 1
