"""Two service processes on one store: a backend goes down and comes back while processes are killed at any moment."""

import itertools
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from tests.backends import Backend, backend
from tests.serving import Served

from penstock import Breaker, open_queues
from penstock.breaker import BreakerConfig, BreakerSettings

PLAIN, BATCHED = "/crm/(.*)", "/many/(.*)"
LEASE = "2s"
CONFIG = BreakerConfig.active(
    min_queue_sample_count=4, error_threshold_percentage=20, entries_max_age_ms=2_000, open_to_half_open=400,
    unlock_queues=20, unlock_sample_queues=150,
)  # fmt: skip


@dataclass
class Play:
    """What was acknowledged and what arrived, by queue and in order; how often a circuit opened, and who was killed."""

    accepted: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, list[str]] = field(default_factory=dict)
    kills: int = 0
    openings: int = 0
    recovered: float = 0.0


class Pair:
    """The two processes, and a client that turns to the other one when one is gone."""

    def __init__(self, url: str, routes: Path) -> None:
        self._options = ("--url", url, "--routes", str(routes), "--lease", LEASE)
        self.served = [Served(*self._options) for _ in range(2)]
        self.client = httpx2.Client(timeout=10)

    def kill(self, which: int) -> None:
        """As the kernel does when memory runs out."""
        self.served[which].close()

    def start(self, which: int) -> None:
        self.served[which] = Served(*self._options)

    def send(self, queue: str, path: str, body: int) -> None:
        """Send until one of them acknowledges it; what one stored that died before it could say so is known."""
        headers = {"x-queue": queue, "x-name": queue, "x-rp-unique_id": f"{queue}-{body}", "x-duplicate-check": "600"}
        deadline, said = time.monotonic() + 60, ""
        for number in itertools.count():
            try:
                answer = self.client.put(self.served[number % 2].url + path, content=str(body), headers=headers)
                if answer.status_code == 202:
                    return
                said = answer.text
            except httpx2.TransportError as error:
                said = repr(error)
            assert time.monotonic() < deadline, f"nobody takes {body} for {queue} in: {said}"
            time.sleep(0.02)

    def close(self) -> None:
        self.client.close()
        for one in self.served:
            one.close()


def play(url: str, folder: Path, *, seed: int, rounds: int, queues: int = 12, patience: float = 90.0) -> Play:
    """Down, a kill at a random moment, up, another one; then everybody has to come back by themselves."""
    rng, seen = random.Random(seed), Play()
    with backend() as far, open_queues(url) as store:
        routes = folder / "routes.json"
        routes.write_text(
            json.dumps({PLAIN: f"{far.url}/$1", BATCHED: {"target": f"{far.url}/$1", "batch": 5}}), "utf-8"
        )
        breaker = Breaker(store, CONFIG)
        breaker.configure(CONFIG.resource())
        breaker.adjust(BreakerSettings(permit_ms=3000))
        pair = Pair(url, routes)
        feeding, stop = [], threading.Event()
        try:
            names = [(f"q{number}", "/crm/r" if number % 2 else "/many/r") for number in range(queues)]
            for part in (names[0::2], names[1::2]):
                feeding.append(threading.Thread(target=_feed, args=(pair, part, seen, stop)))
                feeding[-1].start()
            for _ in range(rounds):
                _round(pair, far, rng, seen)
            stop.set()
            for one in feeding:
                one.join(70)
            far.mode, began = 200, time.monotonic()
            family = store.family("requests.")
            _until(lambda: family.counts().live == 0, patience, lambda: f"deliveries: {family.counts()}")
            _until(lambda: not store.locks(), patience, lambda: f"unlocking: {store.locks()}")
            for rule in (PLAIN, BATCHED):
                _until(lambda rule=rule: breaker.circuit(rule).state == "closed", patience, lambda rule=rule: f"{rule}")
            seen.recovered = time.monotonic() - began
            seen.openings = sum(
                one.state == "open" for rule in (PLAIN, BATCHED) for one in breaker.circuit(rule).transitions
            )
        finally:
            stop.set()
            for one in feeding:
                one.join(70)
            pair.close()
        with far.lock:
            seen.taken = {name: list(bodies) for name, bodies in far.taken.items()}
    return seen


def check(seen: Play) -> None:
    """Nothing lost, order kept: a request may arrive again only as long as the next one has not arrived."""
    assert seen.kills > 0
    assert seen.openings > 0, "the backend was never found to be down"
    for queue, wanted in seen.accepted.items():
        calls = [_numbers(body) for body in seen.taken[queue]]
        first = list(dict.fromkeys(number for call in calls for number in call))
        assert first == wanted, f"{queue}: {calls}"
        latest = -1
        for call in calls:
            assert call == list(range(call[0], call[-1] + 1)), f"{queue} has a hole: {call}"
            # What was answered and not yet recorded comes again as it was, or with more behind it.
            assert latest - 5 < call[0] <= latest + 1, f"{queue}: {call} after {latest}"
            assert call[-1] >= latest or len(call) > 1, f"{queue}: {call} after {latest}"
            latest = max(latest, call[-1])


def _round(pair: Pair, far: Backend, rng: random.Random, seen: Play) -> None:
    victims = [0, 1]
    rng.shuffle(victims)
    for mode, victim in zip((503, 200), victims, strict=True):
        time.sleep(rng.uniform(0.2, 0.8))
        far.mode = mode
        time.sleep(rng.uniform(0.0, 1.5))
        pair.kill(victim)
        seen.kills += 1
        time.sleep(rng.uniform(0.0, 1.0))
        pair.start(victim)


def _feed(pair: Pair, names: list[tuple[str, str]], seen: Play, stop: threading.Event) -> None:
    numbers = itertools.count()
    while not stop.is_set():
        number = next(numbers)
        for queue, path in names:
            pair.send(queue, path, number)
            seen.accepted[queue].append(number)
        stop.wait(0.15)


def _numbers(body: str) -> list[int]:
    read: Any = json.loads(body)
    return read if isinstance(read, list) else [read]


def _until(wanted: Callable[[], bool], patience: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + patience
    while not wanted():
        assert time.monotonic() < deadline, f"waited in vain for {what()}"
        time.sleep(0.1)
