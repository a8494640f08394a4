"""A breaker: when the far side is down its circuit opens, and entries wait without spending attempts."""

import penstock
from penstock.breaker import BreakerConfig
from penstock.testing import FakeClock

clock = FakeClock()
store = penstock.open_queues("sqlite:///shop.db", clock=clock)
breaker = penstock.Breaker(store, BreakerConfig.active(min_queue_sample_count=3, error_threshold_percentage=50))
orders = store.family("orders.", str, fifo=True)  # one queue per customer
crm_is_down = True


@orders.handler(breaker=breaker.guard("crm"), retry=penstock.Retry(attempts=None, delays=["1s"]))
def send(order: str) -> None:
    if crm_is_down:
        raise ConnectionError("the CRM does not answer")
    print("sent", order)


for customer in ("ann", "ben", "cem", "dana"):
    orders.member(f"orders.{customer}").put(f"order of {customer}")
penstock.Worker(store).drain()
print("the circuit is", breaker.circuit("crm").state)

crm_is_down = False
clock.advance("2m")
while orders.counts().live:
    breaker.tick()  # a running worker has a thread for this
    penstock.Worker(store).drain()
    clock.advance("10s")
print("the circuit is", breaker.circuit("crm").state)
store.close()
