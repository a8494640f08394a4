"""The error tree: one root, each error with a text and a next step."""

import ast
import inspect
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.errors import PenstockError

SOURCE = Path(penstock.__file__).parent
CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, BaseException)]
WARNINGS = [one for one in CLASSES if issubclass(one, Warning)]
ALL = [one for one in CLASSES if one not in WARNINGS]


@pytest.mark.parametrize("error", ALL, ids=lambda one: one.__name__)
def test_every_error_has_the_one_root_and_says_what_it_is(error: type[PenstockError]) -> None:
    assert issubclass(error, PenstockError)
    assert error.__doc__
    assert error.__module__ == "penstock.errors"
    assert str(error()) == error.__doc__
    made = error("mails is full.", hint="Empty it.")
    assert str(made) == "mails is full. Empty it."
    assert made.hint == "Empty it."


@pytest.mark.parametrize("warning", WARNINGS, ids=lambda one: one.__name__)
def test_every_warning_has_the_one_root_and_is_shown_unless_silenced(warning: type[Warning]) -> None:
    assert issubclass(warning, errors.PenstockWarning)
    assert issubclass(warning, UserWarning), "other categories are hidden by default"
    assert warning.__doc__


# Raised and caught inside one store or runner; no user ever meets them.
INSIDE = {
    ("outcomes.py", "RemoteTraceback"),  # the cause of another error, never raised
    ("retry.py", "Stopped"),
    ("retry.py", "TimerFailed"),
    ("retry.py", "WrongState"),
    ("task.py", "RecordFailed"),
    ("session.py", "SignInNeeded"),  # becomes a redirect to the page for signing in
    ("commit.py", "TooLarge"),
    ("commit.py", "Refused"),
    ("session.py", "Unanswered"),
    ("commit.py", "Unanswered"),
    ("deliverer.py", "Undelivered"),
    ("batch_loop.py", "Failed"),
    ("folding.py", "HalfFolded"),  # then all since the last checkpoint does
    ("folding.py", "NotExact"),  # then records go through the engine, one by one
}


def test_errors_are_defined_in_one_place() -> None:
    """Besides the tree there are only outcomes, which a handler may return or raise."""
    found = []
    for path in SOURCE.rglob("*.py"):
        if "testing" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                if any(base.endswith(("Error", "Exception")) or base in dir(errors) for base in bases):
                    found.append((path.name, node.name))
    assert [one for one in found if one not in INSIDE] == [("policy.py", "Outcome")]


def test_everything_that_is_raised_is_typed() -> None:
    """No bare ValueError or RuntimeError reaches a user: what is raised in the library is of the tree."""
    allowed = {
        *(one.__name__ for one in ALL),
        "KeyboardInterrupt",
        "AttributeError",
        "SystemExit",
        *(name for _, name in INSIDE),
    }
    allowed |= {"HTTPException", "PydanticCustomError"}  # become answers of the service
    allowed |= {"InvalidTask", "CommandError"}  # what Django's interfaces ask for
    allowed |= {"Reject", "TryAgain"}  # what handlers raise to say what becomes of an entry
    allowed |= {"KafkaException", "ConnectionLoss"}  # of the drivers, and translated where they are caught
    allowed |= {"OSError", "PermissionError"}  # stand for what the operating system would have said; caught, typed
    found = []
    for path in SOURCE.rglob("*.py"):
        if {"cli", "testing"} & set(path.relative_to(SOURCE).parts):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                name = node.exc.func.id
                if name[0].isupper() and name not in allowed:
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno} {name}")
    # TypeError and ValidationError are for msgspec, which asks its hooks to raise them; they end as WrongType.
    assert [one for one in found if not one.startswith("codec.py")] == []


@pytest.mark.parametrize(
    ("error", "builtin"),
    [("BadInput", ValueError), ("WrongType", TypeError), ("EntryNotFound", LookupError), ("MissingExtra", ImportError)],
)
def test_the_builtin_errors_people_expect_fit_too(error: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, error), builtin)


def test_what_may_be_tried_again_is_told_apart() -> None:
    assert issubclass(errors.StoreReadOnly, errors.StoreUnavailable)
    assert issubclass(errors.UniqueHeld, errors.Conflict)
    assert issubclass(errors.EntryLeased, errors.Conflict)
    for error in (errors.LeaseLost, errors.OutcomeUnknown, errors.StoreFull, errors.StoreCorrupt):
        assert not issubclass(error, (errors.BadInput, errors.StoreUnavailable))
