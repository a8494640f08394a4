"""How long a store remembers what has ended, and nodes that are silent, before it forgets them."""

from __future__ import annotations

from penstock.clock import Micros

MINUTE: Micros = 60_000_000

# An ended id stays known at least this long, so that a call repeated after a lost reply is recognised.
REMEMBERED: Micros = 15 * MINUTE

# A node that was silent for this long is forgotten. Sticky entries treat it like a node that was never heard of.
NODE_REMEMBERED: Micros = 7 * 24 * 60 * MINUTE
