"""The function library: the Lua of ``lua/`` put together once, named after a hash of its text.

Two releases of Penstock on one server each call their own library.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

# In this order: what comes later uses what came before.
_PARTS = (
    "lib/call", "lib/entries", "lib/holds", "lib/links", "lib/claims", "lib/history", "lib/queues", "lib/places",
    "lib/serving", "claim", "put", "settle", "reap", "read", "manage", "transfer",
)  # fmt: skip


def _text() -> str:
    folder = files("penstock.queue.drivers.redis") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in _PARTS)


_SOURCE = _text()
NAME = f"penstock_{hashlib.sha256(_SOURCE.encode()).hexdigest()[:12]}"
PREFIX = f"{NAME}_"
CODE = f"#!lua name={NAME}\nlocal PREFIX = '{PREFIX}'\n{_SOURCE}".encode()
