"""Django's tasks: ``django.tasks`` from Django 6.0 on, before that the backport ``django-tasks``."""

from __future__ import annotations

from typing import Any

from penstock.errors import MissingExtra
from penstock.integrations.requirement import check_version, required

django: Any = required("django", extra="django")
check_version("Django", django.__version__, (5, 2), extra="django")

if django.VERSION >= (6, 0):
    PACKAGE = "django.tasks"
else:
    PACKAGE = "django_tasks"
    try:
        required(PACKAGE, extra="django")
    except MissingExtra as missing:
        raise MissingExtra(
            f"Django {django.__version__} has no tasks, and their backport is not installed.",
            hint='Run: pip install django-tasks, and add "django_tasks" to INSTALLED_APPS; or use Django 6.',
        ) from missing

tasks: Any = required(PACKAGE, extra="django")
if PACKAGE == "django_tasks":
    check_version("django-tasks", tasks.__version__, (0, 12), extra="django")
task_base: Any = required(f"{PACKAGE}.base", extra="django")
backends: Any = required(f"{PACKAGE}.backends.base", extra="django")
exceptions: Any = required(f"{PACKAGE}.exceptions", extra="django")
signals: Any = required(f"{PACKAGE}.signals", extra="django")

Task = task_base.Task
TaskContext = task_base.TaskContext
TaskError = task_base.TaskError
TaskResult = task_base.TaskResult
TaskResultStatus = task_base.TaskResultStatus
# The backport has the names of before Django 6.0.
InvalidTask = exceptions.InvalidTask if PACKAGE == "django.tasks" else exceptions.InvalidTaskError
_json: Any = required("django.utils.json" if PACKAGE == "django.tasks" else "django_tasks.utils", extra="django")
normalize_json = _json.normalize_json
