"""Odd text in every parameter and field of the pages: answered in words, on every store, and soon."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.dashboard_scenes import fill, topology
from tests.service.test_dashboard import token_of
from tests.service.test_odd_values import KINDS
from tests.store_urls import STORES

from penstock import Breaker, open_logs, open_queues
from penstock.breaker.settings import BreakerConfig
from penstock.service import ServiceSettings, create_app
from penstock.service.dashboard.actions import ACTIONS

ODD = (
    "", " ", "-1", "9" * 18, "9" * 400, "²", "\0", "a\0b", "\ufffd", "%", "%00", "..", "a" * 3000, "=", "a=", "=a",
    "a=b=c", "customer=\0", "💥=💥", "\\", "'", '"', "{{7*7}}", "null", "[" * 3000, "0001-01-01T00:00+14:00",
    "9999-12-31T23:59:59-14:00", "2026-W01-1", "T", "1_000", "1e9", "nan", "\r\nX: y", "\u202e", "* * * * *", "1e400h",
    "999999999999d", "-1s", "../UTC", "a/b",
)  # fmt: skip
PAGES = (
    "/", "/ui/queues", "/ui/queues/invoices.render", "/ui/dead", "/ui/logs/clicks", "/ui/topologies/web",
    "/ui/circuits", "/ui/report", "/ui/changes", "/ui/find",
)  # fmt: skip
OF_PAGES = (
    "range", "page", "sort", "prefix", "only", "tab", "label", "error", "after", "key", "since", "offset", "partition",
    "record", "node", "circuit", "target", "q",
)  # fmt: skip
GOOD = {
    "queue": "mails", "schedule": "digest", "circuit": "crm", "log": "clicks", "group": "billing", "to": "start",
    "name": "another", "cron": "* * * * *", "value": "1", "zone": "UTC", "catch_up": "one", "holder": "operator",
}  # fmt: skip
FIELDS = (
    *GOOD, "id", "label", "error", "until", "delay", "new_label", "unique", "shown", "sure", "why", "again", "back",
)  # fmt: skip
SOON = 10.0  # seconds on a busy machine; what grows without a bound takes far longer


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, tmp_path: Path, servers: Any) -> Iterator[TestClient]:
    url = STORES[request.param](tmp_path, servers).url
    with open_queues(url) as queues, open_logs(f"file://{tmp_path}/logs?durability=fast") as logs:
        fill(queues, logs)
        breaker = Breaker(queues)
        breaker.configure(BreakerConfig.active())
        breaker.report("crm", "1", True)
        app = create_app(ServiceSettings(queues=url), queues, logs, (topology(),))
        with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False, follow_redirects=False) as client:
            yield client


def test_no_page_breaks(shop: TestClient) -> None:
    chance = random.Random(11)
    for page in PAGES:
        for name in OF_PAGES:
            for odd in chance.sample(ODD, 3):
                _check(f"{page} {name}={odd!r}"[:200], lambda: shop.get(page, params={name: odd}))  # noqa: B023
    for odd in ODD[1:]:
        for pattern in ("/ui/queues/%s", "/ui/queues/mails/entries/%s", "/ui/logs/%s", "/ui/topologies/%s", "/ui/%s"):
            path = shop.build_request("GET", "/", params={"": odd}).url.query.decode().partition("=")[2]
            _check(f"{pattern} {odd!r}"[:200], lambda: shop.get(pattern % path[:4000]))  # noqa: B023


def test_no_action_breaks(shop: TestClient) -> None:
    chance, token = random.Random(12), token_of(shop)
    for name in ACTIONS:
        for field in FIELDS:
            for odd in chance.sample(ODD, 2) if field != "id" else ODD:
                form = {**GOOD, field: odd}
                if chance.random() < 0.5:
                    form["queue"] = "invoices.render"
                _check(f"{name} {field}={odd!r}"[:200], lambda: _ask(shop, name, form, token))  # noqa: B023


def _ask(shop: TestClient, name: str, form: dict[str, str], token: str) -> Any:
    """Look, and do it."""
    answer = shop.get(f"/ui/do/{name}", params=form)
    return answer if answer.status_code >= 500 else shop.post(f"/ui/do/{name}", data={**form, "token": token})


def _check(what: str, ask: Any) -> None:
    begin = time.perf_counter()
    answer = ask()
    assert answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[-300:]}"
    assert time.perf_counter() - begin < SOON, what
