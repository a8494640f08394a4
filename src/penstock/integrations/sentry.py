"""Sentry: the failure of an attempt is an event with its queue, entry and attempt, in a scope of its own.

sentry_sdk.init(dsn=...)
queues = penstock.Queues(middleware=[report_failures()])
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import BadInput
from penstock.integrations.around import Around
from penstock.integrations.requirement import check_version, required
from penstock.policy import Outcome

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context

sentry_sdk: Any = required("sentry_sdk", extra="sentry")
check_version("sentry-sdk", sentry_sdk.VERSION, (2, 20), extra="sentry")

Which = Literal["all", "first", "last"]


def report_failures(attempts: Which = "all", *, payload: bool = False) -> Around:
    """Make the middleware that reports failed attempts.

    ``Snooze``, ``Reject`` and ``TryAgain`` are decisions of the handler, not failures. With tracing switched on in
    ``sentry_sdk.init``, every attempt is a transaction that continues the trace of the put, if its headers have one.

    Args:
        attempts: of each entry ``"all"``, the ``"first"`` or the ``"last"`` one only
        payload: send the payload to Sentry, too
    """
    if attempts not in ("all", "first", "last"):
        raise BadInput(f"attempts={attempts!r} names no attempts.", hint='Use "all", "first" or "last".')

    @contextmanager
    def reported(ctx: Context[Any]) -> Iterator[None]:
        entry = ctx.entry
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_transaction_name(f"handle {entry.queue}", source="task")
            scope.set_tag("penstock.queue", entry.queue)
            scope.set_context("penstock", _described(ctx, payload=payload))
            going_on = sentry_sdk.continue_trace(
                entry.headers, op="queue.process", name=f"handle {entry.queue}", source="task", origin="auto.queue"
            )
            with sentry_sdk.start_transaction(going_on):
                try:
                    yield
                except Outcome:
                    raise
                except Exception as error:
                    if _is_wanted(ctx, attempts):
                        sentry_sdk.capture_exception(error)
                    raise

    return Around(reported)


def _is_wanted(ctx: Context[Any], attempts: Which) -> bool:
    if attempts == "first":
        return ctx.entry.attempt == 1
    return attempts == "all" or ctx.entry.attempt == ctx.handler.retry.attempts


def _described(ctx: Context[Any], *, payload: bool) -> dict[str, Any]:
    entry = ctx.entry
    described = {
        "entry": entry.id,
        "attempt": entry.attempt,
        "generation": entry.generation,
        "created": entry.created.isoformat(),
        "labels": dict(entry.labels),
    }
    return {**described, "payload": repr(ctx.value)} if payload else described
