"""The statements of a database, read from its ``.sql`` files."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any, NamedTuple

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)s")


class Statement(NamedTuple):
    """A statement as the server wants it: its parameters numbered, and their names in that order."""

    text: str
    names: tuple[str, ...]

    def ordered(self, parameters: dict[str, Any]) -> list[Any]:
        """The values of the parameters in their order."""
        return [parameters[name] for name in self.names]


def read_statements(file: str, space: str) -> dict[str, str]:
    """The statements of a file by name, for one space; the space was checked to be a plain identifier."""
    text = files(__package__).joinpath("queries", file).read_text("utf-8")
    parts = _NAME.split(text.replace("{space}", space))
    return {name: _without_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def numbered(text: str) -> Statement:
    """A statement with named parameters, as the server wants it."""
    names: dict[str, int] = {}
    made = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", text)
    return Statement(made, tuple(names))


def _without_comments(text: str) -> str:
    """The server parses what it is sent, and has no use for our words."""
    lines = [line.split(" -- ", 1)[0].rstrip() for line in text.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(line for line in lines if line)
