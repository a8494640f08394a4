"""What a queue needs of those who declare it: where its handlers and schedules stay until it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from penstock.queue.handling.handler import Handler


@runtime_checkable
class Declarations(Protocol):
    """Queues that are declared and will be opened: :class:`penstock.Queues`."""

    handlers: dict[tuple[str, bool], Handler]

    def declare_schedule(self, set_schedule: Callable[[], object]) -> None:
        """Set this schedule when the queues are opened."""

    def open_when_used(self) -> bool:
        """Open them now, if they know where. Returns whether they did."""
