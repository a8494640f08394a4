"""structlog: every line that a handler logs names its queue, entry and attempt.

    queues = penstock.Queues(middleware=[bind_entry()])

The lines need ``structlog.contextvars.merge_contextvars`` among structlog's processors.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from penstock.integrations.around import Around
from penstock.integrations.requirement import check_version, required

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context

structlog: Any = required("structlog", extra="structlog")
contextvars: Any = required("structlog.contextvars", extra="structlog")
check_version("structlog", structlog.__version__, (24, 1), extra="structlog")


def bind_entry(*, labels: bool = False) -> Around:
    """Make the middleware that binds queue, entry, generation and attempt.

    Args:
        labels: bind the entry's labels, too
    """

    def bound(ctx: Context[Any]) -> AbstractContextManager[Any]:
        entry = ctx.entry
        fields = {"queue": entry.queue, "entry": entry.id, "generation": entry.generation, "attempt": entry.attempt}
        more = {f"label_{name}": value for name, value in entry.labels.items()} if labels else {}
        manager: AbstractContextManager[Any] = contextvars.bound_contextvars(**fields, **more)
        return manager

    return Around(bound)
