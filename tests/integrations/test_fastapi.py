"""FastAPI and Starlette: lifespan, dependency, operations under a prefix, and errors as answers."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.integrations import fastapi_shop, fastapi_sqlalchemy
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from tests.store_urls import Place

import penstock
from penstock.errors import BadInput, CannotOpen, NotOpen
from penstock.integrations.fastapi import Operations, answer_errors, lifespan
from penstock.service import Keys, new_key

ADMIN = {"x-admin": "change me"}
ADDRESS = re.compile(r'(?:href|src|action|formaction|hx-get|sse-connect)="(/[^"]*)"')


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/shop.db")
    with TestClient(fastapi_shop.app, "http://shop.example") as client:
        yield client


def test_an_order_is_handled_in_the_applications_own_loop(shop: TestClient, eventually: Callable[..., None]) -> None:
    fastapi_shop.sent.clear()
    answer = shop.post("/orders", json={"to": "ann@example.org"})
    assert answer.status_code == 202
    assert answer.json()["id"]
    eventually(lambda: fastapi_shop.sent == ["ann@example.org"])


def test_the_worker_of_the_lifespan_runs_sync_handlers_too(eventually: Callable[..., None]) -> None:
    queues = penstock.Queues()
    mails = queues.queue("mails", str)
    sent: list[str] = []
    mails.add_handler(sent.append)
    with TestClient(FastAPI(lifespan=lifespan(queues, "memory://", worker=True))):
        mails.put("dear ann")
        eventually(lambda: sent == ["dear ann"])


def test_operations_ask_the_applications_own_dependencies(shop: TestClient) -> None:
    assert shop.get("/ops/v1/queues").status_code == 403
    assert shop.get("/ops/").status_code == 403
    shop.post("/orders", json={"to": "ann"})
    queues = shop.get("/ops/v1/queues", headers=ADMIN).json()
    assert [one["queue"] for one in queues["items"]] == ["mails"]


def test_the_openapi_names_the_prefix(shop: TestClient) -> None:
    schema = shop.get("/ops/openapi.json", headers=ADMIN).json()
    assert schema["servers"] == [{"url": "/ops"}]
    assert "/v1/queues" in schema["paths"]


@pytest.mark.parametrize("page", ["/", "/ui/queues", "/ui/queues/mails", "/ui/dead", "/ui/settings", "/ui/no-such"])
def test_every_address_on_a_page_is_below_the_prefix(shop: TestClient, page: str) -> None:
    shop.post("/orders", json={"to": "ann"})
    answer = shop.get(f"/ops{page}", headers=ADMIN)
    assert "text/html" in answer.headers["content-type"]
    addresses = ADDRESS.findall(answer.text)
    assert len(addresses) > 10
    assert [address for address in addresses if not address.startswith("/ops/")] == []
    for script in (address for address in addresses if "/static/" in address):
        assert shop.get(script, headers=ADMIN).status_code == 200


def test_an_action_of_the_dashboard_leads_back_below_the_prefix(shop: TestClient) -> None:
    shop.post("/orders", json={"to": "ann"})
    plan = shop.get("/ops/ui/do/lock?queue=mails&back=/ui/queues/mails", headers=ADMIN)
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', plan.text))
    answer = shop.post(
        "/ops/ui/do/lock",
        data=fields,
        headers={**ADMIN, "origin": "http://shop.example"},
        follow_redirects=False,
    )
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/ops/ui/")
    assert len(fastapi_shop.mails.locks()) == 1


def test_a_page_from_elsewhere_may_not_act(shop: TestClient) -> None:
    answer = shop.post(
        "/ops/v1/queues/mails/entries", json={"value": 1}, headers={**ADMIN, "origin": "http://elsewhere.example"}
    )
    assert answer.status_code == 403


def test_api_keys_let_in_as_well(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secret = new_key(file, "ann", ("read",))
    assert Keys(file).find(secret) is not None
    queues = penstock.Queues()
    app = Starlette(lifespan=lifespan(queues, "memory://"))
    app.mount("/ops", Operations(keys=file))
    with TestClient(app, "http://shop.example") as client:
        assert client.get("/ops/v1/queues").status_code == 401
        assert client.get("/ops/v1/queues", headers={"authorization": f"Bearer {secret}"}).status_code == 200
        page = client.get("/ops/ui/queues", follow_redirects=False)
        assert page.headers["location"].startswith("/ops/ui/login?next=%2Fui%2Fqueues")


def test_operations_that_let_everybody_in_are_refused() -> None:
    with pytest.raises(BadInput, match=r"every client.*dependencies"):
        Operations()


def test_operations_without_the_lifespan_say_what_is_missing() -> None:
    app = FastAPI()
    app.mount("/ops", Operations(dependencies=[Depends(lambda: None)]))
    with TestClient(app) as client, pytest.raises(NotOpen, match=r"lifespan=penstock\.integrations\.fastapi"):
        client.get("/ops/v1/queues")


@pytest.mark.parametrize("below", ["application", "routes"])
def test_operations_below_another_mount_run_too(below: str) -> None:
    operations = Operations(dependencies=[Depends(lambda: None)])
    inner: Any = FastAPI() if below == "application" else None
    if inner:
        inner.mount("/ops", operations)
    app = FastAPI(lifespan=lifespan(penstock.Queues(), "memory://"))
    app.routes.append(Mount("/admin", inner) if inner else Mount("/admin", routes=[Mount("/ops", operations)]))
    with TestClient(app) as client:
        assert client.get("/admin/ops/v1/queues").json()["items"] == []
        assert 'href="/admin/ops/ui/' in client.get("/admin/ops/").text


def test_options_of_a_worker_that_is_not_started_are_refused() -> None:
    with pytest.raises(BadInput, match="lease"):
        lifespan(penstock.Queues(), "memory://", lease="5s")


def test_a_lifespan_of_ones_own_runs_between_store_and_worker() -> None:
    from contextlib import asynccontextmanager

    steps: list[str] = []
    queues = penstock.Queues()

    @asynccontextmanager
    async def mine(app: Any) -> Any:
        steps.append(f"open: {queues.is_open}")
        yield {"shop": "mine"}
        steps.append(f"open: {queues.is_open}")

    app = FastAPI(lifespan=lifespan(queues, "memory://", worker=True, inside=mine))
    with TestClient(app) as client:
        assert client.app_state == {"shop": "mine"}
    assert steps == ["open: True", "open: True"]
    assert not queues.is_open


def test_a_store_that_is_down_ends_the_start_with_a_typed_error(free_port: int) -> None:
    app = FastAPI(
        lifespan=lifespan(penstock.Queues(), f"postgresql://shop@127.0.0.1:{free_port}/shop?timeout=1")
    )  # importing a module with this line connects to nothing
    with pytest.raises((penstock.errors.StoreUnavailable, CannotOpen)), TestClient(app):
        pass


def test_what_penstock_refuses_is_a_problem_of_the_fitting_status() -> None:
    queues = penstock.Queues()
    numbers = queues.queue("numbers", int)
    app = FastAPI(lifespan=lifespan(queues, "memory://"))
    answer_errors(app)

    @app.get("/cancel/{id}")
    def cancel(id: str) -> int:
        return numbers.cancel(id)

    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/cancel/none").status_code == 404
        queues.close()
        answer = client.get("/cancel/none")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")


def test_the_order_and_its_mail_are_committed_together(postgres: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUES_URL", postgres.url)
    url = postgres.url.replace("durability=fast&", "").replace("postgresql://", "postgresql+psycopg://")
    monkeypatch.setenv("DATABASE_URL", url)
    with TestClient(fastapi_sqlalchemy.app) as client:
        assert client.post("/orders/ann").status_code == 200
        assert client.post("/orders/ben?pays=false").status_code == 402
        assert [entry.value for entry in fastapi_sqlalchemy.mails.find()] == ["to ann: thank you"]
