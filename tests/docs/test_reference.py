"""The reference has everything that the public packages offer, as the docstrings say it now."""

import importlib

import pytest
from tools import reference

import penstock

NAMED = {name for _, name, *_ in reference.entries()}
PACKAGES = (
    "penstock",
    "penstock.log",
    "penstock.log.pools",
    "penstock.breaker",
    "penstock.stream",
    "penstock.spark",
    "penstock.client",
    "penstock.testing",
    "penstock.telemetry",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_is_in_the_reference(package: str) -> None:
    public = importlib.import_module(package).__all__
    known = {f"{package}.{name}" for name in public} - {"penstock.PenstockError"}  # penstock.errors is there as a whole
    missing = {name for name in known if name not in NAMED and f"penstock.{name.rpartition('.')[2]}" not in NAMED}
    assert missing == set()
    assert "penstock.errors" in NAMED


def test_the_first_names_are_few_enough_to_read() -> None:
    assert len(penstock.__all__) <= 45


def test_every_parameter_is_documented() -> None:
    assert reference.problems() == []


def test_the_pages_are_what_the_docstrings_say() -> None:
    for path, text in reference.pages().items():
        assert path.read_text() == text, "run python -m tools.reference"
    assert {*reference.FOLDER.glob("*.md")} == {*reference.pages()}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (reference.ROOT / "mkdocs.yml").read_text()
    for path in reference.pages():
        assert f"reference/{path.name}" in navigation


def test_a_parameter_that_is_not_documented_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.Worker.stop, "__doc__", "Stop.\n\nArgs:\n    grave: how long")
    assert [problem for problem in reference.problems() if "Worker.stop" in problem] == [
        "penstock.Worker.stop takes ['grace'], its docstring says ['grave']"
    ]
