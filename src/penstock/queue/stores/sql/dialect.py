"""What the databases say differently: the words in angle brackets of the statements, parameters and lists.

Templates are written for SQLite and PostgreSQL, which agree on most; a dialect translates the rest once, when a store
is opened.

==================  ====================================================================
word                meaning
==================  ====================================================================
<ints COLUMN ?>     the column is one of a list of numbers, given as one parameter
<texts COLUMN ?>    the same with texts
<settled ?>         a table (seq, token, started) of what a worker settles
<token ?>           the token of a lease: the next fence, a dash, the claim's id
<label MAP NAME>    the value of a label in an entry's stored labels
<locking>           lock the rows read until the transaction ends
<skipping ALIAS>    the same, passing over rows that others have locked
<sharing>           keep others from changing the rows read until the transaction ends
==================  ====================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

_WORD = re.compile(r"<(ints|texts|settled|token|label|locking|skipping|sharing)((?: [^<> ]+)*)>")


class Dialect:
    """A database's way of saying things; this one is SQLite's."""

    mark = "?"  # a parameter
    locks_what_it_scans = False  # whether a row may be passed over as locked by one who only passes by
    overrides: ClassVar[dict[str, str]] = {}  # statements that are different altogether

    words: ClassVar[dict[str, str]] = {
        "ints": "{0} IN (SELECT value FROM json_each({1}))",
        "texts": "{0} IN (SELECT value FROM json_each({1}))",
        "settled": (
            "(SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS token, "
            "json_extract(value, '$[2]') AS started FROM json_each({0}))"
        ),
        "token": "(fence + 1) || '-' || {0}",
        "label": "json_extract({0}, '$.\"' || {1} || '\"')",
        "locking": "",
        "skipping": "",
        "sharing": "",
    }

    def translated(self, text: str) -> str:
        """A template in this dialect."""
        return _WORD.sub(lambda hit: self.words[hit[1]].format(*hit[2].split()), text)

    def listed(self, values: Sequence[Any]) -> Any:
        """A list as one parameter."""
        return msgspec.json.encode(values).decode()

    def settled(self, rows: Sequence[tuple[int, str, int | None]]) -> Any:
        """Rows of (seq, token, started) as one parameter."""
        return msgspec.json.encode(rows).decode()
