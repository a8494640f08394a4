"""A framework that is missing or too old is named, with what to install."""

import subprocess
import sys

import pytest

from penstock.errors import CannotOpen
from penstock.integrations.requirement import check_version

INTEGRATIONS = [("fastapi", "starlette", "service"), ("flask", "flask", "flask"), ("sentry", "sentry_sdk", "sentry")]
INTEGRATIONS += [("structlog", "structlog", "structlog"), ("django.backend", "django", "django")]


@pytest.mark.parametrize(("integration", "framework", "extra"), INTEGRATIONS)
def test_a_missing_framework_is_named_with_its_extra(integration: str, framework: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{framework!r}] = None
import penstock
try:
    import penstock.integrations.{integration}
except penstock.errors.MissingExtra as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"needs {framework}, which" in said
    assert f'pip install "penstock[{extra}]"' in said


@pytest.mark.parametrize("version", ["2.9.1", "2", "0.1rc1"])
def test_a_framework_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(CannotOpen, match=rf"Flask 3\.0 or newer; {version} is installed.*--upgrade"):
        check_version("Flask", version, (3, 0), extra="flask")


@pytest.mark.parametrize("version", ["3.0", "3.0.2", "10.1", "3.1rc1"])
def test_a_framework_that_is_new_enough_passes(version: str) -> None:
    check_version("Flask", version, (3, 0), extra="flask")


def test_django_before_6_without_the_backport_says_so() -> None:
    code = """
import sys, django
sys.modules["django_tasks"] = None
django.VERSION = (5, 2, 0, "final", 0)
import penstock
try:
    import penstock.integrations.django.tasks_api
except penstock.errors.MissingExtra as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install django-tasks" in said
    assert "or use Django 6" in said


def test_a_backport_that_is_too_old_is_refused() -> None:
    code = """
import django_tasks
django_tasks.__version__ = "0.9.0"
import penstock
try:
    import penstock.integrations.django.tasks_api
except penstock.errors.CannotOpen as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "django_tasks" in said.stderr:  # Django 6 has tasks of its own
        pytest.skip("this Python declares no backport")
    assert "needs django-tasks 0.12 or newer; 0.9.0 is installed" in said.stdout
