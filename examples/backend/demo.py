"""A backend goes down: its circuit opens and its queues wait; it comes back, and everything is delivered in order."""

import argparse
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

import penstock
from penstock import Breaker, Worker
from penstock.breaker import BreakerConfig
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.routes import Routes
from penstock.signals import Signal

console = Console(highlight=False, markup=False)
CUSTOMERS, ORDERS = 20, 10


class Backend(ThreadingHTTPServer):
    """The far side: notes what it takes, and can be told to fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Taking)
        self.taken: defaultdict[str, list[int]] = defaultdict(list)
        self.down = False
        self.refused = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def count(self) -> int:
        return sum(map(len, self.taken.values()))


class Taking(BaseHTTPRequestHandler):
    server: Backend

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with self.server.lock:
            if self.server.down:
                self.server.refused += 1
            else:
                self.server.taken[self.path].append(int(body))
        self.send_response(503 if self.server.down else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet: other output tells the story."""


def main() -> int:
    """Play the story, then check that nothing is lost and every queue kept its order."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, default=Path("demo-data") / f"backend-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005
    given = options.parse_args()
    given.data.mkdir(parents=True)
    logging.disable(logging.WARNING)  # every failed attempt would be logged
    backend = Backend()
    with penstock.open_queues(f"sqlite:///{given.data / 'requests.db'}") as store:
        store.signals.subscribe(tell, "circuit")
        breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=5, error_threshold_percentage=15))
        breaker.configure(hasty(breaker.config.resource()), by="demo")
        gateway = Gateway(store, Routes.read({"/orders/(.*)": f"http://127.0.0.1:{backend.server_address[1]}/$1"}))
        deliverer = Deliverer(gateway, breaker)
        worker = Worker(store)
        worker.start()
        good = play(backend, breaker, gateway)
        worker.stop()
        deliverer.close()
    backend.shutdown()
    return 0 if good else 1


def hasty(config: dict[str, Any]) -> dict[str, Any]:
    """The seconds of a demo instead of the minutes of a day."""
    for name, interval in (("openToHalfOpen", 500), ("unlockSampleQueues", 300), ("unlockQueues", 100)):
        config[name] = {"enabled": True, "interval": interval}
    return config


def play(backend: Backend, breaker: Breaker, gateway: Gateway) -> bool:
    put(gateway, range(2))
    if not wait(lambda: backend.count == CUSTOMERS * 2):
        return False
    console.print(f"{backend.count} requests of {CUSTOMERS} customers delivered. Now the backend goes down.")
    backend.down = True
    put(gateway, range(2, ORDERS))
    if not wait(lambda: len(breaker.store.locks()) > 3):
        return False
    waiting = sum(one.live for one in breaker.store.counts())
    console.print(
        f"  {len(breaker.store.locks())} queues are locked, {waiting} requests wait; "
        f"the backend was asked {backend.refused} times in vain."
    )
    time.sleep(1.5)
    console.print(f"  … and {backend.refused} times one and a half seconds later: only probes. It comes back.")
    backend.down = False
    total = CUSTOMERS * ORDERS
    if not wait(lambda: backend.count >= total and not breaker.store.locks()):
        console.print(f"only {backend.count} of {total} arrived")
        return False
    in_order = all(orders == list(range(ORDERS)) for orders in backend.taken.values())
    console.print(f"All {backend.count} requests are delivered, every customer's in order: {in_order}.")
    return in_order and backend.count == total


def put(gateway: Gateway, orders: range) -> None:
    for order in orders:
        for customer in range(CUSTOMERS):
            headers = [("x-queue", f"customer-{customer}"), ("x-rp-unique_id", f"{customer}-{order}")]
            gateway.accept("PUT", f"/orders/{customer}", headers, str(order).encode())


def tell(signal: Signal) -> None:
    console.print(f"  circuit {signal.data['circuit']} is {signal.data['state']}: {signal.data['why']}")


def wait(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            console.print("this took too long")
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
