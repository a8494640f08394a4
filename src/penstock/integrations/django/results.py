"""What the store knows of a task, as Django's TaskResult: READY, RUNNING, SUCCESSFUL or FAILED."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from penstock.clock import from_micros
from penstock.integrations.django.tasks_api import TaskError, TaskResult, TaskResultStatus

if TYPE_CHECKING:
    from penstock.integrations.django.calls import Call
    from penstock.queue.entry import Entry, HistoryRow

_CLASS = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")


def returned_id(id_: str, generation: int) -> str:
    """The id under which the return value of a task is kept; a task that is replayed returns another one."""
    return f"{id_}.{generation}.returned"


def new(task: Any, id_: str, args: Any, kwargs: Any, alias: str, **known: Any) -> TaskResult:
    """A result of which only some facts are known."""
    facts: dict[str, Any] = {
        "status": TaskResultStatus.READY, "enqueued_at": None, "started_at": None, "finished_at": None,
        "last_attempted_at": None, "errors": [], "worker_ids": [], **known,
    }  # fmt: skip
    return TaskResult(task=task, id=id_, args=list(args), kwargs=dict(kwargs), backend=alias, **facts)


def of_running(task: Any, entry: Entry[Any], call: Call, alias: str) -> TaskResult:
    """The result of the attempt at work."""
    began = entry.lease.claimed if entry.lease is not None else entry.due
    owner = entry.lease.owner if entry.lease is not None else ""
    return new(
        task, entry.id, call.args, call.kwargs, alias, status=TaskResultStatus.RUNNING, enqueued_at=entry.created,
        started_at=began, last_attempted_at=began, worker_ids=[owner] * entry.attempt,
    )  # fmt: skip


def of_stored(task: Any, call: Call, alias: str, entry: Entry[Any] | None, rows: Sequence[HistoryRow]) -> TaskResult:
    """The result of a task that waits, is at work or has ended, from its entry and its history."""
    id_ = entry.id if entry is not None else rows[-1].id
    created = entry.created if entry is not None else from_micros(rows[-1].created_us)
    attempts = [row for row in rows if row.started is not None]
    started = [row.started for row in attempts if row.started is not None]
    workers = [row.owner or "" for row in attempts]
    if entry is not None and entry.lease is not None:
        started.append(entry.lease.claimed)
        workers.append(entry.lease.owner)
    finished: datetime | None = rows[-1].ended if entry is None else None
    return new(
        task, id_, call.args, call.kwargs, alias, status=_status(entry, rows), enqueued_at=created,
        started_at=started[0] if started else None, last_attempted_at=started[-1] if started else None,
        finished_at=finished, errors=[error_of(row) for row in rows if row.error is not None], worker_ids=workers,
    )  # fmt: skip


def _status(entry: Entry[Any] | None, rows: Sequence[HistoryRow]) -> Any:
    if entry is not None:
        return TaskResultStatus.READY if entry.lease is None else TaskResultStatus.RUNNING
    return TaskResultStatus.SUCCESSFUL if rows[-1].state == "done" else TaskResultStatus.FAILED


def error_of(row: HistoryRow) -> TaskError:
    """The error of an attempt; the class is named by the last line of its traceback."""
    text = row.traceback or row.error or ""
    named = _CLASS.match(text.strip().splitlines()[-1] if text.strip() else "") or _CLASS.match(row.error or "")
    path = named[1] if named else "Exception"
    return TaskError(exception_class_path=path if "." in path else f"builtins.{path}", traceback=text)


def set_failed(result: TaskResult, error: BaseException) -> None:
    """The last attempt has failed."""
    kind = type(error)
    result.errors.append(
        TaskError(
            exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
        )
    )
    _set(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())


def set_successful(result: TaskResult, returned: Any) -> None:
    """The task has returned."""
    _set(result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=returned)


def set_returned(result: TaskResult, returned: Any) -> None:
    """What an ended task returned, as it was kept."""
    _set(result, _return_value=returned)


def _set(result: TaskResult, **facts: Any) -> None:
    """Django's results are frozen for users; backends fill them in like this."""
    for name, value in facts.items():
        object.__setattr__(result, name, value)


def set_enqueued(result: TaskResult) -> None:
    """It was put now."""
    _set(result, enqueued_at=timezone.now())
