"""The page of calls names the parameters that these calls have, and errors that there are."""

import inspect
import re
import typing
from collections.abc import Callable
from typing import Any

import pytest
from tests.docs.pages import ROOT

import penstock
from penstock import errors

PAGE = (ROOT / "docs" / "calls.md").read_text()
SECTIONS = dict(re.findall(r"^### `([\w.]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))


def found(name: str) -> Callable[..., Any]:
    thing: Any = penstock
    for part in name.split(".")[1:]:
        thing = getattr(thing, part)
    assert callable(thing)
    return thing


def parameters(call: Callable[..., Any]) -> set[str]:
    """The names of what a call takes; those of ``**options`` one by one."""
    function = call.__init__ if inspect.isclass(call) else call
    names = set()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD and "Unpack" in str(parameter.annotation):
            hint = typing.get_type_hints(function, include_extras=True)[parameter.name]
            names |= set(typing.get_args(hint)[0].__annotations__)
        elif parameter.name != "self":
            names.add(parameter.name)
    return names


@pytest.mark.parametrize("name", SECTIONS)
def test_the_parameters_of_a_call(name: str) -> None:
    first_cells = [row.split("|")[1] for row in SECTIONS[name].splitlines() if row.startswith("| `")]
    named = [word for cell in first_cells for word in re.findall(r"`(\w+)`", cell)]
    assert len(named) == len(set(named))
    assert set(named) == parameters(found(name))


@pytest.mark.parametrize("name", SECTIONS)
def test_errors_are_there(name: str) -> None:
    raised = " ".join(re.findall(r"Raises (.*)", SECTIONS[name]))
    for word in re.findall(r"`([A-Z]\w+)`", raised):
        assert issubclass(getattr(errors, word), Exception)


def test_the_most_important_calls_are_on_the_page() -> None:
    assert {"penstock.open_queues", "penstock.Queue.put", "penstock.Worker", "penstock.Tailer.read"} <= set(SECTIONS)
