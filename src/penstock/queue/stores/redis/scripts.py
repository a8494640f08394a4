"""The scripts: constant Lua texts, put together from ``lua/`` once; data reaches them as KEYS and ARGV only."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from penstock.queue.stores.redis.records import Kept, New

# Lua knows no constants, and names would cost it time in every call: e[QUEUE] becomes e[2] here.
_FIELDS = {name.upper(): str(number) for number, name in enumerate(Kept.__struct_fields__, 1)} | {
    f"N.{name.upper()}": str(number) for number, name in enumerate(New.__struct_fields__, 1)
}


class Script:
    """One script the server runs, known there by its hash."""

    def __init__(self, *parts: str) -> None:
        """Put the text together from the named files."""
        folder = files("penstock.queue.stores.redis") / "lua"
        text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)
        text = re.sub(r"\[((?:N\.)?[A-Z_]+)\]", lambda field: f"[{_FIELDS[field[1]]}]", text)
        self.text = text.encode()
        # The server names scripts by this hash; nothing secret rests on it.
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


_QUEUES = ("entries", "queues", "lineup")
STEPS = Script(*_QUEUES, "steps", "settle")
SETTLE = Script(*_QUEUES, "steps", "turns", "claims", "settle")
EXTEND = Script("entries", "extend")
REAP = Script(*_QUEUES, "replies", "reap")
CHANGE = Script(*_QUEUES, "replies", "change")
MANAGE = Script(*_QUEUES, "steps", "replies", "manage")
SEARCH = Script(*_QUEUES, "replies", "search")
PRUNE = Script(*_QUEUES, "prune")
LOAD = Script(*_QUEUES, "replies", "load")
