"""What imports cost: CPU of a fresh process beyond a bare interpreter's, and beyond a framework's own.

python -m benchmarks.imports [--quick]

The interpreter that runs this has to have the frameworks: `.venv`, which `make test` sets up.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import subprocess
import sys

from benchmarks.measure import Bar, conditions, report

ROUNDS = 3 if "--quick" in sys.argv else 15
MOST, MOST_BEYOND = 25, 60  # ms
# What is imported first, and what is measured behind it.
DJANGO = "import django.conf; django.conf.settings.configure(); import django, django.tasks; django.setup()"
DJANGO_5 = DJANGO.replace("django.tasks", "django_tasks")
PARTS = {
    "penstock": ("", "import penstock"),
    "fastapi": ("import fastapi", "import penstock.integrations.fastapi"),
    "flask": ("import flask", "import penstock.integrations.flask"),
    "sqlalchemy": ("import sqlalchemy", "import penstock.integrations.sqlalchemy"),
    "sentry": ("import sentry_sdk", "import penstock.integrations.sentry"),
    "structlog": ("import structlog", "import penstock.integrations.structlog"),
    "pytest plugin": ("import pytest", "import penstock.integrations.pytest_plugin"),
    "django backend": (
        DJANGO if importlib.util.find_spec("django.tasks") else DJANGO_5, "import penstock.integrations.django.backend",
    ),
}  # fmt: skip


# With it every process would compile all modules again, as no installed package does.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def cpu_ms(code: str) -> float:
    """The CPU of a process that runs this and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> int:
    print(f"Conditions: {conditions()}", flush=True)
    bars, left_out = [], []
    for name, (first, ours) in PARTS.items():
        package = first.partition("import ")[2].partition(".")[0].partition(",")[0]
        if package and importlib.util.find_spec(package) is None:
            left_out.append(name)
            continue
        cpu_ms(f"{first}\n{ours}")  # writes what is compiled
        extra = statistics.median(cpu_ms(f"{first}\n{ours}") - cpu_ms(first or "pass") for _ in range(ROUNDS))
        most = MOST if name == "penstock" else MOST_BEYOND
        what = "import penstock" if name == "penstock" else f"{name}: the integration beyond the framework"
        bars.append(Bar(what, f"at most {most} ms of CPU", f"{extra:.1f} ms", extra <= most))
    notes = [f"medians of {ROUNDS} processes", *(f"{name} is not installed here" for name in left_out)]
    return 0 if report("Imports", bars, notes) else 1


if __name__ == "__main__":
    sys.exit(main())
