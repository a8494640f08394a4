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
