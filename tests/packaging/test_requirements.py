"""What is declared is what is imported: no requirement that nothing uses, nothing used that is not required."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from penstock.cli.installation import Requirement, findings, read_requirements

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Names under which distributions are imported, where they differ; those that others bring along are in IMPLIED.
IMPORTED_AS = {
    "uuid-utils": "uuid_utils", "pymysql": "pymysql", "confluent-kafka": "confluent_kafka", "jinja2": "jinja2",
    "opentelemetry-api": "opentelemetry", "django-tasks": "django_tasks", "sentry-sdk": "sentry_sdk",
    "protobuf": "google",
}  # fmt: skip
IMPLIED = {
    "pydantic_core": "pydantic", "httpcore2": "httpx2", "asgiref": "django", "click": "typer", "py4j": "pyspark",
    "typing_extensions": "anyio", "numpy": "pandas",
}  # fmt: skip
OF_USERS = {"pytest"}  # a plugin is imported by what it is a plugin of
INDIRECT = {"protobuf", "pandas"}  # pyspark asks for them at run time and does not declare them


def declared() -> dict[str, set[str]]:
    """Every distribution, and which extras (empty: the base) ask for it."""
    found: dict[str, set[str]] = {}
    for line in PROJECT["dependencies"]:
        found.setdefault(_name(line), set()).add("")
    for extra, lines in PROJECT["optional-dependencies"].items():
        for line in lines:
            if not line.startswith("penstock["):
                found.setdefault(_name(line), set()).add(extra)
    return found


def _name(line: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", line)
    assert match is not None
    return match[0].lower()


def imported() -> set[str]:
    """Top-level names that the package imports, also by importlib through `required(...)`."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "required":
                names |= {str(one.value).partition(".")[0] for one in node.args if isinstance(one, ast.Constant)}
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "PACKAGE":
                assert isinstance(node.value, ast.Constant)
                names.add(str(node.value.value).partition(".")[0])
    return {name for name in names if name not in sys.stdlib_module_names and name != "penstock"}


def test_every_requirement_is_imported_somewhere() -> None:
    names = imported()
    unused = {name for name in declared() if IMPORTED_AS.get(name, name) not in names} - INDIRECT
    assert not unused


def test_everything_that_is_imported_is_required() -> None:
    known = {IMPORTED_AS.get(name, name) for name in declared()}
    missing = {name for name in imported() - known - OF_USERS if IMPLIED.get(name) not in declared()}
    assert not missing


def test_all_has_every_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    whole = set(re.findall(r"[\w-]+", extras["all"][0])) | set(re.findall(r"[\w-]+", extras["standard"][0]))
    assert set(extras) - {"all", "standard", "client"} <= whole  # the client needs a part of the service


def test_doctor_knows_every_extra_of_this_installation() -> None:
    found = {finding.what: finding for finding in findings()}
    assert found["base"].level == "good"
    assert {"extra postgres", "extra service", "extra spark"} <= set(found)
    assert {finding.level for finding in found.values()} <= {"good", "unknown"}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("msgspec>=0.20", None),
        ("msgspec>=999", "msgspec .* is installed, >=999 is needed"),
        ("msgspec>=0.1,<0.2", "<0.2 is needed"),
        ("no-such-thing>=1; extra == 'none'", "no-such-thing is missing"),
    ],
)
def test_doctor_names_what_is_missing_or_of_another_version(line: str, fault: str | None) -> None:
    [requirement] = read_requirements([line])
    said = requirement.fault()
    assert (said is None) if fault is None else re.search(fault, said or "")


def test_doctor_leaves_out_what_is_for_another_python() -> None:
    lines = ["a>=1; python_version < '3.9' and extra == 'x'", "b[c]>=2.0; extra == 'x'", "penstock[cli]; extra == 'y'"]
    assert read_requirements(lines) == [Requirement("b", ((">=", "2.0"),), "x")]
