"""A store's URL, read: what every store needs, and the options that only it understands."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.clock import duration
from penstock.errors import BadInput
from penstock.names import check_space, did_you_mean

DURABILITIES = ("durable", "fast")
LONGEST_SECONDS = 86_400


class Location(msgspec.Struct, frozen=True):
    """A store's URL, read: what every store needs, and the options that only it understands."""

    url: str
    scheme: str
    path: str
    space: str = "penstock"
    durability: str = "durable"
    options: dict[str, str] = {}

    @property
    def masked(self) -> str:
        """The URL without its password, for messages and logs."""
        parts = urlsplit(self.url)
        if parts.password is None:
            return self.url
        return self.url.replace(f":{parts.password}@", ":***@", 1)

    @property
    def file(self) -> Path:
        """The file that ``sqlite:///relative.db`` or ``sqlite:////absolute.db`` names."""
        if not self.path.startswith("/") or len(self.path) < 2:
            raise BadInput(
                f"{self.masked} names no file.",
                hint='Write three slashes for a relative path ("sqlite:///shop.db"), four for an absolute one; '
                "for a store without a file use memory://.",
            )
        if self.path == "/:memory:":
            raise BadInput(f"{self.masked} is not a store of its own.", hint="For one without a file use memory://.")
        return Path(self.path[1:])

    def seconds(self, option: str, default: float) -> float:
        """A time among the options, in seconds: given as such (``5``), or as a duration (``5s``, ``500ms``)."""
        text = self.options.get(option)
        if text is None:
            return default
        try:
            value = float(text) if text.isascii() and text[:1].isdigit() and text[-1:].isdigit() else None
            value = duration(text).total_seconds() if value is None else value
        except (BadInput, ValueError):
            value = 0.0
        if not 0 < value < LONGEST_SECONDS:
            raise BadInput(
                f"{option} {text!r} in {self.masked} is not a time.", hint='Give seconds or a duration: "5s".'
            )
        return value

    def count(self, option: str, default: int) -> int:
        """A whole number from 1 on among the options."""
        text = self.options.get(option, str(default))
        if not (text.isascii() and text.isdecimal()) or int(text) < 1:
            raise BadInput(f"{option} {text!r} in {self.masked} is not a number.", hint="Use a whole number from 1 on.")
        return int(text)

    def reject_unknown_options(self, known: frozenset[str] = frozenset()) -> None:
        """Raise for an option that the store does not know: a typing slip must not be silent."""
        for name in self.options.keys() - known:
            names = sorted(known | {"space", "durability"})
            raise BadInput(
                f"option {name!r} in {self.masked} is unknown.",
                hint=f"{did_you_mean(name, names)}Known options: {', '.join(names)}.",
            )


def read_url(url: str, example: str = "sqlite:///shop.db") -> Location:
    """Split a store URL into its parts. Raises ``BadInput`` with an example if it cannot be read."""
    if not isinstance(url, str) or "://" not in url:
        raise BadInput(f"{url!r} is not a store URL.", hint=f'Write it as "{example}" or "memory://".')
    try:
        parts = urlsplit(url)
    except ValueError as cause:
        raise BadInput(f"{url!r} is not a store URL: {cause}.", hint=f'Write it as "{example}".') from cause
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    space = check_space(options.pop("space", "penstock"))
    durability = options.pop("durability", "durable")
    if durability not in DURABILITIES:
        raise BadInput(f"durability {durability!r} is unknown.", hint="Use durable (the default) or fast.")
    return Location(url, parts.scheme.lower(), unquote(parts.netloc + parts.path), space, durability, options)
