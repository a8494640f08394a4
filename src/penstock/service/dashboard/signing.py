"""Sign in with an API key, sign out."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from penstock.service.access import audit
from penstock.service.dashboard.frame import Dashboard, PageRoute, framed, html, say
from penstock.service.dashboard.session import COOKIE, is_ours, set_cookie

router = APIRouter(include_in_schema=False, route_class=PageRoute)

MOST_FIELDS = 3000


@router.get("/ui/login")
def login(request: Request) -> Response:
    """The page to sign in."""
    dashboard: Dashboard = request.app.state.dashboard
    if dashboard.sessions.is_open:
        return RedirectResponse("/", 303)
    return _form(request, "", 200)


@router.post("/ui/login")
async def sign_in(request: Request) -> Response:
    """Sign in with an API key; it is not kept."""
    dashboard: Dashboard = request.app.state.dashboard
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HTTPException(403, "A page of another site may not sign you in here.")
    form = await read_form(request)
    session = dashboard.sessions.sign_in(form.get("key", [""])[0].strip())
    if session is None:
        audit.info("refused: sign-in to the dashboard with an unknown key")
        return _form(
            request, "This API key is not known here. A key begins with psk_ and is shown once, when it is made.", 401
        )
    cookie, key = session
    if not key.may("read"):
        return _form(request, f"The key {key.name} lacks the scope read, which every page needs.", 403)
    audit.info("sign-in to the dashboard by %s", key.name)
    response = RedirectResponse(own_page(request.query_params.get("next", "/")), 303)
    set_cookie(response, request, cookie)
    return response


@router.post("/ui/logout")
async def sign_out(request: Request) -> Response:
    """End the session."""
    dashboard: Dashboard = request.app.state.dashboard
    visitor = await run_in_threadpool(dashboard.sessions.visitor, request)
    form = await read_form(request)
    if not is_ours(visitor, form.get("token", [""])[0]):
        raise HTTPException(403, "This form did not come from one of our pages.")
    await run_in_threadpool(dashboard.sessions.sign_out, request)
    response = RedirectResponse("/ui/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return say(response, "You are signed out.")


async def read_form(request: Request) -> dict[str, list[str]]:
    """The fields of a form; other content types are refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is expected here.")
    return fields_of(await request.body())


def fields_of(text: bytes) -> dict[str, list[str]]:
    """The fields of a form, or of the query of an address."""
    try:
        return parse_qs(text.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except (ValueError, UnicodeError) as cause:
        raise HTTPException(400, "The form cannot be read.") from cause


def own_page(path: str) -> str:
    """A page of ours to go back to: a link to this page must not lead on to another site."""
    is_page = path == "/" or path.startswith(("/?", "/ui/"))
    return path if is_page and "\\" not in path and not any(ord(letter) < 32 for letter in path) else "/"


def _form(request: Request, wrong: str, status: int) -> Response:
    dashboard: Dashboard = request.app.state.dashboard
    context = framed(request, None, "login", dashboard.host_now())
    back = request.query_params.get("next", "")
    return html(dashboard.write("login.html", {**context, "wrong": wrong, "back": back}), status)
