"""Outcomes: what a returned value or an exception means for the entry."""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import AsyncGenerator, Coroutine, Generator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.clock import SECOND, Micros, duration_micros, from_micros
from penstock.errors import BadInput, Conflict, LeaseLost, NotHeld, PayloadTooLarge, PenstockError, Undecodable
from penstock.policy import Outcome, Reject, Snooze, TryAgain
from penstock.queue.entry import TRACEBACK, Entry, error_alone
from penstock.queue.protocol import Ending, Step
from penstock.tracing import TRACEPARENT

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context

logger = logging.getLogger("penstock.queue.worker")

ERROR_LENGTH = 2000  # characters of an error's text that are kept
TRACEBACK_LENGTH = 4000  # characters of its traceback, the last ones

TOO_NEW_PAUSE: Micros = 5 * SECOND  # that an entry of a newer version waits for a worker that can read it

# The outcome of an ending in the words of logs and metrics.
OUTCOMES = {"done": "done", "retry": "retried", "dead": "dead", "snooze": "snoozed", "release": "released"}

VALUES = frozenset({int, float, str, dict, list, tuple})  # that say nothing about the attempt; the rest is looked at

OWN_FRAMES = str(Path(__file__).parent)

# An outcome on its way to the store: the step, and the context of the attempt unless the entry was only given back.
Ended = tuple[Step, "Context[Any] | None"]


class Refuse(Outcome):
    """Outcome of a middleware: the entry goes back unspent, as if never claimed; after a while, or at once."""

    def __init__(self, reason: str, after_us: Micros | None = None) -> None:
        """Give the entry back at once only if something else, such as a lock, delays its return."""
        super().__init__(reason)
        self.after_us = after_us


class RemoteTraceback(Exception):
    """The cause of an error that was raised elsewhere, in a process or a thread: its traceback as text."""


def step_of_result(context: Context[Any], result: Any, rng: random.Random | None = None) -> Step | None:
    """What a returned value means, or None when ``ctx.finish()`` has settled the attempt already."""
    if not context.finished:
        return _step_of(context, result, rng)
    if context.is_over():
        if _asks_for_more(result):
            logger.warning(
                "handler %s returned %r after ctx.finish() had ended entry %s of queue %r as done; it is ignored",
                context.handler.title, result, context.entry.id, context.entry.queue,
            )  # fmt: skip
        elif result is not None and context.handler.keep_result_us is not None and not context.has_result:
            logger.warning(
                "handler %s returned a result after ctx.finish() had ended entry %s of queue %r; it is not kept, use "
                "ctx.finish(result=...)", context.handler.title, context.entry.id, context.entry.queue,
            )  # fmt: skip
        return context.confirmation()
    if not _asks_for_more(result):
        context.forget_finish()
        raise Conflict(
            "ctx.finish(connection=...) was rolled back or not committed; the entry is still held.",
            hint="Commit the connection before the handler returns.",
        )
    return _step_of(context, result, rng)


def step_of_error(context: Context[Any], error: BaseException, rng: random.Random | None = None) -> Step | None:
    """What an exception means, or None when ``ctx.finish()`` has settled the attempt already."""
    if context.finished and context.is_over():
        logger.warning(
            "handler %s failed after ctx.finish() had ended entry %s of queue %r as done, which it stays: %s",
            context.handler.title, context.entry.id, context.entry.queue, error_text(error), exc_info=error,
        )  # fmt: skip
        return context.confirmation()
    return failure(context, error, rng)


def _step_of(context: Context[Any], result: Any, rng: random.Random | None) -> Step:
    if result is None or result is True or result.__class__ in VALUES:
        return _success(context, result)
    if result is False:
        error = RuntimeError("the handler returned False, which is a failure; return None if it has succeeded")
        return failure(context, error, rng)
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        if not isinstance(result, AsyncGenerator):
            result.close()
        return failure(context, RuntimeError(f"the handler returned a {type(result).__name__}, which nobody runs"), rng)
    if isinstance(result, type) and issubclass(result, Outcome):
        result = _instance_of(result)
    if isinstance(result, Outcome):
        return failure(context, result, rng)
    return _success(context, result)


def _success(context: Context[Any], result: Any) -> Step:
    """A success. If its result cannot be kept, it is a dead letter, because another attempt would not help."""
    if context.handler.keep_result_us is None:
        return context.success()
    try:
        return context.success(result)
    except (PayloadTooLarge, Undecodable) as error:
        return dead(context, error_text(error))


def step_of_refusal(context: Context[Any], error: PenstockError, rng: random.Random | None = None) -> Step:
    """What it means that the store refused a success; a batch that is over stays so, whatever another attempt does."""
    if isinstance(error, NotHeld):
        return dead(context, error_text(error))
    return failure(context, error, rng)


def failure(context: Context[Any], error: BaseException, rng: random.Random | None = None) -> Step:
    """What an exception means: an outcome, a retry, or the dead letters. What the attempt put is dropped."""
    entry, lease, started = context.entry, context.lease, context.started_us
    if isinstance(error, Snooze):
        return Step((Ending(lease, "snooze", error.micros, started_us=started),))
    if isinstance(error, Refuse):
        if error.after_us is None:
            return Step((Ending(lease, "release", error=str(error)),))
        return Step((Ending(lease, "snooze", error.after_us, error=str(error)),))
    if isinstance(error, Reject):
        return dead(context, f"rejected: {error.reason}" if error.reason else "rejected")
    retry = (error.retry if isinstance(error, TryAgain) else None) or context.handler.retry
    text = failure_text(error)
    delay = retry.delay(entry.attempt, rng)
    most = context.handler.retry.attempts  # claims use it, so no policy of a failure can exceed it
    if delay is None or (most is not None and entry.attempt >= most):
        return Step((Ending(lease, "dead", error=text, started_us=started),))
    due = None
    if retry.relative_to == "due":
        due = entry.first_due_us + duration_micros(delay)
    return Step((Ending(lease, "retry", duration_micros(delay), due, text, started),))


def dead(context: Context[Any], error: str) -> Step:
    """To the dead letters."""
    return Step((Ending(context.lease, "dead", error=storable(error), started_us=context.started_us),))


def release(entry: Entry[Any]) -> Step:
    """Back to the queue, as if never claimed."""
    if entry.lease is None:
        raise LeaseLost(f"entry {entry.id} is not leased.")
    return Step((Ending(entry.lease, "release"),))


def call_on_dead(context: Context[Any], error: str) -> None:
    """Call the handler's ``on_dead`` once the store has agreed that the entry is dead. A failure in it is logged."""
    on_dead = context.handler.on_dead
    if on_dead is None:
        return
    try:
        value = context.entry.value
    except Exception:
        value = None
    try:
        on_dead(value, error_alone(error) or "")
    except BaseException:
        logger.exception("on_dead of handler %s failed on entry %s", context.handler.title, context.entry.id)


def log_outcome(context: Context[Any], ending: Ending, reason: str, error: BaseException | None) -> None:
    """One line for an attempt that did not succeed: which, why, and what comes next."""
    entry, most = context.entry, context.handler.retry.attempts
    level = logging.DEBUG if ending.outcome in ("snooze", "release") else logging.WARNING
    logger.log(
        level, "handler %s of queue %r, entry %s (attempt %d%s): %s -> %s",
        context.handler.title, entry.queue, entry.id, entry.attempt, f" of {most}" if most is not None else "", reason,
        _what_next(ending), exc_info=error, extra=log_fields(context, ending),
    )  # fmt: skip


def log_fields(context: Context[Any], ending: Ending) -> dict[str, Any]:
    """What a structured log says of an ended attempt, by field."""
    entry = context.entry
    return {
        "queue": entry.queue,
        "entry": entry.id,
        "generation": entry.generation,
        "attempt": entry.attempt,
        "outcome": OUTCOMES[ending.outcome],
        "seconds": context.seconds,
        "wait_seconds": wait_seconds(context),
        "error": error_alone(ending.error),
        "trace": trace_of(context),
    }


def trace_of(context: Context[Any]) -> str | None:
    """The span of the attempt, or else the one in which its entry was put, as a traceparent."""
    if context.trace is None:
        return context.entry.headers.get(TRACEPARENT)
    name = context.trace()
    return f"00-{name.trace_id:032x}-{name.span_id:016x}-01"


def wait_seconds(context: Context[Any]) -> float:
    """How long the entry had been due when the attempt started."""
    return max(0, context.started_us - context.entry.due_us) / SECOND


def reason_of(result: Any) -> str:
    """What a handler returned, as a reason."""
    if result is False:
        return "returned False, which is a failure"
    return error_text(result) if isinstance(result, Outcome) else f"returned {getattr(result, '__name__', result)}"


def error_text(error: BaseException) -> str:
    """An error as it is kept with the entry: its type and message, cut to a limit. It is never rebuilt from that."""
    try:
        message = str(error)
    except Exception as worse:
        message = f"(its text cannot be had: {type(worse).__name__})"
    return storable(f"{type(error).__name__}: {message}")


def failure_text(error: BaseException) -> str:
    """An error as kept with a failed attempt: its text and, where it was raised, the end of its traceback."""
    is_remote = isinstance(error.__cause__, RemoteTraceback)
    if isinstance(error, Outcome) or (error.__traceback__ is None and not is_remote):
        return error_text(error)
    try:
        frames = _frames(error)
    except Exception as worse:  # an error whose text cannot be had
        frames = f"  (it cannot be formatted: {type(worse).__name__})\n"
    if len(frames) > TRACEBACK_LENGTH:
        whole_lines = frames[-TRACEBACK_LENGTH:].partition("\n")[2]
        frames = f"  ...\n{whole_lines or frames[-TRACEBACK_LENGTH:]}"
    return f"{error_text(error)}\n{TRACEBACK}{frames}"


def _frames(error: BaseException) -> str:
    """The traceback without its headline, without our own frames above the handler's."""
    if isinstance(error.__cause__, RemoteTraceback):
        return _escaped(str(error.__cause__)).removeprefix(TRACEBACK)
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(OWN_FRAMES):
        tb = tb.tb_next
    lines = traceback.format_exception(type(error), error, tb or error.__traceback__)
    return _escaped("".join(lines)).removeprefix(TRACEBACK)


def storable(text: str) -> str:
    """A text that every store can keep, cut to a limit."""
    return _escaped(text)[:ERROR_LENGTH]


def _escaped(text: str) -> str:
    """NUL, and what is not a character (a file name's odd bytes), written out."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _asks_for_more(result: Any) -> bool:
    """Whether a returned value wants anything but done."""
    return result is False or isinstance(result, Outcome) or (isinstance(result, type) and issubclass(result, Outcome))


def _instance_of(outcome: type[Outcome]) -> Outcome:
    """A handler returned the class itself, as it may raise one."""
    try:
        return outcome()
    except TypeError as cause:
        raise BadInput(
            f"the handler returned the class {outcome.__name__}, which needs an argument.",
            hint='For example Snooze("5m").',
        ) from cause


def _what_next(ending: Ending) -> str:
    if ending.outcome == "dead":
        return "dead letter"
    if ending.due_us is not None:
        return f"again at {from_micros(ending.due_us).isoformat(timespec='seconds')}"
    return f"again in {_span(ending.delay_us)}"


def _span(micros: Micros) -> str:
    seconds = micros / SECOND
    return f"{seconds:.3g}s" if seconds < 120 else str(timedelta(seconds=round(seconds)))
