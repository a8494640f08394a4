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


SETTLE = Script("entries", "queues", "steps", "claims", "settle")
EXTEND = Script("entries", "extend")
REAP = Script("entries", "queues", "replies", "reap")
CHANGE = Script("entries", "queues", "replies", "change")
MANAGE = Script("entries", "queues", "steps", "replies", "manage")
SEARCH = Script("entries", "queues", "replies", "search")
PRUNE = Script("entries", "queues", "prune")
