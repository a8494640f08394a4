"""Guard: what may stand before a handler and refuse entries, and what it is told of those that ran.

The queue knows guards only by these two protocols; :mod:`penstock.breaker` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.queue.messages import Ending, Note

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context


class Watch(Protocol):
    """Collects what attempts said, and writes it down with the settle call that ends them: no call of its own."""

    def begin(self) -> None:
        """A worker with guarded handlers has started."""

    def end(self) -> None:
        """It has stopped."""

    def notes(self, verdicts: Sequence[Any]) -> Sequence[Note]:
        """What to write together with the attempts that gave these verdicts."""

    def noted(self, notes: Sequence[Note], kept: Sequence[bool] | None) -> None:
        """Which notes were kept; None: the call did not come through, and its verdicts will be told again."""


class Guard(Protocol):
    """Stands before one handler."""

    @property
    def watch(self) -> Watch:
        """Who collects its verdicts; several guards may share one."""

    @property
    def is_calm(self) -> bool:
        """Whether entering takes no call to a store, so that an event loop may do it by itself."""

    def enter(self, context: Context[Any], value: Any) -> Ending | None:
        """Let an attempt begin, or say how its entry is given back without having been tried."""

    def leave(self, context: Context[Any], result: Any, error: BaseException | None) -> None:
        """An attempt that was let in has ended: leave the verdict in ``context.verdict``."""

    def forget(self, context: Context[Any]) -> None:
        """The outcome of an attempt that was let in will never be settled."""
