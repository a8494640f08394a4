"""The application for INSTALLED_APPS."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate

from penstock.integrations.django.tasks_api import tasks

logger = logging.getLogger("penstock.django")


class PenstockConfig(AppConfig):  # type: ignore[misc]
    """Queues of Penstock: makes their tables with ``migrate``."""

    name = "penstock.integrations.django"
    label = "penstock"
    verbose_name = "Penstock"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """The one model is not in a module of the usual name."""
        self.models = self.apps.all_models[self.label]
        self.models_module = import_module("penstock.integrations.django.dashboard")

    def ready(self) -> None:
        """Follow ``migrate``."""
        post_migrate.connect(make_tables, sender=self)


def make_tables(using: str, **_: Any) -> None:
    """Make the tables of the backends that are kept in the database which was migrated."""
    from penstock.integrations.django.backend import TaskBackend
    from penstock.integrations.django.location import is_in_memory

    if is_in_memory(connections[using].settings_dict):
        return  # no tasks can be kept there: a test that puts one gets an error, the others need no tables
    for backend in tasks.task_backends.all():
        if isinstance(backend, TaskBackend) and "url" not in backend.options and backend.database == using:
            logger.info("the tables of tasks are in %s", backend.store.name)  # opening makes them
