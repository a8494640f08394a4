"""The page about errors explains every error there is, and no other."""

import inspect
import re

from tests.docs.pages import ROOT

from penstock import errors

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()


def test_every_error_is_explained() -> None:
    public = {name for name, thing in inspect.getmembers(errors, inspect.isclass) if issubclass(thing, Exception)}
    explained = set(re.findall(r"\*\*`(\w+)`\*\*", PAGE))
    assert explained == public - {"PenstockError"}


def test_the_tests_that_the_guarantees_name_are_there() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[^`]+)`", page)
    assert len(named) >= 5
    assert [path for path in named if not (ROOT / path).exists()] == []
