"""The lowest versions that are declared are those that are tried: `make faults` installs them and serves with them."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("service", "cli")


def test_the_lowest_versions_of_the_service_are_those_that_are_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = set(project["dependencies"])
    for extra in EXTRAS:
        declared |= set(project["optional-dependencies"][extra])
    lines = (ROOT / "requirements" / "lowest-service.in").read_text().splitlines()
    assert {line for line in lines if line and not line.startswith("#")} == declared
    pinned = dict(
        re.findall(r"^([A-Za-z0-9_.-]+)==([0-9.]+)", (ROOT / "requirements" / "lowest-service.txt").read_text(), re.M)
    )
    for requirement in declared:
        name, _, bound = requirement.partition(">=")
        version = pinned[name.lower()]
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
