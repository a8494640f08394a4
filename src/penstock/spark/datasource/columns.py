"""The columns that Spark sees of a log. Without Arrow, whose import takes longer than a short commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.errors import BadInput
from penstock.names import did_you_mean

LOG_COLUMNS: dict[str, str] = {
    "log": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "time": "TIMESTAMP NOT NULL",
    "key": "BINARY",
    "value": "BINARY NOT NULL",
    "headers": "MAP<STRING, BINARY>",
}
# The caller knows the name, and as a column it costs as much as a short key.
ON_DEMAND = frozenset({"log"})


def chosen_columns(known: Iterable[str], wanted: Sequence[str] | None) -> list[str]:
    """The requested columns, or the default ones."""
    names = list(known)
    if wanted is None:
        return [name for name in names if name not in ON_DEMAND]
    for name in wanted:
        if name not in names:
            meant = did_you_mean(name, names)
            raise BadInput(f"there is no column {name!r}.", hint=f"{meant}Known: {', '.join(names)}.")
    if not wanted:
        raise BadInput("columns names no column.", hint=f"Known: {', '.join(names)}.")
    return list(dict.fromkeys(wanted))
