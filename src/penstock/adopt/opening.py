"""From the name of a seed and a URL to what lives there."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from penstock.adopt.source import Source
from penstock.errors import BadInput, MissingExtra
from penstock.location import read_url
from penstock.names import did_you_mean

# What each takes besides the URL.
SEEDS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "killbill": ("penstock.adopt.killbill", "Killbill", ("tables",)),
    "delayedqueue": ("penstock.adopt.delayed_queue", "DelayedQueue", ("prefix",)),
    "zkqueue": ("penstock.adopt.zkqueue", "Zkqueue", ()),
    "redisques": ("penstock.adopt.redisques", "Redisques", ("prefix", "family")),
}


def open_source(
    seed: str,
    url: str,
    *,
    tables: Sequence[str] | None = None,
    prefix: str | None = None,
    family: str | None = None,
) -> Source:
    """What lives in a seed system; it is connected to when it is first read.

    Args:
        seed: ``"killbill"``, ``"delayedqueue"``, ``"zkqueue"`` or ``"redisques"``
        url: where it is
        tables: killbill's live tables
        prefix: of the keys in Redis
        family: of the queues that redisques' become
    """
    if seed not in SEEDS:
        raise BadInput(f"{seed!r} cannot be taken over.", hint=f"{did_you_mean(seed, SEEDS)}Known: {', '.join(SEEDS)}.")
    module, name, takes = SEEDS[seed]
    given: dict[str, Any] = {"tables": tables, "prefix": prefix, "family": family}
    options = {option: value for option, value in given.items() if value is not None}
    for option in options.keys() - set(takes):
        raise BadInput(f"{seed} has no {option}.", hint=f"It takes: {', '.join(takes) or 'nothing but the URL'}.")
    try:
        source: Source = getattr(importlib.import_module(module), name)(read_url(url), **options)
    except ModuleNotFoundError as cause:
        if cause.name is None or cause.name.startswith("penstock"):
            raise
        raise MissingExtra(
            f"to take over from {seed}, {cause.name} is needed, which is not installed.",
            hint='Install it with: pip install "penstock[service]"',
        ) from cause
    return source
