"""The lowest versions that are declared are those that are tried: `make faults` installs them and works with them."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVERS = ("postgres", "mysql", "redis", "zookeeper", "kafka", "arrow", "otel")
# What runs the tests is not what is tested.
RUNNERS = ("pytest", "pytest-timeout", "hypothesis", "httpx")
FRAMEWORKS = (
    "service",
    "cli",
    "postgres",
    "mysql",
    "redis",
    "zookeeper",
    "otel",
    "django",
    "flask",
    "sentry",
    "structlog",
)
# Penstock takes their objects and asks for none of them.
TAKEN = ("SQLAlchemy[asyncio]", "asyncpg")


@pytest.mark.parametrize(
    ("group", "extras"), [("service", ("service", "cli")), ("drivers", DRIVERS), ("frameworks", FRAMEWORKS)]
)
def test_the_lowest_versions_that_are_declared_are_those_that_are_tried(group: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = set(project["dependencies"]).union(*(project["optional-dependencies"][extra] for extra in extras))
    lines = (ROOT / "requirements" / f"lowest-{group}.in").read_text().splitlines()
    tried = {line for line in lines if line and not line.startswith("#")}
    assert {line for line in tried if line.partition(">=")[0] not in (*RUNNERS, *TAKEN)} == declared
    text = (ROOT / "requirements" / f"lowest-{group}.txt").read_text()
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([0-9.]+)", text, re.M))
    for requirement in declared:
        name, _, bound = requirement.partition(";")[0].partition(">=")
        version = pinned[name.partition("[")[0].lower()]
        assert version == bound or re.fullmatch(rf"{re.escape(bound)}(\.0)*", version), (
            f"{name}: {version}, not {bound}"
        )


def test_every_group_asks_for_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = dict(requirement.partition(">=")[::2] for requirement in project["optional-dependencies"]["service"])
    for file in (ROOT / "requirements").glob("*.in"):
        for line in file.read_text().splitlines():
            name, asked, bound = line.partition(">=")
            if asked and name in bounds and name != "pydantic":  # which tests use by themselves
                assert bound == bounds[name], f"{file.name}: {line}"
