"""TaskBackend: Django's tasks on Penstock's queues, in the transaction of the caller."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

from django.core import checks
from django.db import connections, transaction

from penstock.errors import BadInput, EntryNotFound, PenstockError, Unsupported
from penstock.ids import new_id
from penstock.integrations.django import results
from penstock.integrations.django.calls import Call, Handling, find_task
from penstock.integrations.django.connections import FreshConnections
from penstock.integrations.django.location import check_settings, database_url, is_in_memory
from penstock.integrations.django.tasks_api import InvalidTask, backends, exceptions, signals
from penstock.names import check_name
from penstock.opening import open_queues
from penstock.policy import Retry
from penstock.queue.handling.handler import DEFAULT_RETRY
from penstock.queue.protocol import Find
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore

PREFIX = "tasks."
RESULTS = "task-results"
# One store per URL and process: Django makes a backend for every thread.
_stores: dict[str, QueueStore] = {}
_opening = threading.Lock()


def close_stores() -> None:
    """Close all stores of this process, for instance before a test database is dropped; they open again when used."""
    with _opening:
        while _stores:
            _stores.popitem()[1].close()


class TaskBackend(backends.BaseTaskBackend):  # type: ignore[misc]
    """Tasks kept in one of Django's databases (``OPTIONS["database"]``), or in the store of a URL.

    In a database a task is part of the caller's transaction. Elsewhere it is put when that transaction has committed;
    ``database`` then says whose, and is the default one if left out.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read the settings; the store is opened at the first use."""
        super().__init__(alias, params)
        check_settings(alias, self.options)
        self.database: str = self.options.get("database", "default")
        self.prefix = f"{check_name(self.options.get('prefix', PREFIX.rstrip('.')), kind='prefix')}."
        given = self.options.get("retry", DEFAULT_RETRY)
        self.retry = Retry(**given) if isinstance(given, dict) else given

    # --- the store -------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the tasks are kept."""
        if "url" in self.options:
            return str(self.options["url"])
        return database_url(self.database, connections[self.database].settings_dict, self.options)

    @property
    def store(self) -> QueueStore:
        """The store, opened at its first use in this process."""
        url = self.url
        with _opening:
            store = _stores.get(url)
            if store is None or store.closed:
                store = _stores[url] = open_queues(url)
            return store

    @property
    def family(self) -> Queue[Call]:
        """All queues of the backend's tasks."""
        return self.store.family(self.prefix, Call)

    @property
    def results(self) -> Queue[Any]:
        """Where return values are kept."""
        return self.store.queue(RESULTS)

    def register(self) -> QueueStore:
        """Let workers of this process handle the tasks. Returns the store."""
        family = self.family
        if (family.name, True) not in family.store.handlers:
            family.add_handler(
                Handling(self, self.options.get("keep_results", "7d")),
                retry=self.retry,
                concurrency=self.options.get("concurrency", 10),
                timeout=self.options.get("timeout"),
                middleware=[FreshConnections()],
            )
        return family.store

    # --- Django's interface ------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """What Django checks, and that the queue's name is one."""
        super().validate_task(task)
        try:
            check_name(f"{self.prefix}{task.queue_name}", kind="queue")
        except BadInput as cause:
            raise InvalidTask(str(cause)) from cause

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put the task; inside ``atomic`` it lives and dies with the transaction."""
        self.validate_task(task)
        result = results.new(task, new_id(), args, kwargs, self.alias)
        call = Call(task.module_path, result.args, result.kwargs)
        queue = self.family.member(f"{self.prefix}{task.queue_name}")
        put = partial(queue.put, call, id=result.id, priority=task.priority, due=task.run_after)
        if "url" in self.options and connections[self.database].in_atomic_block:
            transaction.on_commit(put, using=self.database)
        elif "url" in self.options and not connections[self.database].get_autocommit():
            raise Unsupported(
                f"task {task.name} goes to another store when the transaction of {self.database!r} has committed, and "
                "with autocommit off Django does not say when that is.",
                hint="Enqueue it inside transaction.atomic(), or keep the tasks in that database.",
            )
        else:
            put(connection=self._callers_connection())
        results.set_enqueued(result)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """What is known of a task, by its id."""
        entry = self._live(result_id)
        rows = self.family.history(result_id)
        if entry is None and not rows:
            raise self._unknown(result_id)
        stored = (
            entry or self._dead(result_id) or next((row for row in reversed(rows) if row.payload is not None), None)
        )
        if stored is None:
            raise self._unknown(result_id)
        call: Call = stored.value
        result = results.of_stored(find_task(call.task), call, self.alias, entry, rows)
        if entry is None and rows[-1].state == "done":
            results.set_returned(result, self._returned(results.returned_id(result_id, rows[-1].generation)))
        return result

    def _callers_connection(self) -> Any:
        """The connection of the caller's transaction, if there is one and the tasks are in its database."""
        if "url" in self.options:
            return None
        connection = connections[self.database]
        return connection if connection.in_atomic_block or not connection.get_autocommit() else None

    def _live(self, id_: str) -> Any:
        try:
            return self.family.get(id_, connection=self._callers_connection())
        except EntryNotFound:
            return None

    def _dead(self, id_: str) -> Any:
        """The dead letter of a task, which has the payload that its history lacks."""
        for letter in self.store.driver.dead(Find(family=self.prefix, ids=(id_,))):
            letter.reader = self.family.codec
            return letter
        return None

    def _returned(self, id_: str) -> Any:
        try:
            return self.results.get(id_).value
        except EntryNotFound:
            return None

    def _unknown(self, id_: str) -> Exception:
        error: Exception = exceptions.TaskResultDoesNotExist(id_)
        return error

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """What ``manage.py check`` says of the settings; it connects to nothing."""
        try:
            url = self.url
        except PenstockError as error:
            if is_in_memory(connections[self.database].settings_dict):  # no error: a test run may put no tasks
                yield checks.Warning(error.message, hint=error.hint, id="penstock.W002")
            else:
                yield checks.Error(error.message, hint=error.hint, id="penstock.E001")
            return
        if "url" not in self.options and url.startswith("sqlite:"):
            mode = connections[self.database].settings_dict.get("OPTIONS", {}).get("transaction_mode")
            if mode != "IMMEDIATE":
                yield checks.Warning(
                    f"transactions of DATABASES[{self.database!r}] begin as readers: one that writes late may fail.",
                    hint='Set its OPTIONS to {"transaction_mode": "IMMEDIATE"}.',
                    id="penstock.W001",
                )
