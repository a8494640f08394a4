"""A task on its way through a queue, and the handler that calls it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from django.utils.module_loading import import_string

from penstock.clock import Duration
from penstock.errors import PayloadTooLarge
from penstock.integrations.django import results
from penstock.integrations.django.tasks_api import TaskContext, TaskResult, normalize_json, signals
from penstock.policy import Outcome, Reject, Snooze

if TYPE_CHECKING:
    from penstock.integrations.django.backend import TaskBackend
    from penstock.queue.handling.context import Context


logger = logging.getLogger("penstock.integrations.django")


class Call(msgspec.Struct, frozen=True):
    """Which task, with what: what an entry holds."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]


def find_task(path: str) -> Any:
    """The task of a module path, as it was decorated."""
    return import_string(path)


class Handling:
    """The handler of all queues of a backend: sync tasks run in the worker's thread, async ones in a loop there."""

    def __init__(self, backend: TaskBackend, keep_results: Duration) -> None:
        """``keep_results``: how long what tasks return can be asked for."""
        self._backend = backend
        self._keep = keep_results
        self.__qualname__ = "django task"  # how a worker's log names it; the entry says which

    def __call__(self, call: Call, ctx: Context[Call]) -> None:
        """Call the task with Django's signals around it, and keep what it returns."""
        backend, task = self._backend, find_task(call.task)
        result = results.of_running(task, ctx.entry, call, backend.alias)
        signals.task_started.send(type(backend), task_result=result)
        try:
            arguments = [TaskContext(task_result=result), *call.args] if task.takes_context else call.args
            returned = task.call(*arguments, **call.kwargs)
            if isinstance(returned, Outcome):
                raise returned
            returned = normalize_json(returned)
        except BaseException as error:
            if _is_last(error, ctx):
                results.set_failed(result, error)
                self._finished(result)
            raise
        results.set_successful(result, returned)
        if returned is not None:
            self._keep_returned(returned, ctx)
        self._finished(result)

    def _keep_returned(self, returned: Any, ctx: Context[Call]) -> None:
        """Put the value with the outcome: never due before it expires, so that nobody counts it as waiting work."""
        id_ = results.returned_id(ctx.entry.id, ctx.entry.generation)
        try:
            ctx.put(self._backend.results, returned, id=id_, delay=self._keep, expires=self._keep)
        except PayloadTooLarge as error:
            # The task has done its work; to run it again would not make its value smaller.
            logger.warning("what task %s returned is not kept: %s", ctx.entry.id, error)

    def _finished(self, result: TaskResult) -> None:
        signals.task_finished.send(type(self._backend), task_result=result)


def _is_last(error: BaseException, ctx: Context[Call]) -> bool:
    """Whether no attempt follows the one that ended with this."""
    if isinstance(error, Snooze):
        return False
    return isinstance(error, Reject) or ctx.entry.attempt == ctx.handler.retry.attempts
