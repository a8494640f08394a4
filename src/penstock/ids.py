"""Ids are made by the client, so that any call can be repeated after a lost reply with one effect."""

from __future__ import annotations

import os
import random
import uuid

import uuid_utils

# Seeded by the system, and again in a forked child; asking the system every time would be a slow call on a hot path.
_rng = random.Random()
os.register_at_fork(after_in_child=_rng.seed)

DERIVED_IN = uuid.UUID("5b0e7f0a-6d0b-4a83-9a55-1a2f6f6f0c11")


def new_id() -> str:
    """A fresh id that sorts by the time it was made (UUIDv7)."""
    return str(uuid_utils.uuid7())


def new_nonce() -> str:
    """A short random text, for tokens that are only ever compared for equality and never secret."""
    return f"{_rng.getrandbits(64):016x}"


def derived_id(*parts: str) -> str:
    """The same parts always give the same id: for effects that must happen once however often they are tried."""
    return str(uuid.uuid5(DERIVED_IN, "\x1f".join(parts)))


def is_another(known: str, current: str) -> bool:
    """Whether two identities are of different things; whatever is older than identities has none, and passes."""
    return bool(known and current) and known != current
