"""The reference names everything that the public packages offer, and nothing that is not there."""

import importlib
import re

import pytest
from tests.docs.pages import ROOT

import penstock

NAMED = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)


def found(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    holder = importlib.import_module(module)
    return getattr(holder, attribute, None) or importlib.import_module(name)


PACKAGES = (
    "penstock",
    "penstock.log",
    "penstock.log.pools",
    "penstock.breaker",
    "penstock.stream",
    "penstock.spark",
    "penstock.client",
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


def test_the_reference_names_what_is_there() -> None:
    assert len(NAMED) == len(set(NAMED)) > 25
    for name in NAMED:
        assert found(name) is not None
