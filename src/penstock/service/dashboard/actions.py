"""Actions by hand: each one first shows what it will touch, is confirmed, and is recorded.

GET shows a preview with counts and changes nothing. POST, from that page only, does the action and records it with who,
what, before and after. Both need the action's scope.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.exceptions import HTTPException

from penstock.errors import BadInput
from penstock.queue.changes import Change, record_change
from penstock.service.access import audit
from penstock.service.dashboard.frame import Visit, address
from penstock.service.dashboard.session import is_ours
from penstock.service.keys import Scope

Parameters = dict[str, list[str]]


class Field(msgspec.Struct, frozen=True):
    """Something to fill in."""

    name: str
    label: str
    value: str = ""
    placeholder: str = ""
    is_required: bool = False
    kind: str = "text"  # or area
    choices: tuple[tuple[str, str], ...] = ()


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What an action will do, before it is done."""

    title: str
    note: str
    button: str
    keep: str = "Keep as it is"
    facts: tuple[tuple[str, str], ...] = ()  # what it touches, with counts
    head: tuple[str, ...] = ()  # of a table of before and after
    rows: tuple[tuple[str, ...], ...] = ()
    warning: str = ""
    fields: tuple[Field, ...] = ()
    typed: str = ""  # a name that has to be typed
    is_dangerous: bool = False
    refusal: str = ""  # why it cannot be done now
    shown: tuple[tuple[str, str], ...] = ()  # sent back with the form: what was shown when it was confirmed


class Done(msgspec.Struct, frozen=True):
    """What was done."""

    said: str
    target: str
    before: str
    after: str
    undo: str = ""  # the address of the action that reverts it, if there is one


class Given:
    """The parameters of an action, as the address or the form has them."""

    def __init__(self, parameters: Parameters) -> None:
        """As they came."""
        self.parameters = parameters

    def text(self, name: str, default: str = "") -> str:
        """One value."""
        return self.parameters.get(name, [default])[-1].strip()

    def needed(self, name: str, label: str) -> str:
        """One value that has to be there."""
        value = self.text(name)
        if not value:
            raise BadInput(f"{label} is missing.", hint="Fill it in.")
        return value

    def many(self, name: str) -> list[str]:
        """All values of a name. Raises if one is empty, since that must not mean everything."""
        given = self.parameters.get(name, [])
        values = [value for value in given if value]
        if given and not values:
            raise BadInput("nothing is chosen.", hint="Select what is meant, and try again.")
        return values


class Action(msgspec.Struct, frozen=True):
    """One thing that can be done by hand."""

    name: str
    did: str
    preview: Callable[[Visit, Given], Preview]
    perform: Callable[[Visit, Given], Done]
    scope: Scope = "admin"


ACTIONS: dict[str, Action] = {}


Perform = Callable[["Visit", "Given"], "Done"]


def action(
    name: str, did: str, preview: Callable[[Visit, Given], Preview], *, scope: Scope = "admin"
) -> Callable[[Perform], Perform]:
    """Make a function an action; ``preview`` says beforehand what the function will do."""

    def register(perform: Perform) -> Perform:
        ACTIONS[name] = Action(name, did, preview, perform, scope)
        return perform

    return register


def do(chosen: Action, visiting: Visit, given: Given) -> Done:
    """Check the form, do the action, and record it."""
    if not is_ours(visiting.visitor, given.text("token")):
        raise HTTPException(
            403,
            "This form did not come from one of our pages, or its session has ended. Nothing was changed; open the page"
            " again.",
        )
    preview = chosen.preview(visiting, given)
    if preview.refusal:
        raise BadInput(preview.refusal, hint="Nothing was changed.")
    if preview.typed and given.text("sure") != preview.typed:
        raise BadInput(
            f"the name that was typed is not {preview.typed!r}.", hint="Nothing was changed; type it as it is."
        )
    done = chosen.perform(visiting, given)
    visiting.reading.forget()
    why = given.text("why")
    audit.info("%s of %s by %s: %s -> %s %s", chosen.did, done.target, visiting.key.name, done.before, done.after, why)
    record_change(
        visiting.reading.queues, Change(visiting.key.name, chosen.did, done.target, done.before, done.after, why)
    )
    return done


def undo_address(name: str, **parameters: str) -> str:
    """The address of the action that reverts another one."""
    return address(f"/ui/do/{name}", **parameters)


WHY = Field("why", "Why (kept with the change)", placeholder="the template is back")
