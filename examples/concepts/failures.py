"""Failures: retries with pauses, a dead letter, and its replay."""

import penstock
from penstock.testing import FakeClock

clock = FakeClock()  # so that nobody has to wait
store = penstock.open_queues("sqlite:///shop.db", clock=clock)
parcels = store.queue("parcels", str)
carrier_is_up = False


@parcels.handler(retry=penstock.Retry(attempts=3, delays=["1m"]))
def ship(address: str) -> None:
    if not carrier_is_up:
        raise ConnectionError("the carrier does not answer")
    print("shipped to", address)


parcels.put("Mill Lane 3")
worker = penstock.Worker(store)
for _ in range(3):
    worker.drain()
    clock.advance("1m")

[letter] = parcels.dead()
print(f"dead after {letter.attempt} attempts: {letter.error}")

carrier_is_up = True
parcels.replay(letter.id)
worker.drain()
assert [row.state for row in parcels.history(letter.id)] == ["retried", "retried", "dead", "done"]
store.close()
