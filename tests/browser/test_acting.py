"""What people do on the pages: by mouse and by keyboard alone, on a file and on a server; and what goes wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Site
from tests.dashboard_scenes import fill
from tests.store_urls import STORES, Servers
from tests.stores.wire_proxy import Proxy

from penstock import Breaker, LogStore, QueueStore, Worker, open_queues
from penstock.breaker.settings import BreakerConfig
from penstock.clock import SECOND
from penstock.ids import new_id
from penstock.queue.changes import recent_changes
from penstock.queue.protocol import ClaimRequest, Source
from penstock.service.keys import new_key, remove_key

pytestmark = pytest.mark.timeout(600)


AT_REPLAY = (
    "document.activeElement.matches('a') && document.activeElement.textContent.includes('Replay all that match')"
)


def confirm(page: Any, button: str) -> None:
    """Do it, and wait for the page that says that it was done."""
    with page.expect_navigation():
        page.locator("#dialog").get_by_role("button", name=button).click()
    page.locator("#toast").wait_for()


def follow(page: Any, link: Any) -> None:
    """Click, and wait until the next page is loaded: one that only shows itself does not know its dialogs yet."""
    with page.expect_navigation():
        link.click()


def test_why_it_failed_and_back_with_it(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    """From the first page: find out why entries failed, and replay those with that error."""
    fill(either, logs)
    site, page = serve(either), open_page()
    page.goto(site.url)
    follow(page, page.get_by_role("link", name="Look at dead letters").first)
    follow(page, page.get_by_role("link", name="× FileNotFoundError"))
    page.get_by_text("The address of this page holds the filter").wait_for()
    follow(page, page.locator("#entries tbody a.id").first)
    page.get_by_text("Traceback").first.wait_for()
    assert "eu/vat-2027.html" in page.locator("details[open] pre").first.inner_text()
    page.go_back()
    page.get_by_role("link", name="Replay all that match…").click()
    page.locator("#dialog").get_by_text("Replay 4 dead letters?").wait_for()
    page.get_by_label("Why").fill("the template is back")
    confirm(page, "Replay 4 dead letters")
    assert "4 entries are ready again." in page.locator("#toast").inner_text()
    counts = either.queue("invoices.render").counts()
    assert (counts.dead, counts.ready) == (1, 4)
    page.goto(f"{site.url}/ui/changes")
    assert page.get_by_text("the template is back").is_visible()


def test_queues_and_entries_by_hand(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(either, logs)
    site, page = serve(either), open_page()
    mails = either.queue("mails")
    page.goto(f"{site.url}/ui/queues/mails?tab=ready")
    page.get_by_role("link", name="Lock…").click()
    page.get_by_label("Reason").fill("the server moves")
    confirm(page, "Lock the queue")
    assert [lock.reason for lock in mails.locks()] == ["the server moves"]
    page.get_by_role("link", name="Unlock…").click()
    confirm(page, "Unlock the queue")
    assert mails.locks() == []
    for box in page.locator("tbody input[type=checkbox]").all()[:2]:
        box.check()
    page.locator(".bulk").get_by_role("button", name="Cancel…").click()
    confirm(page, "Cancel 2 entries")
    assert mails.counts().ready == 1
    page.get_by_role("link", name="Put an entry…").click()
    page.get_by_label("Value, as JSON").fill("{not json")
    page.locator("#dialog").get_by_role("button", name="Put the entry").click()
    page.locator("#dialog").get_by_text("is not JSON").wait_for()
    page.get_by_label("Value, as JSON").fill('{"to": "zoe"}')
    confirm(page, "Put the entry")
    assert mails.counts().ready == 2
    page.goto(f"{site.url}/ui/queues/mails?tab=delayed")
    follow(page, page.locator("#entries tbody a.id").first)
    page.get_by_role("link", name="Run now…").click()
    confirm(page, "Make it due now")
    assert mails.counts().delayed == 1
    page.goto(f"{site.url}/ui/queues/invoices.render?tab=dead")
    page.get_by_role("link", name="Remove all that match…").click()
    page.get_by_label("Type invoices.render to continue").fill("invoices.render")
    confirm(page, "Remove 5 dead letters")
    assert either.queue("invoices.render").counts().dead == 0
    assert [change.did for change in recent_changes(either)] == [
        "purge of dead letters", "rescheduling", "put", "cancelling", "unlock", "lock",
    ]  # fmt: skip


def test_waiting_entries_are_cancelled_by_label(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(either, logs)
    site, page = serve(either), open_page()
    mails = either.queue("mails")
    page.goto(f"{site.url}/ui/queues/mails?tab=ready&label=customer%3Dbob")
    page.get_by_role("link", name="Cancel all that match…").click()
    page.locator("#dialog").get_by_text("Cancel 5 waiting entries?").wait_for()
    late = mails.put({"to": "late"}, labels={"customer": "bob"})
    confirm(page, "Cancel 5 entries")
    assert [entry.id for entry in mails.find()] == [late.id], "which was not shown"
    assert recent_changes(either)[0].did == "cancelling"


def test_one_entry_is_replayed_cancelled_and_removed_on_its_page(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(either, logs)
    site, page = serve(either), open_page()
    invoices = either.queue("invoices.render")
    first, second = [entry.id for entry in invoices.dead()][:2]
    page.goto(f"{site.url}/ui/queues/invoices.render/entries/{first}")
    page.get_by_role("link", name="Replay…").click()
    confirm(page, "Replay 1 dead letter")
    assert invoices.get(first).generation == 2
    page.get_by_role("link", name="Cancel…").click()
    confirm(page, "Cancel 1 entry")
    assert invoices.history(first)[-1].state == "cancelled"
    page.goto(f"{site.url}/ui/queues/invoices.render/entries/{second}")
    page.get_by_role("link", name="Remove…").click()
    page.get_by_label("Type invoices.render to continue").fill("invoices.render")
    confirm(page, "Remove 1 dead letter")
    assert second not in [entry.id for entry in invoices.dead()]
    assert [change.did for change in recent_changes(either)] == ["purge of dead letters", "cancelling", "replay"]


def test_schedules_by_hand(either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any) -> None:
    fill(either, logs)
    site, page = serve(either), open_page()
    page.goto(f"{site.url}/ui/schedules")
    page.get_by_role("link", name="Add a schedule…").click()
    for label, text in (("Name", "nightly"), ("Queue", "mails"), ("Cron line", "0 3 * * *"), ("Value, as JSON", "1")):
        page.locator("#dialog").get_by_label(label, exact=True).fill(text)
    confirm(page, "Add the schedule")
    row = page.locator("#schedule-table tr", has_text="nightly")

    def nightly() -> Any:
        return next(one for one in either.schedules() if one.name == "nightly")

    row.get_by_role("link", name="Pause…").click()
    confirm(page, "Pause the schedule")
    assert nightly().is_paused
    row.get_by_role("link", name="Resume…").click()
    page.locator("#dialog").get_by_text("continues at its next time from now").wait_for()
    confirm(page, "Resume the schedule")
    assert not nightly().is_paused
    page.locator("#toast").get_by_role("link", name="Undo…").click()
    confirm(page, "Pause the schedule")
    assert nightly().is_paused
    ready = either.queue("mails").counts().ready
    row.get_by_role("link", name="Run now…").click()
    confirm(page, "Put one entry now")
    assert either.queue("mails").counts().ready == ready + 1
    row.get_by_role("link", name="Remove…").click()
    page.get_by_label("Type nightly to continue").fill("nightl")
    page.locator("#dialog").get_by_role("button", name="Remove the schedule").click()
    page.locator("#dialog").get_by_text("the name that was typed is not 'nightly'").wait_for()
    assert nightly(), "which a slip does not remove"
    page.get_by_label("Type nightly to continue").fill("nightly")
    confirm(page, "Remove the schedule")
    assert [one.name for one in either.schedules()] == ["digest"]
    assert row.count() == 0
    assert [change.did for change in recent_changes(either)] == [
        "removal of schedule", "running of schedule", "pausing of schedule", "resuming of schedule",
        "pausing of schedule", "adding of schedule",
    ]  # fmt: skip


def test_circuits_are_opened_and_closed_by_hand(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(either, logs)
    breaker = Breaker(either)
    breaker.configure(BreakerConfig.active())
    breaker.report("crm", "1", True)
    site, page = serve(either), open_page()
    page.goto(f"{site.url}/ui/circuits")
    row = page.locator("#circuit-table tr", has_text="crm")
    row.get_by_role("link", name="Open…").click()
    page.locator("#dialog").get_by_text("kept back at once, without spending attempts").wait_for()
    page.get_by_label("Why").fill("maintenance until ten")
    confirm(page, "Open the circuit")
    assert breaker.circuit("crm").state == "open"
    page.goto(site.url)
    assert page.get_by_text("Circuit crm is open.").is_visible()
    follow(page, page.get_by_role("link", name="Look at the circuit"))
    follow(page, row.get_by_role("link", name="crm"))
    assert page.locator("#circuit-one").get_by_text("maintenance until ten").is_visible()
    row.get_by_role("link", name="Close…").click()
    confirm(page, "Close the circuit")
    assert breaker.circuit("crm").state == "closed"
    changes = recent_changes(either)
    assert [(one.did, one.before, one.after) for one in changes] == [
        ("closing of circuit", "open", "closed"), ("opening of circuit", "closed", "open"),
    ]  # fmt: skip
    assert changes[1].why == "maintenance until ten"


def test_groups_of_logs_are_reset_and_forgotten_by_hand(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(either, logs)
    site, page = serve(either), open_page()
    page.goto(f"{site.url}/ui/logs/clicks")
    page.locator("#groups").get_by_role("link", name="Reset…").click()
    page.locator("#dialog").get_by_text("60 records will be read again").wait_for()
    page.get_by_label("Type billing to continue").fill("billing")
    confirm(page, "Reset 2 offsets")
    assert logs.lag("clicks", "billing").lag == 60
    page.locator("#groups").get_by_role("link", name="Forget…").click()
    page.locator("#dialog").get_by_text("Its offsets are removed").wait_for()
    page.get_by_label("Type billing to continue").fill("billing")
    confirm(page, "Forget the group")
    assert logs.groups("clicks") == []
    assert page.locator("#groups").get_by_role("link", name="Forget…").count() == 0
    assert [change.did for change in recent_changes(either)] == ["forgetting of group", "reset of group"]


def test_by_keyboard_alone(queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any) -> None:
    fill(queues, logs)
    site, page = serve(queues), open_page()
    page.goto(site.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("g")
    with page.expect_navigation():  # until it is loaded: a page that only shows itself does not know its keys yet
        page.keyboard.press("q")
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("invoices.render")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.get_by_role("heading", name="invoices.render", level=1).wait_for()
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(AT_REPLAY):
            break
    page.keyboard.press("Enter")
    page.locator("#dialog").get_by_text("Replay 5 dead letters?").wait_for()
    page.keyboard.press("Escape")
    page.locator("#dialog").wait_for(state="hidden")
    assert page.evaluate(AT_REPLAY), "focus returns"
    page.keyboard.press("Enter")
    page.locator("#dialog").get_by_text("Replay 5 dead letters?").wait_for()
    page.keyboard.type("by keyboard")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    page.locator("#toast").wait_for()
    assert queues.queue("invoices.render").counts().dead == 0
    assert recent_changes(queues)[0].why == "by keyboard"


def press_until_at(page: Any, text: str, key: str = "Tab") -> None:
    """Go on by keyboard until what has this text has the focus."""
    for _ in range(120):
        if text in (page.evaluate("document.activeElement.textContent") or "").strip()[: len(text)]:
            return
        page.keyboard.press(key)
    raise AssertionError(f"{text} is not reached by keyboard")


def press_and_go(page: Any, key: str = "Enter") -> None:
    with page.expect_navigation():
        page.keyboard.press(key)
    page.locator("#toast").wait_for()


def test_more_by_keyboard_alone(queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any) -> None:
    fill(queues, logs)
    site, page = serve(queues), open_page()
    mails = queues.queue("mails")
    page.goto(f"{site.url}/ui/queues/mails?tab=ready")
    press_until_at(page, "Lock…")
    page.keyboard.press("Enter")
    page.locator("#dialog").get_by_label("Reason").wait_for()
    page.keyboard.type("the server moves")
    press_and_go(page)
    assert [lock.reason for lock in mails.locks()] == ["the server moves"]
    press_until_at(page, "Unlock…")
    page.keyboard.press("Enter")
    page.locator("#dialog").get_by_role("button", name="Unlock the queue").wait_for()
    press_until_at(page, "Unlock the queue")
    press_and_go(page)
    assert mails.locks() == []
    press_until_at(page, "Put an entry…")
    page.keyboard.press("Enter")
    page.locator("#dialog").get_by_label("Value, as JSON").wait_for()
    page.keyboard.type('{"to": "zoe"}')
    press_until_at(page, "Put the entry")
    press_and_go(page)
    assert mails.counts().ready == 4
    page.goto(f"{site.url}/ui/schedules")
    press_until_at(page, "Pause…")
    page.keyboard.press("Enter")
    page.locator("#dialog").get_by_role("button", name="Pause the schedule").wait_for()
    press_until_at(page, "Pause the schedule")
    press_and_go(page)
    assert queues.schedules()[0].is_paused
    page.goto(f"{site.url}/ui/queues/invoices.render?tab=dead")
    press_until_at(page, "Remove all that match…")
    page.keyboard.press("Enter")
    page.get_by_label("Type invoices.render to continue").wait_for()
    for _ in range(12):
        if page.evaluate("document.activeElement.name") == "sure":
            break
        page.keyboard.press("Tab")
    page.keyboard.type("invoices.render")
    press_and_go(page)
    assert queues.queue("invoices.render").counts().dead == 0


@pytest.mark.usefixtures("quick_ticks")
def test_open_pages_stay_fresh_and_say_when_the_service_is_away(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(queues, logs)
    site, page = serve(queues), open_page()
    page.goto(f"{site.url}/ui/queues/mails?tab=ready")
    before = int(page.locator("#queue-figures .v").first.inner_text())
    queues.queue("mails").put("more")
    page.locator("#queue-figures .v", has_text=re.compile(f"^{before + 1}$")).first.wait_for()
    site.close()
    page.get_by_text("Reconnecting, last at").wait_for()


@pytest.mark.usefixtures("quick_ticks")
def test_what_the_page_says_of_the_connection_fits_beside_the_space_on_a_phone(
    tmp_path: Path, serve: Callable[..., Site], open_page: Any
) -> None:
    with open_queues(f"sqlite:///{tmp_path}/q.db?durability=fast&space={'s' * 40}") as store:
        site, page = serve(store), open_page(390)
        page.goto(site.url)
        page.get_by_text("Live", exact=True).wait_for()
        site.close()
        page.get_by_text("Reconnecting, last at").wait_for()
        boxes = [box.bounding_box() for box in page.locator(".place b, #live-state, header.top > button:visible").all()]
        assert all(left["x"] + left["width"] <= right["x"] for left, right in pairwise(boxes)), boxes
        assert boxes[-1]["x"] + boxes[-1]["width"] <= 390


@pytest.mark.usefixtures("quick_ticks")
def test_an_open_page_says_that_its_store_is_away_and_goes_on_when_it_is_back(
    servers: Servers, logs: LogStore, serve: Callable[..., Site], open_page: Any, tmp_path: Path
) -> None:
    server = servers("postgres")
    wire = Proxy(server.port)
    url = STORES["postgres"](tmp_path, servers).url.replace(f":{server.port}", f":{wire.port}")
    with closing(wire), open_queues(url) as store:
        fill(store, logs)
        site, page = serve(store), open_page()
        page.goto(f"{site.url}/ui/queues/mails?tab=ready")
        ready = page.locator("#queue-figures .v").first
        before = ready.inner_text()
        wire.down = True
        wire.cut_all()
        notices = page.locator("#notices")
        notices.get_by_text("it continues by itself when the store is back").wait_for()
        assert notices.get_by_role("link", name="Try again").is_visible()
        assert ready.inner_text() == before, "what was there stays"
        opened = open_page()
        opened.goto(f"{site.url}/ui/queues")
        opened.get_by_role("heading", name="The store does not answer").wait_for()
        wire.down = False
        page.locator("#notices #problem").wait_for(state="detached")
        store.queue("mails").put("more")
        page.locator("#queue-figures .v", has_text=re.compile(f"^{int(before) + 1}$")).first.wait_for()
        follow(opened, opened.get_by_role("link", name="Try again"))
        opened.get_by_role("heading", name="Queues", level=1).wait_for()
        site.close()


@pytest.mark.usefixtures("quick_ticks")
def test_an_open_page_says_that_its_queue_or_log_was_deleted(
    either: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(either, logs)
    site, page, other = serve(either), open_page(), open_page()
    page.goto(f"{site.url}/ui/queues/mails?tab=history")
    other.goto(f"{site.url}/ui/logs/clicks")
    mails = either.queue("mails")
    for entry in mails.find():
        mails.cancel(entry.id)
    either.remove_schedule("digest")
    assert mails.history(), "which stays"
    mails.delete()
    page.locator("#notices").get_by_text("queue 'mails' was deleted.").wait_for()
    page.get_by_text("Gone").wait_for()
    onward = page.locator("#notices").get_by_role("link", name="All queues")
    onward.focus()
    with page.expect_response(page.url):  # the page asks again, and is told the same
        pass
    with page.expect_response(page.url):
        pass
    assert onward.evaluate("link => link === document.activeElement"), "the notice stays as it is"
    follow(page, page.locator("#notices").get_by_role("link", name="All queues"))
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    assert page.locator("#queue-table").get_by_role("link", name="mails", exact=True).count() == 0
    logs.delete("clicks")
    other.locator("#notices").get_by_text("there is no log 'clicks'").wait_for()
    follow(other, other.locator("#notices").get_by_role("link", name="All logs"))
    other.get_by_role("heading", name="Logs", level=1).wait_for()


@pytest.mark.usefixtures("quick_ticks")
def test_workers_are_shown_with_what_they_have_in_hand_and_for_how_long(
    either: QueueStore, serve: Callable[..., Site], open_page: Any
) -> None:
    gate = threading.Event()
    mails, jobs = either.queue("mails"), either.queue("jobs")
    mails.add_handler(lambda _: gate.wait(300) and None)
    held, other = mails.put({"to": "ann"}).id, jobs.put(1).id
    worker = Worker(either)
    worker.start()
    try:
        site, page = serve(either), open_page()
        page.goto(f"{site.url}/ui/workers")
        table, others = page.locator("#worker-table"), page.locator("#other-hands")
        cell = table.locator("td", has=page.get_by_role("link", name=held[-8:]))
        cell.wait_for()
        assert re.search(r"of mails, for \d", cell.inner_text())
        assert others.inner_text() == ""
        either.driver.claim(ClaimRequest(new_id(), (Source("jobs", 1),), 1, "web-7/ann/http", "web-7", 3600 * SECOND))
        others.get_by_text("web-7/ann/http").wait_for()
        assert others.get_by_role("link", name=other[-8:]).is_visible()
        gate.set()
        table.get_by_role("link", name=held[-8:]).wait_for(state="detached")
    finally:
        gate.set()
        worker.stop()


@pytest.mark.usefixtures("quick_ticks")
def test_signing_in_and_a_session_that_ends(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any, tmp_path: Path
) -> None:
    fill(queues, logs)
    keys = tmp_path / "keys.json"
    secret = new_key(keys, "ann", ("read",))
    site, page = serve(queues, keys=keys), open_page(390)
    page.goto(f"{site.url}/ui/queues/mails?tab=history")
    page.get_by_label("API key").fill("psk_wrong")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("is not known here").wait_for()
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="mails", level=1).wait_for()
    assert "tab=history" in page.url, "back to where it was asked for"
    assert page.get_by_role("button", name="Lock…").is_disabled()
    page.context.clear_cookies()
    page.locator("#notices").get_by_text("Your session has ended.").wait_for()
    page.locator("#notices").get_by_role("link", name="Sign in").click()
    page.get_by_label("API key").wait_for()


@pytest.mark.usefixtures("quick_ticks")
def test_an_open_page_goes_on_after_the_service_was_restarted_until_its_key_is_removed(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any, tmp_path: Path
) -> None:
    fill(queues, logs)
    keys = tmp_path / "keys.json"
    secret = new_key(keys, "ann", ("read",))
    site, page = serve(queues, keys=keys), open_page()
    page.goto(f"{site.url}/ui/queues/mails")
    page.get_by_label("API key").fill(secret)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", name="mails", level=1).wait_for()
    site.close()
    page.get_by_text("Reconnecting, last at").wait_for()
    serve(queues, keys=keys, port=site.port)
    before = int(page.locator("#queue-figures .v").first.inner_text())
    queues.queue("mails").put("more")
    page.locator("#queue-figures .v", has_text=re.compile(f"^{before + 1}$")).first.wait_for()
    remove_key(keys, "ann")
    page.locator("#notices").get_by_text("Your session has ended.").wait_for()
    page.get_by_text("Signed out").wait_for()
    page.locator("#notices").get_by_role("link", name="Sign in").click()
    page.get_by_label("API key").wait_for()


@pytest.mark.usefixtures("quick_ticks")
def test_a_page_that_may_not_be_live_says_why_and_when_it_tries_again(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(queues, logs)
    site, first, second = serve(queues, streams_per_key=1), open_page(), open_page()
    first.goto(f"{site.url}/ui/queues/mails")
    first.get_by_text("Live", exact=True).wait_for()
    with first.expect_response(f"{site.url}/ui/queues/mails"):  # asked for by a tick, so its stream is open
        pass
    second.goto(f"{site.url}/ui/queues/mails")
    second.get_by_text("Not live").wait_for()
    second.locator("#notices").get_by_text("Try again in 1 second.").wait_for()
    first.close()
    second.locator("#notices #problem").wait_for(state="detached")
    second.get_by_text("Live", exact=True).wait_for()


@pytest.mark.usefixtures("quick_ticks")
def test_more_tabs_than_a_browser_has_connections(
    queues: QueueStore, logs: LogStore, serve: Callable[..., Site], open_page: Any
) -> None:
    fill(queues, logs)
    site, first = serve(queues), open_page()
    tabs = [first, *(first.context.new_page() for _ in range(8))]
    for tab in tabs:
        tab.goto(f"{site.url}/ui/queues/mails")
        see(tab, hidden=True)
    before = int(first.locator("#queue-figures .v").first.inner_text())
    queues.queue("mails").put("more")
    for tab in tabs:
        see(tab, hidden=False)
        tab.locator("#queue-figures .v", has_text=re.compile(f"^{before + 1}$")).first.wait_for()
        see(tab, hidden=True)


def see(tab: Any, *, hidden: bool) -> None:
    """Have a tab believe that somebody looks at it, or nobody: a headless browser shows all its tabs."""
    tab.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )
