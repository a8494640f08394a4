"""The reference names everything that `import penstock` offers, and nothing that is not there."""

import importlib
import re

from tests.docs.pages import ROOT

import penstock

NAMED = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)


def found(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    holder = importlib.import_module(module)
    return getattr(holder, attribute, None) or importlib.import_module(name)


def test_everything_public_is_in_the_reference() -> None:
    public = {name for name in penstock.__all__ if not _is_error(getattr(penstock, name))}
    assert public <= {name.removeprefix("penstock.") for name in NAMED}
    assert "penstock.errors" in NAMED


def test_the_reference_names_what_is_there() -> None:
    assert len(NAMED) == len(set(NAMED)) > 25
    for name in NAMED:
        assert found(name) is not None


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, penstock.PenstockError | penstock.PenstockWarning)
