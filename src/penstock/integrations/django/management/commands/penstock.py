"""``manage.py penstock``: a worker for tasks, and the tables of their stores."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from penstock.errors import PenstockError
from penstock.integrations.django.backend import TaskBackend
from penstock.integrations.django.tasks_api import tasks
from penstock.queue.worker import Worker


class Command(BaseCommand):  # type: ignore[misc]
    """Handle tasks, or look after their store."""

    help = "Handle tasks that are kept in Penstock's queues."

    def add_arguments(self, parser: CommandParser) -> None:
        """What to do, and for which backend."""
        parser.add_argument("what", choices=["worker", "migrate", "doctor"])
        parser.add_argument("--backend", default="default", help="the alias in TASKS")
        parser.add_argument("--drain", action="store_true", help="end when nothing is due")

    def handle(self, *_: Any, what: str, backend: str, drain: bool, **options: Any) -> None:
        """Do it."""
        chosen = tasks.task_backends[backend]
        if not isinstance(chosen, TaskBackend):
            raise CommandError(f"TASKS[{backend!r}] is a {type(chosen).__name__}, not a backend of Penstock's.")
        try:
            getattr(self, f"_{what}")(chosen, drain)
        except PenstockError as error:
            raise CommandError(str(error)) from error

    def _worker(self, backend: TaskBackend, drain: bool) -> None:
        worker = Worker(backend.register(), [backend.family])
        if drain:
            self.stdout.write(f"handled {worker.drain()}")
        else:
            self.stdout.write(f"handling {backend.prefix}* in {backend.store.name}")
            worker.run()

    def _migrate(self, backend: TaskBackend, drain: bool) -> None:
        migrate = getattr(backend.store.driver, "migrate", None)
        for line in migrate("pre") if migrate is not None else ():
            self.stdout.write(line)
        self.stdout.write(f"{backend.store.name} is as this version needs it")

    def _doctor(self, backend: TaskBackend, drain: bool) -> None:
        for finding in backend.store.check():
            self.stdout.write(f"{finding.level}: {finding.what}: {finding.detail}")
