"""Names of queues, logs, groups, nodes and labels: one strict rule, and a reversible escape for foreign ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from penstock.errors import BadInput

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%-]{0,127}\Z")
_SPACE = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def is_name(name: object) -> bool:
    """Whether this is a good name."""
    return isinstance(name, str) and _NAME.match(name) is not None and ".." not in name


def check_name(name: str, *, kind: str = "queue") -> str:
    """Return the name if it is a good one; raise ``BadInput`` if not."""
    if not is_name(name):
        raise BadInput(
            f"{kind} name {name!r} is not allowed.",
            hint="Use 1 to 128 ASCII letters, digits, '.', '_' or '-', starting with a letter or digit, "
            "without '..'; penstock.names.escape_name() turns foreign names into such.",
        )
    return name


def check_space(space: str) -> str:
    """A space becomes table names, hash tags and paths: letters, digits and '_' only."""
    if not isinstance(space, str) or not _SPACE.match(space):
        raise BadInput(
            f"space {space!r} is not allowed.",
            hint="Use 1 to 40 lower-case letters, digits or '_', starting with a letter.",
        )
    return space


def text_bytes(text: object) -> int:
    """How many bytes a text has in a store, or -1 if no store could keep it."""
    if not isinstance(text, str):
        return -1
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return -1


def did_you_mean(name: str, known: Iterable[str], form: str = "{}") -> str:
    """The beginning of a hint for a name that is close to a known one, or nothing."""
    close = get_close_matches(name, list(known), 1)
    return f"Did you mean {form.format(close[0])}? " if close else ""


def escape_name(foreign: str) -> str:
    """Turn any text into an allowed name, reversibly (percent-escapes; a leading 'x' guards odd starts).

    >>> escape_name("billing:invoices")
    'billing%3Ainvoices'
    """
    try:
        raw = foreign.encode()
    except UnicodeEncodeError as cause:
        raise BadInput(f"name {foreign!r} is not valid text: {cause}.", hint="Decode it properly first.") from cause
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw).replace("..", ".%2E")
    if not text or not text[0].isalnum() or text.startswith("x%"):
        text = f"x%{text}"
    return check_name(text)


def unescape_name(name: str) -> str:
    """Undo ``escape_name``."""
    if name.startswith("x%"):
        name = name[2:]
    return re.sub(rb"%([0-9A-F]{2})", lambda hit: bytes([int(hit[1], 16)]), name.encode()).decode()
