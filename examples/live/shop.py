"""The shop that runs behind the dashboard: its queues and handlers, and a topology over its clicks."""

import os
import random
import time
from pathlib import Path

import msgspec

from penstock import Breaker, Bus, Context, Reject, Retry, open_logs, open_queues
from penstock.breaker import BreakerConfig
from penstock.stream import Topology, Tumbling, map_values, windowed_count

DATA = Path(os.environ.get("SHOP_DATA", ".")).absolute()
CARRIER_IS_DOWN = DATA / "carrier-is-down"

store = open_queues(f"sqlite:///{DATA / 'shop.db'}")
logs = open_logs(f"file://{DATA / 'logs'}")
bus = Bus(store)
breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=5, error_threshold_percentage=20))


class Order(msgspec.Struct):
    """An order; also the event that tells of it."""

    number: int
    customer: str
    cents: int


mails = bus.subscribe("mails", Order)
stock = bus.subscribe("stock", Order)
parcels = store.queue("parcels", Order)
reports = store.queue("reports", str)
reports.schedule("sales", "sales of the last minute", every="1m")


@mails.handler(concurrency=4)
def confirm(order: Order) -> None:
    """Most mails are sent; some addresses do not exist."""
    time.sleep(random.uniform(0.01, 0.2))
    if order.number % 41 == 0:
        raise Reject(f"there is no mailbox for {order.customer}")


@stock.handler(concurrency=4, retry=Retry(attempts=4, backoff="2s"))
def reserve(order: Order) -> None:
    """The warehouse is slow now and then, and sometimes fails."""
    time.sleep(random.uniform(0.02, 0.4))
    if random.random() < 0.05:
        raise TimeoutError("the warehouse did not answer in time")


@parcels.handler(concurrency=2, retry=Retry(attempts=None, delays=["3s"]), breaker=breaker.guard("carrier"))
def ship(order: Order, ctx: Context) -> None:
    """The carrier fails while a file says so: then its circuit opens, and the parcels wait."""
    if CARRIER_IS_DOWN.exists():
        raise ConnectionError("the carrier does not answer")
    ctx.progress(1, 1, f"handed over for {order.customer}")


@reports.handler
def report(title: str) -> None:
    """Once a minute, by a schedule."""
    time.sleep(0.1)


topology = (
    Topology("clicks", partitions=2).stream("clicks", str, out_of_order="2s").stream("pages", str).stream("per-page")
)
topology.add(map_values("tidy", str.lower, "clicks", "pages"))
topology.add(windowed_count("per-page", "pages", "per-page", Tumbling("10s")))
