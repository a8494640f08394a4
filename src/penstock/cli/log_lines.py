"""Log lines of commands that run until they are stopped: text for people, or JSON with a field for every fact."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.clock import from_micros
from penstock.errors import PenstockError
from penstock.queue.handling.context import Context
from penstock.queue.handling.outcomes import log_fields, trace_of
from penstock.queue.protocol import Ending

logger = logging.getLogger("penstock.cli")

WORKER_LINE = "{time} {record.process} {record.levelname:<7} {message}"
SERVICE_LINE = "{time} {record.process} {record.levelname:<7} {record.name} {message}"

# The optional fields of a line besides time, level, logger and message, in this order.
FIELDS = (
    "space", "queue", "entry", "generation", "attempt", "outcome", "seconds", "wait_seconds", "error", "traceback",
    "worker", "node", "topology", "pid", "trace_id", "span_id",
)  # fmt: skip

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_attempt: ContextVar[Context[Any] | None] = ContextVar("penstock_attempt", default=None)


class LogFormat(StrEnum):
    """How a log line is written."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[LogFormat, typer.Option(help="Lines for people, or JSON with a field for every fact.")]


def write_logs(chosen: LogFormat, line: str) -> LineFormatter:
    """Log to standard error from now on. Returns the formatter; set its ``fields`` to add them to all lines.

    An application that wants other lines sets up logging of its own with ``force=True``.
    """
    formatter = JsonLines() if chosen is LogFormat.JSON else TextLines(line)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    if chosen is LogFormat.JSON:
        # Warnings and uncaught errors become log lines as well.
        logging.captureWarnings(True)
        threading.excepthook = _log_thread_error
    return formatter


def report_error(error: PenstockError) -> None:
    """Log why a command ends: one line, also if all lines are JSON."""
    if any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers):
        logger.error("%s", error, extra={"error": type(error).__name__})
    else:
        typer.echo(f"error: {error}", err=True)


def write_text_logs() -> None:
    """Log lines for people; in each process of a topology."""
    write_logs(LogFormat.TEXT, WORKER_LINE)


def write_json_logs() -> None:
    """Log lines as JSON; in each process of a topology."""
    write_logs(LogFormat.JSON, WORKER_LINE)


class LineFormatter(logging.Formatter):
    """Times are UTC with their date, whatever zone the application sets."""

    def __init__(self) -> None:
        """``fields`` are those of the process, in every JSON line."""
        super().__init__()
        self.fields: dict[str, Any] = {}

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """As RFC 3339 writes it, to the millisecond."""
        moment = from_micros(int(record.created * 1_000_000))
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(LineFormatter):
    """Lines for people; a traceback follows its line."""

    def __init__(self, line: str) -> None:
        """``line`` may name the time, the message, and what the record has."""
        super().__init__()
        self._line = line

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line itself."""
        return self._line.format(time=self.formatTime(record), record=record, message=record.message)


class JsonLines(LineFormatter):
    """One JSON object per line, in ASCII, so that every reader can read it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        known = {**self.fields, **_fields_of_attempt(), **vars(record), "pid": record.process}
        if record.exc_info:
            known["traceback"] = self.formatException(record.exc_info)
        known["trace_id"], known["span_id"] = _trace_of(known)
        line = {
            "time": self.formatTime(record), "level": record.levelname, "logger": record.name,
            "message": _message(record),
        }  # fmt: skip
        line |= {name: known[name] for name in FIELDS if known.get(name) is not None}
        return json.dumps(line, default=str)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a wrong logging call must not cost the line
        return f"{record.msg} {record.args!r}"


def _trace_of(known: dict[str, Any]) -> tuple[str | None, str | None]:
    """The current span, or the one that a traceparent names."""
    telemetry = sys.modules.get("opentelemetry.trace")
    if telemetry is not None:
        span = telemetry.get_current_span().get_span_context()
        if span.is_valid:
            return f"{span.trace_id:032x}", f"{span.span_id:016x}"
    named = _TRACEPARENT.fullmatch(str(known.get("trace") or ""))
    return (None, None) if named is None else (named[1], named[2])


def _fields_of_attempt() -> dict[str, Any]:
    context = _attempt.get()
    if context is None:
        return {}
    entry = context.entry
    return {
        "queue": entry.queue, "entry": entry.id, "generation": entry.generation, "attempt": entry.attempt,
        "trace": trace_of(context),
    }  # fmt: skip


class NameAttempt:
    """Middleware: the log lines of a handler name its attempt."""

    def __call__(self, ctx: Context[Any], call_next: Callable[[], Any]) -> Any:
        """Around a handler in a thread."""
        token = _attempt.set(ctx)
        try:
            return call_next()
        finally:
            _attempt.reset(token)

    async def in_loop(self, ctx: Context[Any], call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around an async handler."""
        token = _attempt.set(ctx)
        try:
            return await call_next()
        finally:
            _attempt.reset(token)


class LogAttempts:
    """Logs attempts that are done, snoozed or released, which nothing else logs."""

    def __init__(self, to: logging.Logger) -> None:
        """Lines are written at the level DEBUG."""
        self._logger = to

    def count(self, ended: list[tuple[Ending, Context[Any]]], now: int) -> None:
        """The store has accepted these outcomes."""
        for ending, context in ended:
            if ending.outcome in ("retry", "dead"):
                continue
            fields = log_fields(context, ending)
            self._logger.debug(
                "queue %r, entry %s (attempt %d): %s", fields["queue"], fields["entry"], fields["attempt"],
                fields["outcome"], extra=fields,
            )  # fmt: skip


def _log_thread_error(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_value is not None:
        name = "a thread" if arguments.thread is None else f"thread {arguments.thread.name}"
        logger.error("%s ended with an error", name, exc_info=arguments.exc_value)
