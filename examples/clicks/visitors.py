"""Makes a stream of clicks: people who come and go, and a few programs that click much too fast."""

import random
from collections.abc import Iterator

from flows import Click

PAGES = ("/", "/search", "/cart", "/shoes", "/hats", "/pay", "/help")
START = 1_767_225_600_000_000  # the first second of 2026, in microseconds


def clicks(people: int = 80, bots: int = 4, hours: float = 1.0, seed: int = 7) -> list[tuple[str, int, Click]]:
    """User, time and click, in the order in which they reach the shop: up to ten seconds late."""
    rng = random.Random(seed)
    found = [click for number in range(people) for click in _person(f"ann-{number}", hours, rng)]
    found += [click for number in range(bots) for click in _bot(f"bot-{number}", hours, rng)]
    return sorted(found, key=lambda one: one[1] + rng.randrange(10_000_000))


def _person(name: str, hours: float, rng: random.Random) -> Iterator[tuple[str, int, Click]]:
    at = START + rng.randrange(int(hours * 1_800_000_000))
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(3, 25)):
            at += rng.randint(2_000_000, 40_000_000)
            yield name, at, Click(name, rng.choice(PAGES), f"10.0.0.{rng.randrange(250)}")
        at += rng.randint(90_000_000, 600_000_000)


def _bot(name: str, hours: float, rng: random.Random) -> Iterator[tuple[str, int, Click]]:
    at = START + rng.randrange(int(hours * 900_000_000))
    for _ in range(3):
        for _ in range(rng.randint(60, 120)):
            at += rng.randint(50_000, 300_000)
            yield name, at, Click(name, rng.choice(PAGES), "10.6.6.6")
        at += rng.randint(120_000_000, 300_000_000)
