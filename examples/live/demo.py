"""The front door: a shop at work behind the dashboard, until Ctrl-C.

Orders come in, and some fail. The carrier goes down twice a minute: its circuit opens, and its parcels wait. A topology
counts clicks.
"""

import argparse
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import ModuleType

from rich.console import Console

from penstock import Worker
from penstock.stream import LocalRunner

HERE = Path(__file__).resolve().parent
PAGES = ("Home", "Cart", "Search", "Checkout")
PORT = 8080
CARRIER_WORKS, CARRIER_FAILS = 18, 12  # seconds
console = Console(highlight=False)


def main() -> int:
    """Start everything, print the address, stay until Ctrl-C."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, default=Path("demo-data") / f"live-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005
    options.add_argument("--port", type=int, default=None, help="of the dashboard; 0 takes a free one")
    options.add_argument("--seconds", type=float, default=None, help="end after so many seconds")
    given = options.parse_args()
    if given.port is None:
        given.port = PORT if is_free(PORT) else 0
    elif not is_free(given.port):
        options.error(f"port {given.port} is taken; choose another one, or 0 for a free one")
    given.data.mkdir(parents=True)
    os.environ["SHOP_DATA"] = str(given.data.absolute())
    sys.path.insert(0, str(HERE))
    logging.basicConfig(filename=given.data / "worker.log", level=logging.INFO)
    import shop  # it opens its stores in that folder

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    shop.logs.create("clicks", partitions=2)
    shop.breaker.configure(hasty(shop.breaker.config.resource()), by="demo")
    with ExitStack() as running:
        running.enter_context(shop.logs)
        running.enter_context(shop.store)
        address = serve(running, given)
        worker = Worker(shop.store)
        worker.start()
        running.callback(worker.stop)
        running.enter_context(LocalRunner(shop.topology, shop.logs))
        console.print(f"\nOpen the dashboard: [bold]{address}[/]   (Ctrl-C ends the demo)\n")
        console.print("Find out why a mail failed, and replay it. Watch the circuit [b]carrier[/] open and close.")
        console.print("Look at the topology [b]clicks[/]. Lock a queue. The same from a shell:\n")
        command = f"  {Path(sys.executable).parent / 'penstock'} top --url sqlite:///{given.data / 'shop.db'}\n"
        console.print(command, soft_wrap=True)  # to be copied: a line break of ours would cut it in two
        work(shop, stop, given.seconds)
    console.print(f"Ended. What was stored is in {given.data}")
    return 0


def is_free(port: int) -> bool:
    """Whether the dashboard can listen at this port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def serve(running: ExitStack, given: argparse.Namespace) -> str:
    """The service in a process of its own, with the dashboard; its address."""
    command = [
        sys.executable, "-m", "penstock", "serve", "--port", str(given.port),
        "--url", f"sqlite:///{given.data.absolute() / 'shop.db'}", "--logs", f"file://{given.data.absolute() / 'logs'}",
        "--topology", "shop:topology",
    ]  # fmt: skip
    log = running.enter_context((given.data / "serve.log").open("w"))
    # A session of its own: a Ctrl-C ends the demo, and the demo ends the service.
    service = subprocess.Popen(  # noqa: S603
        command, cwd=HERE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
    )
    running.callback(service.wait, 30)
    running.callback(service.terminate)
    assert service.stdout is not None
    for line in service.stdout:
        if "http://" in line:
            return line[line.index("http://") :].split()[0]
    sys.exit(f"the service did not start; see {given.data / 'serve.log'}")


def work(shop: ModuleType, stop: threading.Event, seconds: float | None) -> None:
    """Orders, clicks, and a carrier that comes and goes, until it is to stop."""
    chance = random.Random(17)
    began = time.monotonic()
    number = 0
    while not stop.wait(chance.uniform(0.1, 0.5)) and (seconds is None or time.monotonic() - began < seconds):
        number += 1
        is_down = (time.monotonic() - began) % (CARRIER_WORKS + CARRIER_FAILS) > CARRIER_WORKS
        if is_down:
            shop.CARRIER_IS_DOWN.touch()
        else:
            shop.CARRIER_IS_DOWN.unlink(missing_ok=True)
        order = shop.Order(number, chance.choice(("ann", "ben", "cem", "dana")), chance.randrange(500, 20_000))
        with shop.store.unit() as unit:  # an order and the event about it are one unit: both happen, or none
            unit.put(shop.parcels, order, labels={"customer": order.customer})
            unit.publish(shop.bus, order, labels={"customer": order.customer})
            unit.commit()
        pages = [chance.choice(PAGES) for _ in range(chance.randrange(1, 8))]
        shop.logs.log("clicks", str).append_many(pages, keys=pages)


def hasty(config: dict) -> dict:
    """The seconds of a demo instead of the minutes of a day."""
    for name, interval in (("openToHalfOpen", 3000), ("unlockSampleQueues", 1000), ("unlockQueues", 500)):
        config[name] = {"enabled": True, "interval": interval}
    return config


if __name__ == "__main__":
    sys.exit(main())
