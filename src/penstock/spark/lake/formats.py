"""Formats of the files that a lake or an export is made of."""

from __future__ import annotations

from penstock.errors import BadInput

FORMATS = ("parquet", "orc")  # the first is the default
NO_DELTA = "Delta Lake has no release for Spark 4.3; its newest is built for 4.2."


def check_format(given: str, thing: str) -> str:
    """Refuse an unknown format. Returns a known one."""
    if given not in FORMATS:
        reason = f"{NO_DELTA} " if given.lower() == "delta" else ""
        raise BadInput(f"{thing} cannot have the format {given!r}.", hint=f"{reason}There are {', '.join(FORMATS)}.")
    return given
