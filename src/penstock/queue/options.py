"""The options of a put, as types: what `ctx.put`, `unit.put` and `put_many` pass on, and the check of their names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from penstock.clock import Duration
from penstock.errors import BadInput
from penstock.names import did_you_mean
from penstock.queue.entry import Unique


class ManyOptions(TypedDict, total=False):
    """What may be said of every entry of a ``put_many``; see :meth:`penstock.Queue.put`."""

    due: datetime | None
    delay: Duration | None
    priority: int
    unique: str | Unique | None
    labels: dict[str, str] | None
    headers: dict[str, str] | None
    expires: datetime | Duration | None
    sticky: bool | str


class PutOptions(ManyOptions, total=False):
    """What may be said of one entry; see :meth:`penstock.Queue.put`."""

    id: str | None


def check_options(options: Mapping[str, Any], call: str, known: type = PutOptions) -> None:
    """A slip in an option's name is told by the name of the call that was made."""
    names = known.__annotations__ if known is ManyOptions else {**ManyOptions.__annotations__, **known.__annotations__}
    for name in options:
        if name not in names:
            raise BadInput(
                f"{call}() has no option {name!r}.",
                hint=f"{did_you_mean(name, names)}Options: {', '.join(sorted(names))}.",
            )
