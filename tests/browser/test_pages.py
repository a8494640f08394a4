"""Every page as people see it: wide and on a phone, light and dark, empty, normal, huge and nasty."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Site
from tests.dashboard_scenes import (
    LONG,
    NASTY_PAGES,
    fill,
    fill_long,
    fill_many,
    fill_nasty,
    fill_past,
    long_topology,
    nasty_topology,
    topology,
)

from penstock import Breaker, LogStore, QueueStore
from penstock.breaker.settings import BreakerConfig
from penstock.queue.protocol import EndedCount
from penstock.queue.worker.figures import read_figures, total
from penstock.service.keys import new_key

pytestmark = pytest.mark.timeout(600)

AXE = Path(__file__).parent / "vendor" / "axe-4.14.0.min.js"
AXE_DIGEST = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
PAGES = {
    "overview": "/", "queues": "/ui/queues", "dead": "/ui/dead", "schedules": "/ui/schedules", "bus": "/ui/bus",
    "logs": "/ui/logs", "topologies": "/ui/topologies", "circuits": "/ui/circuits", "workers": "/ui/workers",
    "report": "/ui/report", "changes": "/ui/changes", "settings": "/ui/settings", "more": "/ui/more",
}  # fmt: skip
SHOP = {
    "queue": "/ui/queues/invoices.render?tab=dead", "queue-history": "/ui/queues/mails?tab=history",
    "log": "/ui/logs/clicks",
    "topology": "/ui/topologies/web", "reset": "/ui/do/group-reset?log=clicks&group=billing",
    "add": "/ui/do/schedule-add", "gone": "/ui/queues/nope",
}  # fmt: skip
VIEWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
DIALOGS = {
    "/ui/queues/mails?tab=ready": ("Lock…", "Put an entry…"),
    "/ui/queues/invoices.render?tab=dead": ("Replay all that match…", "Remove all that match…"),
    "/ui/queues/stopped": ("Unlock…",),
    "/ui/schedules": ("Add a schedule…", "Pause…", "Run now…", "Remove…"),
    "/ui/logs/clicks": ("Reset…", "Forget…"),
    "/ui/circuits": ("Open…",),
}
# What sticks out, for whoever has to find it.
WIDEST = """() => {
  const edge = document.documentElement.clientWidth + 1, right = (one) => Math.round(one.getBoundingClientRect().right);
  return [...document.querySelectorAll("body *")]
    .filter((one) => right(one) > edge && !one.closest(".scroll, .graph, pre")).slice(0, 4)
    .map((one) => one.tagName + "." + one.className + " " + right(one));
}"""
SERIOUS = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => one.id + ": " + one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | "));
}"""


def shoot(page: Any, name: str) -> None:
    """A picture of the whole page, for the docs: into the folder that PENSTOCK_SCREENSHOTS names."""
    if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def is_too_wide(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def findings(page: Any) -> list[str]:
    page.evaluate(AXE.read_text())
    return list(page.evaluate(SERIOUS))


def test_what_is_vendored_is_what_it_says() -> None:
    assert hashlib.sha256(AXE.read_bytes()).hexdigest() == AXE_DIGEST
    assert "Mozilla Public License" in (AXE.parent / "axe-LICENSE").read_text()


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_every_page_of_a_shop(
    width: int, scheme: str, queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(queues, logs)
    site, page = serve(queues, (topology(),)), open_page(width, scheme)
    dead = next(one for one in queues.queue("invoices.render").dead() if "vat" in (one.error or ""))
    wrong = {}
    for name, path in {**PAGES, **SHOP, "entry": f"/ui/queues/invoices.render/entries/{dead.id}"}.items():
        page.goto(site.url + path)
        serious = findings(page)
        if is_too_wide(page):
            serious.append("the page scrolls sideways")
        if serious:
            wrong[name] = serious
        shoot(page, f"{name}-{width}-{scheme}")
    assert wrong == {}


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_every_dialog_and_the_page_to_sign_in(
    width: int,
    scheme: str,
    queues: QueueStore,
    logs: LogStore,
    serve: Callable[..., Site],
    open_page: Any,
    tmp_path: Path,
) -> None:
    fill(queues, logs)
    breaker = Breaker(queues)
    breaker.configure(BreakerConfig.active())
    breaker.report("crm", "1", True)
    site, page = serve(queues), open_page(width, scheme)
    wrong = {}
    for path, links in DIALOGS.items():
        for link in links:
            page.goto(site.url + path)
            page.locator("main").get_by_role("link", name=link).first.click()
            page.locator("#dialog footer").wait_for()
            serious = findings(page)
            if is_too_wide(page):
                serious.append("the page scrolls sideways")
            if serious:
                wrong[path, link] = serious
            shoot(page, f"dialog-{link.rstrip('…').replace(' ', '-').lower()}-{width}-{scheme}")
    keys = tmp_path / "keys.json"
    new_key(keys, "ann", ("read",))
    closed = serve(queues, keys=keys)
    for what in ("sign-in", "sign-in-refused"):
        page.goto(f"{closed.url}/ui/login")
        if what == "sign-in-refused":
            page.get_by_label("API key").fill("psk_wrong")
            page.get_by_role("button", name="Sign in").click()
            page.get_by_text("is not known here").wait_for()
        if serious := findings(page):
            wrong[what, ""] = serious
        shoot(page, f"{what}-{width}-{scheme}")
    assert wrong == {}


def test_on_a_phone_what_was_chosen_comes_first(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(queues, logs)
    site, page = serve(queues), open_page(390)

    def top(place: str) -> float:
        return float(page.locator(place).first.bounding_box()["y"])

    page.goto(f"{site.url}/ui/logs/clicks")
    assert top("#rec") > top("#h-r"), "none is chosen"
    page.locator("section:has(#h-r) tbody a.id").nth(3).click()
    page.wait_for_url("**record=**")
    assert top("#rec") < min(top("#partitions"), top("#groups"), top("#h-r"))
    shoot(page, "log-chosen-390-light")
    for path in ("/", "/ui/queues/mails"):
        page.goto(site.url + path)
        assert top("nav[aria-label='Time range']") < top("#charts"), path


def test_every_page_of_an_empty_store(queues: QueueStore, serve: Callable[..., Site], open_page: Any) -> None:
    site, page = serve(queues), open_page(390)
    wrong = {}
    for name, path in PAGES.items():
        page.goto(site.url + path)
        serious = findings(page)
        if is_too_wide(page):
            serious.append("the page scrolls sideways")
        if serious:
            wrong[name] = serious
    assert wrong == {}
    page.goto(site.url)
    assert page.get_by_text("Nothing needs attention").is_visible()
    assert page.get_by_text("There is no queue yet.").is_visible()


def test_ten_thousand_queues(queues: QueueStore, serve: Callable[..., Site], open_page: Any) -> None:
    fill_many(queues)
    site, page = serve(queues), open_page()
    page.goto(site.url)
    assert page.get_by_text("10,000 queues").first.is_visible()
    assert page.locator("#queues tbody tr").count() == 12
    page.goto(f"{site.url}/ui/queues")
    assert page.locator("#queue-table tbody tr").count() == 50
    page.get_by_role("link", name="On", exact=True).click()
    page.get_by_text("51–100 of 10,000").wait_for()
    page.get_by_label("Name contains").fill("077")
    page.get_by_role("button", name="Filter").click()
    page.get_by_text("1–50 of").wait_for()
    page.locator("#find").fill("customer.07777")
    page.locator("#find").press("Enter")
    page.get_by_role("heading", name="customer.07777").wait_for()
    assert not is_too_wide(page)


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_of_ten_thousand_queues(
    width: int, queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill_many(queues)
    fill(queues, logs)
    site, page = serve(queues, (topology(),)), open_page(width)
    dead = queues.queue("invoices.render").dead()[0].id
    paths = {
        **PAGES, **SHOP, "entry": f"/ui/queues/invoices.render/entries/{dead}", "last": "/ui/queues?page=200",
        "sorted": "/ui/queues?sort=oldest", "one": "/ui/queues/customer.09999?tab=ready",
        "find": "/ui/find?q=customer.", "range": "/?range=43200", "lock": "/ui/do/lock?queue=customer.09999",
    }  # fmt: skip
    wrong: dict[str, object] = {}
    for name, path in paths.items():
        answer = page.goto(site.url + path)
        if answer.status != (404 if name == "gone" else 200) or is_too_wide(page) or not page.locator("h1").count():
            wrong[name] = answer.status
        if serious := findings(page):
            wrong[name] = serious
        assert page.locator("main tr").count() <= 210, f"{name} shows a page of them, not all"
    assert wrong == {}


def test_text_that_would_do_harm_stays_text(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill_nasty(queues, logs)
    site, page = serve(queues, (nasty_topology(),)), open_page(390)
    [dead] = queues.queue("nasty").dead()
    for path in (*PAGES.values(), *NASTY_PAGES, f"/ui/queues/nasty/entries/{dead.id}"):
        page.goto(site.url + path)
        assert page.evaluate("window.hacked") is None, path
        assert not is_too_wide(page), path


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_scrolls_sideways_however_long_the_names_are(
    width: int, queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill_long(queues, logs)
    flow = long_topology()
    site, page = serve(queues, (flow,)), open_page(width)
    dead = queues.queue(LONG).dead()[0].id
    tabs = [f"/ui/queues/{LONG}?tab={tab}" for tab in ("ready", "delayed", "retrying", "leased", "dead", "history")]
    label = f"/ui/queues/{LONG}?tab=ready&label=customer%3D{'z' * 84}"
    acts = [
        f"/ui/do/{act}" for act in (
            f"lock?queue={LONG}", f"unlock?queue={LONG}&holder={LONG}", f"replay?queue={LONG}", f"purge?queue={LONG}",
            f"cancel?queue={LONG}&label=customer%3D{'z' * 84}", f"put?queue={LONG}", f"schedule-pause?schedule={LONG}",
            f"circuit-close?circuit={'c' * 120}", f"group-reset?log={LONG}&group={LONG[:120]}",
            f"group-forget?log={LONG}&group={LONG[:120]}",
        )
    ]  # fmt: skip
    paths = [
        *PAGES.values(), *tabs, label, f"/ui/queues/{LONG}/entries/{dead}", f"/ui/logs/{LONG}",
        f"/ui/topologies/{flow.name}", "/ui/find?q=zzzz", f"/ui/queues/{LONG[:-1]}", *acts,
    ]  # fmt: skip
    wrong = []
    for number, path in enumerate(paths):
        answer = page.goto(site.url + path)
        assert answer.status in (200, 404), path
        shoot(page, f"long-{width}-{number:02d}")
        if is_too_wide(page):
            wrong.append((path[:40], page.evaluate(WIDEST)))
    assert wrong == [], wrong


@pytest.fixture
def shop(queues: QueueStore, logs: LogStore, serve: Callable[..., Site]) -> Site:
    fill(queues, logs)
    return serve(queues, (topology(),))


@pytest.mark.parametrize(("width", "scheme"), [(1120, "light"), (390, "dark")])
def test_pictures_of_the_docs(
    queues: QueueStore,
    logs: LogStore,
    serve: Callable[..., Site],
    open_page: Callable[..., Any],
    width: int,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What docs/images holds: made with PENSTOCK_SCREENSHOTS=docs/images."""
    fill(queues, logs)
    fill_past(queues)
    done = total(read_figures(queues, since_us=0))
    ended = {"done": done.done, "dead": done.dead, "cancelled": 2, "retried": done.failed - done.dead}
    counted = [EndedCount("mails", state, count) for state, count in ended.items()]  # type: ignore[arg-type]
    monkeypatch.setattr(type(queues.driver), "count_ended", lambda *_: counted)
    site, page = serve(queues, (topology(),)), open_page(width, scheme)
    dead = queues.queue("invoices.render").dead()[0].id
    paths = {"overview": "/", "dead": "/ui/dead", "entry": f"/ui/queues/invoices.render/entries/{dead}"}
    for name, path in paths.items() if width > 600 else [("phone", "/")]:
        page.goto(site.url + path)
        page.wait_for_load_state("load")
        assert page.locator("h1").is_visible()
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}.png")
    if width > 600:
        page.goto(site.url)
        assert "0 attempts succeeded" not in page.locator("#charts desc").first.inner_html()
