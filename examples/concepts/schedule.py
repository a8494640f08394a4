"""A schedule: any worker fires it, once in the whole cluster."""

import penstock
from penstock.testing import FakeClock

clock = FakeClock()
store = penstock.open_queues("sqlite:///shop.db", clock=clock)
reports = store.queue("reports", str)
reports.schedule("hourly", "sales", every="1h")


@reports.handler
def write(title: str) -> None:
    print("report:", title)


worker = penstock.Worker(store)
for _ in range(3):
    clock.advance("1h")
    assert worker.drain() == 1
store.close()
