"""The dashboard: short ids and unique ids, undo, charts of days, rates of topologies."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.contract.queue.shorthand import end, take
from tests.dashboard_scenes import Ordered, fill, topology
from tests.service.test_dashboard import do

from penstock import Breaker, Bus, LogStore, QueueStore, Worker, open_queues
from penstock.breaker.settings import BreakerConfig
from penstock.clock import SECOND
from penstock.queue.changes import Change, record_change
from penstock.queue.protocol import DocumentWrite, Finding
from penstock.queue.worker.figures import HOURS_PREFIX, MINUTE, Figures, Tally, read_figures, read_hours
from penstock.queue.worker.presence import WorkerRecord
from penstock.service.access import Shares
from penstock.service.dashboard.overview import RANGES, rate_charts
from penstock.service.dashboard.rates import Rates
from penstock.service.dashboard.reading import Cached, Looked
from penstock.testing import FakeClock


@pytest.fixture
def shop(queues: QueueStore, logs: LogStore, serving: Callable[..., TestClient]) -> TestClient:
    fill(queues, logs)
    return serving(topologies=(topology(),))


# --- finding -----------------------------------------------------------------------------------------


def test_an_entry_is_found_by_a_part_of_its_id_and_by_its_unique_id(shop: TestClient, queues: QueueStore) -> None:
    put = queues.queue("mails").put({"to": "x"}, id="order-0042-zz", unique="basket-9")
    page = f"/ui/queues/mails/entries/{put.id}"
    for text in ("order-0042-zz", "order-004", "0042-zz", "…0042-zz", "basket-9"):
        answer = shop.get("/ui/find", params={"q": text}, follow_redirects=False)
        assert (answer.status_code, answer.headers.get("location")) == (303, page), text
    several = shop.get("/ui/find", params={"q": queues.queue("mails").find()[0].id[:8]}).text
    assert several.count("/entries/") > 1


def test_a_short_id_has_no_mark_where_nothing_was_cut(shop: TestClient, queues: QueueStore) -> None:
    queues.queue("short").put(1, id="a-1")
    queues.queue("long").put(1, id="0123456789abcdef")
    assert "…a-1" not in shop.get("/ui/queues/short").text
    assert ">a-1<" in shop.get("/ui/queues/short").text
    assert "…89abcdef" in shop.get("/ui/queues/long").text


@pytest.mark.parametrize("place", ["²", "-1", "9" * 30, str(2**63), f"{2**63}.1", f"1.{2**63}", "٣", "9" * 5000])
def test_a_place_that_no_page_has_is_the_first_one(shop: TestClient, place: str) -> None:
    for path in ("/ui/queues/mails", "/ui/queues/mails?tab=dead", "/ui/queues/mails?tab=history", "/ui/dead"):
        addressed = f"{path}{'&' if '?' in path else '?'}after={place}"
        assert shop.get(addressed).status_code == shop.get(path).status_code, addressed
    assert shop.get("/ui/queues", params={"page": place}).status_code == 200


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/letters.db"])
@pytest.mark.parametrize("path", ["/ui/queues/q?tab=dead", "/ui/queues/q?tab=history", "/ui/dead", "/ui/dead?error=no"])
def test_all_pages_together_have_every_letter_whenever_it_was_put(
    serving_store: Callable[[QueueStore], TestClient], tmp_path: Path, url: str, path: str
) -> None:
    with open_queues(url.format(folder=tmp_path), clock=FakeClock()) as store:
        for number in range(120):
            store.queue("q").put(number, id=f"letter-{number:03d}")
        taken = take(store, "q", limit=120)
        for entry in reversed(taken):  # the last one put dies first
            end(store, entry, "dead", error="no such address")
            store.clock.advance("1s")  # type: ignore[attr-defined]
        client = serving_store(store)
        seen: list[str] = []
        page = path
        while page:
            text = client.get(page).text
            seen += re.findall(r'href="/ui/queues/q/entries/(letter-\d+)"', text)
            onward = re.search(r'href="([^"]*[?&;]after=[^"]*)"', text)
            page = "" if onward is None else html.unescape(onward[1])
        assert list(dict.fromkeys(seen)) == [f"letter-{number:03d}" for number in range(120)]


# --- addresses that there are not ---------------------------------------------------------------------


@pytest.fixture
def crowd(queues: QueueStore, logs: LogStore, serving: Callable[..., TestClient]) -> TestClient:
    """More of everything than fits on a page."""
    mails, bus, breaker = queues.queue("mails"), Bus(queues), Breaker(queues, BreakerConfig.active())
    for number in range(120):
        mails.schedule(f"thing-{number:03}", 1, every="1h")
        bus.subscribe(f"thing-{number:03}", Ordered)
        breaker.report(f"thing-{number:03}", "1", True)
        record_change(queues, Change("ann", "lock", f"thing-{number:03}", "", "", ""))
        record = WorkerRecord(f"thing-{number:03}/1-a", f"thing-{number:03}", 1, "0", queues.now(), False, ())
        queues.driver.write([DocumentWrite(f"penstock.worker.{number}", msgspec.json.encode(record))])
        logs.create(f"thing-{number:03}")
    minute = queues.now() // MINUTE
    tallies = [Tally(minute, f"thing-{number:03}", False, 1, durations=[]) for number in range(120)]
    queues.driver.write([DocumentWrite(f"penstock.figures.a.{minute // 10}", msgspec.json.encode(tallies))])
    return serving()


@pytest.mark.parametrize(
    "path",
    ["/ui/schedules", "/ui/bus", "/ui/logs", "/ui/circuits", "/ui/workers", "/ui/changes", "/ui/report?range=60"],
)
def test_long_lists_are_shown_a_page_at_a_time(crowd: TestClient, path: str) -> None:
    """An open page is sent whole every few seconds: a thousand rows of it are for nobody."""
    seen: list[set[str]] = []
    following: str | None = path
    while following is not None:
        text = crowd.get(following).text
        rows = re.findall(r"<tr role=.row.*?</tr>", text.partition("<tbody")[2], re.S)
        seen.append({name for row in rows for name in re.findall(r"thing-\d{3}", row)})
        on = re.search(r'href="([^"]*)">On</a>', text)
        following = html.unescape(on[1]) if on else None
    assert [len(names) for names in seen] == [50, 50, 20]
    assert len(set.union(*seen)) == 120


@pytest.mark.parametrize("tab", ["nothing", "fifo", "locks", "queue", "__class__", "live", ""])
def test_an_unknown_tab_is_the_one_that_tells_most(shop: TestClient, tab: str) -> None:
    answer = shop.get("/ui/queues/invoices.render", params={"tab": tab})
    assert answer.status_code == 200
    assert re.search(r'tab=dead" aria-current="true"', answer.text)


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/nothing", "/ui/nothing", "/v2/queues", "/uix"])
def test_a_browser_gets_a_page_where_there_is_none(client: TestClient, path: str) -> None:
    answer = client.get(path, headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "Not found" in answer.text
    assert 'href="/"' in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_program_gets_a_problem_where_there_is_nothing(client: TestClient) -> None:
    for accept in ("*/*", "application/json", ""):
        answer = client.get("/nothing", headers={"accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_without_a_dashboard_a_browser_gets_a_problem_too(serving: Callable[..., TestClient]) -> None:
    answer = serving(dashboard=False).get("/nothing", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("path", ["/ui/queues", "/v1/queues"])
def test_an_unexpected_error_is_a_page_in_a_browser(
    client: TestClient, queues: QueueStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(type(queues.driver), "counts", broken)
    monkeypatch.setattr(type(queues.driver), "page", broken)
    answer = client.get(path, headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
    assert "the log of the service says what" in answer.text
    assert "secret of the house" not in answer.text
    assert client.get(path).headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("path", ["/ui", "/ui/"])
def test_ui_alone_leads_to_the_first_page(client: TestClient, path: str) -> None:
    answer = client.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


# --- undo --------------------------------------------------------------------------------------------


def undo_of(client: TestClient, page: str = "/ui/queues") -> str | None:
    text = client.get(page).text
    before, link, _ = text.partition('" data-do>Undo…</a>')
    return before.rpartition('href="')[2].replace("&amp;", "&") if link else None


@pytest.mark.parametrize(
    ("action", "form", "inverse"),
    [
        ("lock", {"queue": "mails", "why": "moving"}, "/ui/do/unlock?queue=mails&holder=dashboard"),
        ("unlock", {"queue": "stopped", "holder": "operator"}, "/ui/do/lock?queue=stopped&why=the+bucket+moves"),
        ("schedule-pause", {"schedule": "digest"}, "/ui/do/schedule-resume?schedule=digest"),
    ],
)
def test_what_has_an_inverse_can_be_taken_back(
    shop: TestClient, action: str, form: dict[str, str], inverse: str
) -> None:
    assert do(shop, action, **form).status_code == 303
    undo = undo_of(shop)
    assert undo is not None
    assert undo.startswith(inverse)
    assert undo_of(shop) is None, "it is offered once"
    assert shop.get(undo).status_code == 200


def test_undo_of_a_pause_resumes(shop: TestClient, queues: QueueStore) -> None:
    do(shop, "schedule-pause", schedule="digest")
    assert queues.schedules()[0].is_paused
    do(shop, "schedule-resume", schedule="digest")
    assert not queues.schedules()[0].is_paused
    assert "/ui/do/schedule-pause?schedule=digest" in (undo_of(shop) or "")


def test_undo_leads_nowhere_but_to_actions(shop: TestClient) -> None:
    shop.cookies.set("penstock-said", "hello")
    shop.cookies.set("penstock-undo", "https://example.org/")
    assert "example.org" not in shop.get("/ui/queues").text


def test_what_has_no_inverse_offers_none(shop: TestClient) -> None:
    do(shop, "replay", queue="invoices.render", error="rejected")
    assert undo_of(shop) is None


# --- charts ------------------------------------------------------------------------------------------


def test_figures_are_added_up_by_the_hour_and_kept_for_30_days() -> None:
    clock = FakeClock()
    with open_queues("memory://hours", clock=clock) as store:
        queue = store.queue("mails")
        queue.add_handler(lambda _: None)
        worker = Worker(store)
        done = 0
        for _ in range(30):  # half an hour at a time
            queue.put_many(range(3))
            worker.drain()
            worker.write_figures()
            clock.advance("30m")
            done += 3
        hours = read_hours(store, since_us=store.now() - 24 * 60 * MINUTE)
        assert sum(tally.done for tally in hours) == done == sum(
            tally.done for tally in read_figures(store, since_us=store.now() - 24 * 60 * MINUTE)
        )  # fmt: skip
        assert all(tally.minute % 60 == 0 for tally in hours)
        assert max(tally.done for tally in hours) == 6
        assert len(store.driver.documents(HOURS_PREFIX)) <= 4


def test_a_worker_forgets_what_is_written() -> None:
    figures = Figures("w")

    class Handler:
        class queue:
            name, is_family = "mails", False

    class Context:
        handler, seconds = Handler, 0.01

    class Done:
        outcome = "done"

    for minute in range(0, 600, 5):
        figures.count([(Done, Context)], minute * MINUTE)  # type: ignore[list-item]
        _, blocks = figures.notes()
        figures.written(blocks)
    assert len(figures._blocks) <= 6, "no more than the running hour"
    assert len(figures._hours) <= 6


@pytest.mark.parametrize("minutes", [length for _, length in RANGES])
def test_every_range_has_a_page_and_counts_what_is_in_it(shop: TestClient, queues: QueueStore, minutes: int) -> None:
    for path in ("/", "/ui/queues/mails", "/ui/report"):
        answer = shop.get(path, params={"range": minutes})
        assert answer.status_code == 200
    hour = read_hours(queues, since_us=0)
    assert sum(tally.done for tally in hour) == 27
    if minutes > 1440:
        charts = rate_charts(hour, minutes, queues.now())
        assert charts["range_total"].done == 27
        assert f"last {minutes // 1440} days" in charts["done_chart"].label


def test_a_running_minute_or_hour_is_no_drop_at_the_end_of_a_chart() -> None:
    hour_begins = 29_000_040 * MINUTE  # 29,000,040 minutes are whole hours
    for into_minute in (3, 30):
        now = hour_begins + 20 * MINUTE + into_minute * SECOND
        running = now // MINUTE
        tallies = [Tally(minute, "q", False, 60, 6, 0, 6.0, [0, 60]) for minute in range(running - 70, running)]
        tallies.append(Tally(running, "q", False, 1, 1, 0, 0.1, [0, 1]))
        if into_minute < 10:  # what other workers did in the minute before is not written yet
            tallies[-2] = Tally(running - 1, "q", False, 9, 1, 0, 0.9, [0, 9])
        charts = rate_charts(tallies, 60, now)
        [line] = charts["done_chart"].lines
        assert {point.split()[1] for point in line.path[1:].split("L")} == {"0.0"}, "60 of 60 all the time"
        assert {bar.height for bar in charts["failed_chart"].bars} == {charts["failed_chart"].plot}
        assert charts["range_total"].done >= 59 * 60 + 10, "the totals are up to now"
    begun = hour_begins // MINUTE
    hours = [Tally(begun - 60 * ago, "q", False, 3600, 0, 0, 6.0, [0, 3600]) for ago in range(24 * 7 + 5)]
    hours[0] = Tally(begun, "q", False, 1200, 0, 0, 2.0, [0, 1200])
    charts = rate_charts(hours, 7 * 1440, hour_begins + 20 * MINUTE)
    [line] = charts["done_chart"].lines
    assert {point.split()[1] for point in line.path[1:].split("L")} == {"0.0"}


def test_lengths_of_time_are_in_words(queues: QueueStore, logs: LogStore, shop: TestClient) -> None:
    assert "kept for 4 d<" in shop.get("/ui/logs/clicks").text
    queues.queue("slow", rate="5/90s").put(1)
    assert "5 per 1 m 30 s" in shop.get("/ui/queues/slow").text


def test_a_page_says_in_words_when_to_try_again(shop: TestClient) -> None:
    state: Any = shop.app.state  # type: ignore[attr-defined]
    state.streams_by_key = Shares(0, "live pages")
    answer = shop.get("/ui/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert "has 0 live pages open already." in html.unescape(answer.text)
    assert "Try again in 1 second." in answer.text


# --- topologies --------------------------------------------------------------------------------------


def test_rates_are_what_came_between_two_looks() -> None:
    now = [100.0]
    rates = Rates(lambda: now[0])
    assert rates.per_second("web", {"a": 10}) == {}
    now[0] += 10
    assert rates.per_second("web", {"a": 30, "new": 5}) == {"a": 2.0}
    now[0] += 100
    assert rates.per_second("web", {"a": 30, "new": 5}) == {"a": 0.0, "new": 0.0}, "of the last minute only"
    now[0] += 1
    assert rates.per_second("web", {"a": 0}) == {"a": 0.0}, "a log that was created again has no negative rate"


def test_a_topology_shows_how_fast_it_reads(shop: TestClient, logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    reading: Any = shop.app.state.dashboard.reading  # type: ignore[attr-defined]
    monkeypatch.setattr(reading, "rates", Rates(lambda: now[0]))
    assert "– per s" in shop.get("/ui/topologies/web").text
    with logs.appender("clicks") as out:
        for number in range(50):
            out.append(number)
    with logs.tailer("clicks", group="count") as tail:
        tail.read(timeout="5s")
        tail.commit()
    now[0] += 10
    text = shop.get("/ui/topologies/web").text
    assert "5 per s" in text
    assert "Reads per s" in text


# --- readings that take long ----------------------------------------------------------------------------


def test_a_page_waits_for_no_slow_reading_while_an_older_one_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, reads = threading.Event(), []

    def read() -> int:
        reads.append(1)
        if len(reads) > 1:
            go_on.wait(30)
        return len(reads)

    now = [1000.0]
    monkeypatch.setattr("penstock.service.dashboard.reading.time.monotonic", lambda: now[0])
    cached = Cached(read)
    assert cached.get() == 1
    now[0] += 60
    assert cached.get() == 1, "the new reading takes long: the old one is shown"
    go_on.set()
    while cached.get() != 2:
        pass
    now[0] += 3600
    assert cached.get() == 3, "one that is too old is not shown"
    cached.forget()
    assert cached.get() == 4, "nor one from before a change by hand"


def test_a_reading_that_just_came_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reads = [1000.0], []
    monkeypatch.setattr("penstock.service.dashboard.reading.time.monotonic", lambda: now[0])

    def read() -> int:
        reads.append(1)
        return len(reads)

    cached = Cached(read)

    class Beaten:
        """A lock that is free only after another page's reading has come."""

        def __init__(self) -> None:
            self.inner = threading.Lock()

        def acquire(self, blocking: bool = True) -> bool:
            cached._value = (7, now[0])
            return self.inner.acquire(blocking)

        def release(self) -> None:
            self.inner.release()

    assert cached.get() == 1
    now[0] += 10
    cached._lock = Beaten()  # type: ignore[assignment]
    assert cached.get() == 7
    assert len(reads) == 1


def test_doctor_holds_no_page_up(shop: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    reading: Any = shop.app.state.dashboard.reading  # type: ignore[attr-defined]
    monkeypatch.setattr(
        reading, "_findings", Looked(lambda: [go_on.wait(30), Finding("good", "clock", "it ticks")][1:])
    )
    assert "being looked over" in shop.get("/ui/settings").text
    go_on.set()
    while "it ticks" not in shop.get("/ui/settings").text:
        pass


# --- what the figures say ----------------------------------------------------------------------------


def text_of(page: str, id_: str) -> str:
    """The words of a part of a page."""
    part = page.partition(f'id="{id_}"')[2].partition("</section>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())


def test_totals_come_from_the_history_and_have_what_no_worker_did(
    shop: TestClient, queues: QueueStore, serving_store: Callable[..., TestClient]
) -> None:
    mails = queues.queue("mails")
    [first] = shop.post("/v1/queues/mails/claims", json={"limit": 1}).json()["items"]
    outcome = {"id": first["id"], "token": first["token"], "outcome": "done"}
    shop.post("/v1/queues/mails/outcomes", json={"outcomes": [outcome]})
    with queues.unit() as unit:
        unit.take(mails, limit=1)
        unit.commit()
    mails.cancel(mails.find(state="waiting")[0].id)
    client = serving_store(queues)
    for path, done, dead in (("/ui/queues/mails", 22, 0), ("/", 29, 5), ("/?range=1440", 29, 5)):
        said = text_of(counted(client, path), "ended")
        assert f"{done} done, {dead} dead, 1 cancelled, 0 expired" in said, (path, said)
        assert "what ended over HTTP, in units of work and by hand" in said
    assert "counted for up to 24 h" in text_of(counted(client, "/?range=10080"), "ended")


def counted(client: TestClient, path: str) -> str:
    """A page whose history has been counted, which happens in the background."""
    pause = threading.Event()
    for _ in range(400):
        text: str = client.get(path).text
        if "The history is being counted" not in text:
            return text
        pause.wait(0.05)
    raise AssertionError("the history was not counted in time")


def test_a_store_without_full_history_says_that_it_does_not_count(
    queues: QueueStore, serving_store: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(queues.driver), "count_ended", lambda *_: None)
    assert "Too much has ended within 1 hour" in counted(serving_store(queues), "/")


def test_the_worst_comes_first(queues: QueueStore, logs: LogStore, serving: Callable[..., TestClient]) -> None:
    fill(queues, logs)
    queues.queue("mails").put(1)
    text = serving().get("/").text
    levels = re.findall(r'<li class="(bad|warn)">', text.partition('id="attention"')[2].partition("</section>")[0])
    assert set(levels) == {"bad", "warn"}
    assert levels == sorted(levels)


def test_busy_slots_are_the_same_number_everywhere(shop: TestClient) -> None:
    text = shop.get("/").text
    assert "4 of 12 slots busy" in text_of(text, "figures")
    assert "4 of 12 slots busy" in text_of(text, "workers")
    assert "4/12" in text_of(text, "workers")
