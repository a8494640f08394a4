"""The pages on which actions are confirmed and done."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from penstock.errors import BadInput, Conflict, PenstockError
from penstock.service import problems
from penstock.service.access import audit
from penstock.service.dashboard import other_actions, queue_actions  # noqa: F401 - they register their actions
from penstock.service.dashboard.actions import ACTIONS, Action, Given, do
from penstock.service.dashboard.frame import PageRoute, Visit, Visiting, html, say
from penstock.service.dashboard.signing import fields_of, own_page, read_form

router = APIRouter(include_in_schema=False, route_class=PageRoute)

NOT_CARRIED = {"token", "sure", "back"}


@router.get("/ui/do/{name}")
def confirm(request: Request, visiting: Visiting, name: str) -> Response:
    """Show what an action will do; nothing is changed."""
    chosen = _known(visiting, name)
    given = Given(fields_of(request.url.query.encode()))
    return _confirmation(visiting, chosen, given)


@router.post("/ui/do/{name}")
async def perform(request: Request, visiting: Visiting, name: str) -> Response:
    """Do it, and go back to the page that asked."""
    chosen = _known(visiting, name)
    given = Given(await read_form(request))
    if given.text("again"):  # a field that the preview depends on was changed
        return await run_in_threadpool(_confirmation, visiting, chosen, given)
    try:
        done = await run_in_threadpool(do, chosen, visiting, given)
    except (BadInput, Conflict) as error:
        audit.info("refused: %s by %s: %s", chosen.did, visiting.key.name, type(error).__name__)
        return await run_in_threadpool(_confirmation, visiting, chosen, given, error)
    onward = own_page(given.text("back", "/"))
    if request.headers.get("hx-request"):
        # The script goes there itself: it would follow a redirect, and use up the sentence for the next page.
        return say(Response(status_code=204, headers={"hx-redirect": onward}), done.said, undo=done.undo)
    return say(RedirectResponse(onward, 303), done.said, undo=done.undo)


def _known(visiting: Visit, name: str) -> Action:
    chosen = ACTIONS.get(name)
    if chosen is None:
        raise HTTPException(404, "There is no such action.")
    if not visiting.visitor.may(chosen.scope):
        raise HTTPException(403, f"The API key {visiting.key.name!r} lacks the scope {chosen.scope!r}.")
    return chosen


def _confirmation(visiting: Visit, chosen: Action, given: Given, error: PenstockError | None = None) -> Response:
    """The preview as a page of its own, or alone for the dialog of the page that asks."""
    try:
        preview = chosen.preview(visiting, given)
    except BadInput as wrong:
        if error is not None or not given.text("again"):
            raise
        first = Given({name: values for name, values in given.parameters.items() if name not in ("to", "value")})
        preview, error = chosen.preview(visiting, first), wrong
    wrong_text = "" if error is None else " ".join(problems.in_words(error)[1:]).strip()
    shown = {field.name for field in preview.fields} | {name for name, _ in preview.shown}
    carried = [
        (name, value)
        for name, values in given.parameters.items()
        if name not in NOT_CARRIED | shown | {"again"}
        for value in values
    ]
    back = own_page(given.text("back") or "/")
    context = {
        "preview": preview,
        "action": chosen.name,
        "carried": carried,
        "back": back,
        "wrong": wrong_text,
        "token": visiting.visitor.token,
        "typed": given.text("sure"),
        "asked": urlencode([(name, value) for name, value in carried]),
    }
    if visiting.request.headers.get("hx-request"):
        return html(visiting.dashboard.write("preview.html", context))
    return visiting.page("confirm.html", "", **context)
