"""The frame of every page: the visitor, the side bar, and pages and problems as HTML."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote, urlencode

import jinja2
import msgspec
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

import penstock
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.service import problems
from penstock.service.dashboard import formatting
from penstock.service.dashboard.reading import Reading
from penstock.service.dashboard.session import Sessions, SignInNeeded, Visitor
from penstock.service.keys import ApiKey

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SAID = "penstock-said"  # the cookie that carries one sentence over to the next page
UNDO = "penstock-undo"
ACTIONS_AT = "/ui/do/"
NO_ANSWER = "The store does not answer."


class Place(msgspec.Struct, frozen=True):
    """An item of the navigation."""

    name: str
    path: str
    icon: str
    title: str
    letter: str = ""


PLACES = (
    Place("overview", "/", "overview", "Overview", "o"),
    Place("queues", "/ui/queues", "queue", "Queues", "q"),
    Place("dead", "/ui/dead", "dead", "Dead letters", "d"),
    Place("schedules", "/ui/schedules", "schedule", "Schedules", "s"),
    Place("bus", "/ui/bus", "bus", "Bus", "b"),
    Place("logs", "/ui/logs", "log", "Logs", "l"),
    Place("topologies", "/ui/topologies", "topology", "Topologies", "t"),
    Place("circuits", "/ui/circuits", "circuit", "Circuits", "c"),
    Place("workers", "/ui/workers", "worker", "Workers", "w"),
    Place("report", "/ui/report", "report", "Report", "r"),
    Place("changes", "/ui/changes", "audit", "Changes", "h"),
    Place("settings", "/ui/settings", "settings", "Settings", "e"),
)


class Dashboard:
    """What all pages of one service share."""

    def __init__(self, app: FastAPI) -> None:
        """Use the stores of the application."""
        state = app.state
        self.reading: Reading = Reading(state.queues, state.logs, state.breaker)
        self._clock = SystemClock()
        self.sessions = Sessions(state.keys, state.queues, self._clock)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(formatting.FILTERS)
        self._templates.globals.update(
            places=PLACES, version=penstock.__version__, url=address, entry_url=entry_address
        )

    def write(self, template: str, context: dict[str, Any]) -> str:
        """Render a template as HTML."""
        return self._templates.get_template(template).render(context)

    def host_now(self) -> int:
        """This host's time, for pages that are rendered while the store does not answer."""
        return self._clock.micros()


class Visit:
    """One request for a page: who asks, and how the page is rendered."""

    def __init__(self, request: Request) -> None:
        """Raises ``SignInNeeded``."""
        self.request = request
        self.dashboard: Dashboard = request.app.state.dashboard
        self.visitor: Visitor = self.dashboard.sessions.visitor(request)
        self.reading: Reading = self.dashboard.reading

    @property
    def key(self) -> ApiKey:
        """The key of the visitor."""
        return self.visitor.key

    def given(self, name: str, default: str = "") -> str:
        """A parameter of the address."""
        return self.request.query_params.get(name, default).strip()

    def page(self, template: str, place: str, **context: Any) -> HTMLResponse:
        """Render a whole page; ``live`` names the parts that are refreshed while it is open."""
        now = self.reading.now()
        frame = {**framed(self.request, self.visitor, place, now), "counted": self._counted(), **context}
        said = unquote(self.request.cookies.get(SAID, ""))
        undo = unquote(self.request.cookies.get(UNDO, "")) if said else ""
        frame["undo"] = undo if undo.startswith(ACTIONS_AT) else ""
        response = html(self.dashboard.write(template, {**frame, "said": said}))
        for name in (SAID, UNDO) if said else ():
            response.delete_cookie(name, path="/")
        return response

    def _counted(self) -> dict[str, tuple[int, bool]]:
        """The counts beside the items of the navigation, and whether they are bad."""
        counts = self.reading.counts(self.key)
        dead = sum(queue.dead for queue in counts)
        lost = sum(worker.state == "lost" for worker in self.reading.workers(self.key))
        return {"queues": (len(counts), False), "dead": (dead, dead > 0), "workers": (lost, lost > 0)}


def framed(request: Request, visitor: Visitor | None, place: str, now: int) -> dict[str, Any]:
    """The variables of every page, even of one that says that the store is away."""
    store = request.app.state.queues
    query = request.url.query
    return {
        "place": place,
        "here": request.url.path + (f"?{query}" if query else ""),
        "path": request.url.path,
        "space": store.space,
        "kind": store.name.partition(":")[0],
        "visitor": visitor,
        "is_admin": visitor is not None and visitor.may("admin"),
        "token": "" if visitor is None else visitor.token,
        "now": now,
        "clock": lambda moment: formatting.clock(moment, now),
        "when": lambda moment: formatting.when(moment, now),
        "ago": lambda moment: formatting.span(None if moment is None else max(0, now - moment)),
        "counted": {},
        "said": "",
        "undo": "",
        "live": "",
        "has_logs": request.app.state.logs is not None,
    }


def html(text: str, status: int = 200) -> HTMLResponse:
    """A page as an answer, with its policy: nothing from elsewhere, no script in the page."""
    return HTMLResponse(text, status, {"content-security-policy": POLICY})


def say(response: Response, text: str, *, undo: str = "") -> Response:
    """Let the next page say one sentence, and offer to undo what it is about."""
    for name, value in ((SAID, text[:500]), (UNDO, undo[:2000])):
        if value:
            response.set_cookie(name, quote(value), max_age=20, path="/", httponly=True, samesite="strict")
    return response


def entry_address(queue: str, id_: str) -> str:
    """The address of an entry; ids may have any printable character."""
    return f"/ui/queues/{quote(queue, safe='')}/entries/{quote(id_, safe='')}"


def address(path: str, **parameters: Any) -> str:
    """An address on this service; parameters without a value are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "", [])}
    safe = quote(path, safe="/%")
    return f"{safe}?{urlencode(given, doseq=True)}" if given else safe


def visit(request: Request) -> Visit:
    """The visit of a page, which needs the scope ``read``."""
    visiting = Visit(request)
    if not visiting.visitor.may("read"):
        raise HTTPException(403, f"The API key {visiting.key.name!r} lacks the scope 'read'.")
    return visiting


Visiting = Annotated[Visit, Depends(visit)]


class PageRoute(APIRoute):
    """A route whose errors become pages with a next step."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of one request."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except SignInNeeded:
                return _sign_in(request)
            except PenstockError as error:
                state = request.app.state
                names = [store.name for store in (state.queues, state.logs) if store is not None]
                status, detail, hint = problems.in_words(error, *names)
                if status == 503:
                    return problem_page(request, status, NO_ANSWER, hint, problems.RETRY_AFTER)
                return problem_page(request, status, detail, hint)
            except RequestValidationError:
                return problem_page(
                    request, 404, "There is no such page.", "The address has something in it that is not a name."
                )
            except HTTPException as error:
                later = (error.headers or {}).get("retry-after", "")
                detail = str(error.detail)
                return problem_page(request, error.status_code, detail, "", int(later) if later.isdecimal() else 0)

        return handled


TITLES = {
    403: "Not allowed",
    404: "Not found",
    409: "Conflict",
    429: "Too many requests",
    503: NO_ANSWER.rstrip("."),
}


def problem_page(request: Request, status: int, detail: str, hint: str, retry_after: int = 0) -> Response:
    """An error as a page, rendered without the store. ``retry_after`` is in seconds."""
    dashboard: Dashboard = request.app.state.dashboard
    try:
        visitor: Visitor | None = dashboard.sessions.visitor(request, look=False)
    except SignInNeeded:
        visitor = None
    title = TITLES.get(status, "Something went wrong" if status >= 500 else "That cannot be done")
    if retry_after:
        hint = f"{hint} Try again in {formatting.plural(retry_after, 'second')}.".strip()
    context = framed(request, visitor, "", dashboard.host_now())
    text = dashboard.write(
        "problem.html",
        {
            **context,
            "status": status,
            "title": title,
            "detail": detail[:1].upper() + detail[1:],
            "hint": hint,
            "is_away": status == 503,
        },
    )
    response = html(text, status)
    if retry_after:
        response.headers["retry-after"] = str(retry_after)
    return response


def _sign_in(request: Request) -> Response:
    """Redirect to the page to sign in, which leads back. A refresh of an open page gets the reason as text."""
    renews = "hx-request" in request.headers or "text/event-stream" in request.headers.get("accept", "")
    if renews or request.method != "GET":
        return problem_page(
            request, 401, "Your session has ended.", "Sign in again; this page stays as it is until then."
        )
    query = request.url.query
    back = request.url.path + (f"?{query}" if query else "")
    return RedirectResponse(address("/ui/login", next=back), 303)
