"""The pages of the dashboard as they are sent: what they show, who may see and do what, and what they never contain."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.contract.queue.shorthand import end, take
from tests.dashboard_scenes import NASTY, NASTY_PAGES, fill, fill_nasty, nasty_topology, topology

import penstock.service
from penstock import LogStore, QueueStore
from penstock.breaker.settings import BreakerConfig
from penstock.errors import StoreUnavailable
from penstock.queue.changes import recent_changes
from penstock.service.dashboard import frame, session, topologies
from penstock.service.dashboard.queue_actions import cancel_some
from penstock.service.keys import new_key, remove_key

STATIC = Path(penstock.service.__file__).parent / "static"
VENDORED = {
    "htmx-2.0.11.min.js": "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717",
    "htmx-ext-sse-2.2.4.min.js": "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136",
}
PAGES = (
    "/", "/ui/queues", "/ui/dead", "/ui/schedules", "/ui/bus", "/ui/logs", "/ui/topologies", "/ui/circuits",
    "/ui/workers", "/ui/report", "/ui/changes", "/ui/settings", "/ui/more", "/ui/find",
)  # fmt: skip
OF_THE_SHOP = (
    "/ui/queues/mails", "/ui/queues/invoices.render?tab=dead", "/ui/queues/mails?tab=delayed",
    "/ui/queues/mails?tab=ready", "/ui/queues/mails?tab=leased", "/ui/queues/mails?tab=retrying",
    "/ui/queues/mails?tab=history", "/ui/logs/clicks",
    "/ui/logs/clicks?key=user-3", "/ui/logs/clicks?offset=3&partition=1", "/ui/topologies/web",
    "/ui/find?q=customer=acme",
)  # fmt: skip


# Where the text that would do harm has to be seen, as text.
SHOWING = (
    "/ui/queues/nasty-results/entries/returned", "/ui/queues/nasty-progress/entries/at-work",
    "/ui/queues/nasty-chain/entries/waiting", "/ui/circuits", "/ui/changes", "/ui/topologies/web",
)  # fmt: skip


@pytest.fixture
def shop(queues: QueueStore, logs: LogStore, serving: Callable[..., TestClient]) -> TestClient:
    fill(queues, logs)
    return serving(topologies=(topology(),))


def token_of(client: TestClient, path: str = "/ui/do/lock?queue=mails") -> str:
    found = re.search(r'name="token" value="([^"]+)"', client.get(path).text)
    assert found is not None
    return found[1]


def do(client: TestClient, action: str, **form: Any) -> Any:
    data = {"token": token_of(client), "back": "/ui/queues", **form}
    return client.post(f"/ui/do/{action}", data=data, follow_redirects=False)


class TestPages:
    """Every page, on every kind of store."""

    @pytest.mark.parametrize("path", PAGES)
    def test_an_empty_store_says_so_in_words(self, client: TestClient, path: str) -> None:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "<h1" in answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"

    def test_a_shop_is_shown(self, shop: TestClient, queues: QueueStore) -> None:
        for path in (*PAGES, *OF_THE_SHOP):
            assert shop.get(path).status_code == 200, path
        overview = shop.get("/").text
        assert "invoices.render has 5 dead letters." in overview
        assert re.search(r"Done, last 5 min</div><div class=\"v\">[\d.,]+<small>/min</small>", overview)
        assert "FileNotFoundError: eu/vat-2027.html" in overview
        assert "web-1" in overview
        assert "digest" in overview
        entry = next(one for one in queues.queue("invoices.render").dead() if "vat" in (one.error or ""))
        page = shop.get(f"/ui/queues/invoices.render/entries/{entry.id}").text
        assert "4bf92f3577b34da6a3ce929d0e0e4736" in page
        assert "Traceback" in page
        assert "secret" not in page, "credentials in headers are not shown"

    def test_pages_need_nobody_else_and_have_nothing_inline(self, shop: TestClient) -> None:
        for path in (*PAGES, *OF_THE_SHOP, "/ui/nothing", "/ui/do/lock?queue=mails"):
            answer = shop.get(path)
            policy = answer.headers["content-security-policy"]
            assert "unsafe" not in policy
            assert policy.startswith("default-src 'none'")
            assert not re.search(r"<style|\sstyle=|<script(?! src=\"/ui/static/)|\son[a-z]+=", answer.text), path
            assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", answer.text), path

    def test_what_is_vendored_is_what_it_says(self) -> None:
        folder = STATIC / "vendor"
        for name, digest in VENDORED.items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
            assert "BSD" in (folder / f"{name.rpartition('-')[0]}-LICENSE").read_text().splitlines()[0]
        assert {path.name for path in folder.iterdir()} == {
            *VENDORED, *(f"{name.rpartition('-')[0]}-LICENSE" for name in VENDORED),
        }  # fmt: skip

    def test_static_files_are_those_there_are(self, client: TestClient) -> None:
        first = client.get("/ui/static/dashboard.js")
        assert (first.status_code, first.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        again = client.get("/ui/static/dashboard.js", headers={"if-none-match": first.headers["etag"]})
        assert again.status_code == 304
        for name in ("../app.py", "..%2fapp.py", "vendor", "vendor/htmx-LICENSE", "none.js"):
            assert client.get(f"/ui/static/{name}").status_code == 404

    def test_there_can_be_no_dashboard(self, serving: Callable[..., TestClient]) -> None:
        client = serving(dashboard=False)
        assert client.get("/").status_code == 404
        assert client.get("/ui/queues").status_code == 404

    def test_names_in_a_graph_stay_text(
        self, logs: LogStore, serving: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No log store takes such names: it is kept from looking at them."""
        monkeypatch.setattr(topologies, "progress_of", lambda *_: [])
        monkeypatch.setattr(topologies, "_positions", lambda *_: {})
        monkeypatch.setattr(type(logs), "exists", lambda *_: False)
        answer = serving(topologies=(nasty_topology(),)).get("/ui/topologies/web")
        assert answer.status_code == 200
        assert "&lt;script&gt;window.hacked=1" in answer.text
        assert "<script>window" not in answer.text
        assert "<img src=x" not in answer.text

    def test_text_stays_text(self, queues: QueueStore, logs: LogStore, serving: Callable[..., TestClient]) -> None:
        fill_nasty(queues, logs)
        client = serving(topologies=(nasty_topology(),))
        [dead] = queues.queue("nasty").dead()
        for path in (*PAGES, *NASTY_PAGES, f"/ui/queues/nasty/entries/{dead.id}"):
            answer = client.get(path)
            text = answer.text
            # A log store refuses such names; see the test above.
            assert answer.status_code == (400 if path == "/ui/topologies/web" else 200), path
            assert path not in SHOWING or "&lt;script&gt;window.hacked=1" in text, path
            assert "<script>window" not in text, path
            assert "<img src=x" not in text, path
            assert "49" not in re.findall(r"\{\{.*?\}\}", text), path
        for parameter in (
            "q",
            "label",
            "error",
            "prefix",
            "sort",
            "tab",
            "after",
            "key",
            "since",
            "target",
            "range",
            "circuit",
        ):
            for path in (
                "/ui/find",
                "/ui/dead",
                "/ui/queues",
                "/ui/queues/nasty",
                "/ui/logs/nasty",
                "/ui/changes",
                "/",
                "/ui/circuits",
            ):
                answer = client.get(path, params={parameter: NASTY})
                assert answer.status_code < 500, (path, parameter)
                assert "<script>window" not in answer.text, (path, parameter)

    def test_a_queue_that_is_gone_is_told_in_words(self, shop: TestClient) -> None:
        for path, way_on in (
            ("/ui/queues/nope", "/ui/queues"),
            ("/ui/logs/nope", "/ui/logs"),
            ("/ui/queues/mails/entries/nope", "/ui/queues"),
        ):
            answer = shop.get(path)
            assert answer.status_code == 404
            assert 'id="problem"' in answer.text
            assert f'href="{way_on}"' in answer.text

    def test_a_store_that_is_away_is_told_in_words(
        self, shop: TestClient, queues: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: object, **__: object) -> Any:
            raise StoreUnavailable("the store at 10.0.0.1 does not answer.")

        for name in ("counts", "now", "documents", "find", "dead"):
            monkeypatch.setattr(queues.driver, name, away)
        for path in ("/", "/ui/queues", "/ui/workers", "/ui/queues/mails"):
            answer = shop.get(path)
            assert answer.status_code == 503
            assert "does not answer" in answer.text
            assert "Try again in 5 seconds." in answer.text
            assert answer.headers["retry-after"] == "5"
            assert "10.0.0.1" not in answer.text

    @pytest.mark.parametrize("id_", ["order/4711", "a?b#c", " ", "a&b"])
    def test_an_entry_is_found_whatever_its_id(self, shop: TestClient, queues: QueueStore, id_: str) -> None:
        queues.queue("jobs").put({"n": 1}, id=id_)
        listed = shop.get("/ui/queues/jobs?tab=ready").text
        [link] = re.findall(r'href="(/ui/queues/jobs/entries/[^"]*)"', listed)
        page = shop.get(link)
        assert page.status_code == 200
        assert html.escape(id_) in page.text

    def test_an_attempt_shows_the_payload_it_saw(self, shop: TestClient, queues: QueueStore) -> None:
        queue = queues.queue("changing", str)
        id_ = queue.put("the first content").id
        with queues.unit() as unit:
            unit.take(queue)
            unit.rollback()
        page = f"/ui/queues/changing/entries/{id_}"
        assert "The payload it saw" not in shop.get(page).text
        queue.update(id_, "the second content")
        shown = shop.get(page).text
        assert shown.count("The payload it saw</summary>") == 1
        assert shown.count("the first content") == shown.count("the second content") == 1

    def test_a_percent_sign_in_an_id_is_one_in_its_address(self) -> None:
        assert frame.entry_address("jobs", "100%25") == "/ui/queues/jobs/entries/100%2525"


class TestActions:
    """Everything that can be done: planned with counts, done, recorded."""

    def test_lock_and_unlock(self, shop: TestClient, queues: QueueStore) -> None:
        plan = shop.get("/ui/do/lock?queue=mails").text
        assert "Lock mails?" in plan
        assert "Entries that will wait" in plan
        assert queues.locks("mails") == [], "a look changes nothing"
        answer = do(shop, "lock", queue="mails", why="the server moves")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queues")
        [lock] = queues.locks("mails")
        assert (lock.holder, lock.reason) == ("dashboard", "the server moves")
        assert "mails is locked." in shop.get("/ui/queues").text
        do(shop, "unlock", queue="mails", holder="dashboard")
        assert queues.locks("mails") == []
        unlocked, locked = recent_changes(queues)[:2]
        assert (locked.by, locked.did, locked.target, locked.before, locked.why) == (
            "anybody", "lock", "mails", "not locked", "the server moves",
        )  # fmt: skip
        assert (unlocked.did, unlocked.after) == ("unlock", "not locked")

    def test_replay_by_error_label_and_id(self, shop: TestClient, queues: QueueStore) -> None:
        invoices = queues.queue("invoices.render")
        assert invoices.counts().dead == 5
        plan = shop.get("/ui/do/replay", params={"queue": "invoices.render", "error": "rejected"}).text
        assert "Replay 1 dead letter?" in plan
        do(shop, "replay", queue="invoices.render", error="rejected", why="it was paid")
        assert (invoices.counts().dead, invoices.counts().ready) == (4, 1)
        do(shop, "replay", label="customer=acme", queue="invoices.render")
        assert invoices.counts().dead == 2
        ids = [entry.id for entry in invoices.dead()]
        do(shop, "replay", id=ids, queue="invoices.render")
        assert invoices.counts().dead == 0
        again = do(shop, "replay", id=ids, queue="invoices.render")
        assert again.status_code == 200
        assert "No matching dead letter is left" in again.text

    def test_purge_wants_the_name_typed(self, shop: TestClient, queues: QueueStore) -> None:
        answer = do(shop, "purge", queue="invoices.render", sure="invoices")
        assert answer.status_code == 200
        assert "is not" in answer.text
        assert queues.queue("invoices.render").counts().dead == 5
        assert do(shop, "purge", queue="invoices.render", error="rejected", sure="invoices.render").status_code == 303
        assert queues.queue("invoices.render").counts().dead == 4

    @pytest.mark.parametrize(("name", "sure"), [("purge", "invoices.render"), ("replay", "")])
    def test_only_the_dead_letters_that_were_shown_are_touched(
        self, shop: TestClient, queues: QueueStore, name: str, sure: str
    ) -> None:
        """What dies between the look and the click is for the next look."""
        invoices = queues.queue("invoices.render")
        plan = shop.get(f"/ui/do/{name}", params={"queue": "invoices.render"}).text
        assert "5 dead letters" in plan
        [until] = re.findall(r'name="until" value="(\d+)"', plan)
        put = invoices.put({"number": 99})
        [entry] = take(queues, "invoices.render", limit=1)
        end(queues, entry, "dead", error="too late")
        assert invoices.counts().dead == 6
        assert do(shop, name, queue="invoices.render", sure=sure, until=until).status_code == 303
        assert [entry.id for entry in invoices.dead()] == [put.id]

    def test_only_the_entries_that_were_shown_are_cancelled(self, shop: TestClient, queues: QueueStore) -> None:
        mails, where = queues.queue("mails"), {"queue": "mails", "label": "customer=bob"}
        plan = shop.get("/ui/do/cancel", params=where).text
        assert "Cancel 5 waiting entries?" in plan
        [until] = re.findall(r'name="until" value="(\d+)"', plan)
        late = mails.put({"to": "late"}, labels={"customer": "bob"}).id
        [taken] = take(queues, "mails", limit=1)
        assert taken.labels == {"customer": "bob"}, "a worker was faster with it"
        assert do(shop, "cancel", **where, until=until).status_code == 303
        assert [entry.id for entry in mails.find(labels={"customer": "bob"}, state="waiting")] == [late]
        assert "4 entries waiting" in recent_changes(queues)[0].before

    def test_entries_that_a_worker_takes_meanwhile_do_not_save_the_others(self, queues: QueueStore) -> None:
        jobs = queues.queue("jobs")
        ids = [jobs.put(number).id for number in range(5)]
        take(queues, "jobs", limit=2)
        assert cancel_some(jobs, ids) == 3
        assert (jobs.counts().ready, jobs.counts().leased) == (0, 2)

    def test_a_group_is_reset_to_where_it_was_shown_to_go(self, shop: TestClient, logs: LogStore) -> None:
        where = {"log": "clicks", "group": "billing", "sure": "billing"}
        before = logs.lag("clicks", "billing").lag
        assert "which time is not said" in do(shop, "group-reset", **where, to="time", value="", again="1").text
        other = do(shop, "group-reset", **where, to="start", value="", shown="end")
        assert "the preview was for another place" in other.text
        assert logs.lag("clicks", "billing").lag == before
        assert do(shop, "group-reset", **where, to="start", value="", shown="start").status_code == 303
        assert logs.lag("clicks", "billing").lag == 60

    def test_cancel_and_run_now(self, shop: TestClient, queues: QueueStore) -> None:
        mails = queues.queue("mails")
        later = [entry for entry in mails.find() if entry.due_us > queues.now()]
        assert do(shop, "now", queue="mails", id=later[0].id).status_code == 303
        assert mails.counts().delayed == 1
        assert do(shop, "cancel", queue="mails", id=later[1].id).status_code == 303
        assert mails.counts().delayed == 0
        assert do(shop, "cancel", queue="mails", label="customer=bob").status_code == 303
        assert mails.counts().live == 0
        assert "Which entries is not said" in shop.get("/ui/do/cancel?queue=mails").text

    def test_put(self, shop: TestClient, queues: QueueStore) -> None:
        assert do(shop, "put", queue="fresh", value='{"a": 1}', delay="1h", new_label="k=v").status_code == 303
        [entry] = queues.queue("fresh").find()
        assert (entry.value, entry.labels) == ({"a": 1}, {"k": "v"})
        wrong = do(shop, "put", queue="fresh", value="{", delay="")
        assert wrong.status_code == 200
        assert "is not JSON" in wrong.text

    def test_schedules(self, shop: TestClient, queues: QueueStore) -> None:
        form = {
            "name": "nightly",
            "queue": "mails",
            "cron": "0 3 * * *",
            "value": '{"a": 1}',
            "zone": "UTC",
            "catch_up": "one",
        }
        assert do(shop, "schedule-add", **form).status_code == 303
        assert "there is a schedule" in do(shop, "schedule-add", **form).text
        assert "is wrong" in do(shop, "schedule-add", **{**form, "name": "other", "cron": "x"}).text
        do(shop, "schedule-pause", schedule="nightly")
        assert next(one for one in queues.schedules() if one.name == "nightly").is_paused
        ready = queues.queue("mails").counts().ready
        do(shop, "schedule-run", schedule="nightly")
        assert queues.queue("mails").counts().ready == ready + 1
        do(shop, "schedule-resume", schedule="nightly")
        assert not next(one for one in queues.schedules() if one.name == "nightly").is_paused
        do(shop, "schedule-remove", schedule="nightly", sure="nightly")
        assert [one.name for one in queues.schedules()] == ["digest"]
        assert [one.did for one in recent_changes(queues)][:1] == ["removal of schedule"]

    def test_groups(self, shop: TestClient, logs: LogStore) -> None:
        plan = shop.get("/ui/do/group-reset", params={"log": "clicks", "group": "billing", "to": "start"}).text
        assert "60 records will be read again" in plan
        again = do(shop, "group-reset", log="clicks", group="billing", to="end", again="1")
        assert "0 records will be read again, 0 skipped." in again.text
        assert do(shop, "group-reset", log="clicks", group="billing", to="start", sure="nobody").status_code == 200
        assert logs.lag("clicks", "billing").lag == 0
        assert do(shop, "group-reset", log="clicks", group="billing", to="start", sure="billing").status_code == 303
        assert logs.lag("clicks", "billing").lag == 60
        assert do(shop, "group-forget", log="clicks", group="billing", sure="billing").status_code == 303
        assert logs.groups("clicks") == []

    def test_circuits(self, shop: TestClient) -> None:
        breaker: Any = shop.app.state.breaker  # type: ignore[attr-defined]
        breaker.configure(BreakerConfig(circuit_check_enabled=True, statistics_update_enabled=True))
        breaker.report("crm", "1", True)
        assert "Open circuit crm?" in shop.get("/ui/do/circuit-open?circuit=crm").text
        do(shop, "circuit-open", circuit="crm", why="maintenance")
        assert breaker.circuit("crm").state == "open"
        assert "Circuit crm is open." in shop.get("/").text
        assert "maintenance" in shop.get("/ui/circuits").text
        do(shop, "circuit-close", circuit="crm")
        assert breaker.circuit("crm").state == "closed"

    def test_a_form_of_another_page_does_nothing(self, shop: TestClient, queues: QueueStore) -> None:
        for token in ("", "wrong"):
            answer = shop.post("/ui/do/lock", data={"queue": "mails", "token": token})
            assert answer.status_code == 403
            assert "did not come from one of our pages" in answer.text
        assert shop.post("/ui/do/lock", data={"queue": "mails"}).status_code == 403
        assert shop.post("/ui/do/lock", json={"queue": "mails", "token": token_of(shop)}).status_code == 415
        assert queues.locks("mails") == []

    @pytest.mark.parametrize("query", ["id=x&" * 3001, "queue=%ff", "queue=%ed%a0%80"])
    def test_a_look_that_cannot_be_read_is_refused_in_words(self, shop: TestClient, query: str) -> None:
        answer = shop.get(f"/ui/do/replay?{query}")
        assert answer.status_code == 400
        assert "cannot be read" in answer.text

    def test_a_script_is_told_where_to_go_and_the_sentence_waits(self, shop: TestClient) -> None:
        form = {"token": token_of(shop), "queue": "mails", "back": "/ui/queues/mails"}
        answer = shop.post("/ui/do/lock", data=form, headers={"hx-request": "true"}, follow_redirects=False)
        assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/ui/queues/mails")
        assert "mails is locked." in shop.get("/ui/queues/mails").text
        assert "mails is locked." not in shop.get("/ui/queues/mails").text, "it is said once"

    def test_the_way_back_leads_to_our_pages_only(self, shop: TestClient) -> None:
        for back in ("https://evil.example", "//evil.example", "/\\evil.example", "/v1/queues", "/ui/queues\nx"):
            answer = do(shop, "put", queue="q", value="1", back=back)
            assert answer.headers["location"] == "/", back


class TestWithKeys:
    """Sign in, scopes, prefixes."""

    @pytest.fixture
    def keys(self, tmp_path: Path) -> Path:
        return tmp_path / "keys.json"

    @pytest.fixture
    def closed(
        self, queues: QueueStore, logs: LogStore, keys: Path, serving: Callable[..., TestClient]
    ) -> Callable[..., TestClient]:
        fill(queues, logs)

        def signed_in(*scopes: str, prefix: str = "") -> TestClient:
            secret = new_key(keys, "ann", scopes, prefix=prefix)
            client = serving(keys=keys)
            answer = client.post("/ui/login?next=/ui/queues", data={"key": secret}, follow_redirects=False)
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queues")
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert secret.lower() not in cookie
            return client

        return signed_in

    def test_nothing_is_shown_to_strangers(self, keys: Path, serving: Callable[..., TestClient]) -> None:
        new_key(keys, "ann", ("admin",))
        client = serving(keys=keys)
        for path in (*PAGES, "/ui/do/lock?queue=mails"):
            answer = client.get(path, follow_redirects=False)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/ui/login?next=")
        assert client.get("/ui/events", headers={"accept": "text/event-stream"}).status_code == 401
        part = client.get("/", headers={"hx-request": "true"})
        assert (part.status_code, "Your session has ended." in part.text) == (401, True)
        assert client.post("/ui/do/lock", data={"queue": "mails"}).status_code == 401
        wrong = client.post("/ui/login", data={"key": "psk_wrong"})
        assert (wrong.status_code, "is not known" in wrong.text) == (401, True)
        from_elsewhere = client.post("/ui/login", data={"key": "x"}, headers={"sec-fetch-site": "cross-site"})
        assert from_elsewhere.status_code == 403
        assert client.get("/ui/static/penstock.css").status_code == 200

    def test_an_administrator_may_do_all(self, closed: Callable[..., TestClient], queues: QueueStore) -> None:
        client = closed("admin")
        assert "ann" in client.get("/").text
        assert do(client, "lock", queue="mails").status_code == 303
        assert recent_changes(queues)[0].by == "ann"
        assert client.get("/ui/settings").status_code == 200

    def test_a_reader_sees_actions_that_it_may_not_do(
        self, closed: Callable[..., TestClient], queues: QueueStore
    ) -> None:
        client = closed("read")
        text = client.get("/ui/queues/invoices.render?tab=dead").text
        assert "needs the scope admin" in text
        assert 'href="/ui/do/' not in text
        assert client.get("/ui/do/lock?queue=mails").status_code == 403
        assert client.get("/ui/settings").status_code == 403
        answer = client.post("/ui/do/lock", data={"queue": "mails"})
        assert answer.status_code == 403
        assert queues.locks("mails") == []

    def test_a_key_without_read_is_not_let_in(self, keys: Path, serving: Callable[..., TestClient]) -> None:
        secret = new_key(keys, "puts", ("produce",))
        answer = serving(keys=keys).post("/ui/login", data={"key": secret})
        assert (answer.status_code, "lacks the scope read" in answer.text) == (403, True)

    def test_a_prefix_hides_the_rest(self, closed: Callable[..., TestClient], queues: QueueStore) -> None:
        client = closed("admin", prefix="mail")
        for path in (
            "/",
            "/ui/queues",
            "/ui/dead",
            "/ui/schedules",
            "/ui/workers",
            "/ui/report",
            "/ui/bus",
            "/ui/logs",
            "/ui/changes",
        ):
            text = client.get(path).text
            for hidden in ("invoices", "stopped", "customer.", "clicks", "bus.audit"):
                assert hidden not in text, (path, hidden)
        assert client.get("/ui/queues/invoices.render").status_code == 404
        assert client.get("/ui/topologies").status_code == 403
        assert client.get("/ui/settings").status_code == 403
        assert client.get("/ui/find?q=customer=acme").text.count("/entries/") == 0
        form = {"queue": "stopped", "holder": "operator", "token": token_of(client)}
        assert client.post("/ui/do/unlock", data=form).status_code == 404
        assert len(queues.locks("stopped")) == 1
        [dead] = queues.queue("invoices.render").dead(limit=1)
        client.post("/ui/do/replay", data={"id": dead.id, "token": token_of(client)})
        assert queues.queue("invoices.render").counts().dead == 5

    def test_a_session_ends(
        self, closed: Callable[..., TestClient], keys: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = closed("read")
        assert client.get("/", follow_redirects=False).status_code == 200
        form = {"token": token_of(client, "/ui/more")}
        assert client.post("/ui/logout", data={"token": "wrong"}, follow_redirects=False).status_code == 403
        assert client.post("/ui/logout", data=form, follow_redirects=False).headers["location"] == "/ui/login"
        assert client.get("/", follow_redirects=False).status_code == 303

    def test_a_session_runs_out_and_ends_with_its_key(
        self, keys: Path, serving: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = new_key(keys, "ann", ("read",))
        client = serving(keys=keys)
        with monkeypatch.context() as earlier:
            earlier.setattr(session, "LIFETIME", -1)
            client.cookies.set("penstock-session", client.app.state.dashboard.sessions.sign_in(secret)[0])  # type: ignore[attr-defined]
        assert client.get("/", follow_redirects=False).status_code == 303
        client.post("/ui/login", data={"key": secret})
        assert client.get("/", follow_redirects=False).status_code == 200
        remove_key(keys, "ann")
        assert client.get("/", follow_redirects=False).status_code == 303

    def test_the_policy_is_the_one_of_the_frame(self) -> None:
        assert "unsafe-inline" not in frame.POLICY
