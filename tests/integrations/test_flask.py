"""Flask: queues that open at their first use, handlers in the application's context, a command."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.integrations import flask_shop
from flask import Flask, current_app
from tests.docs.pages import ROOT

import penstock
from penstock import Worker
from penstock.errors import BadInput, NotOpen
from penstock.integrations.flask import Queues


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    yield flask_shop.create_app(f"sqlite:///{tmp_path}/shop.db")
    flask_shop.queues.close()


def test_nothing_is_opened_before_the_first_use(app: Flask, tmp_path: Path) -> None:
    assert not (tmp_path / "shop.db").exists()
    assert app.test_client().post("/orders/ann").status_code == 200
    assert [entry.value for entry in flask_shop.mails.find()] == ["thank you, ann"]


def test_handlers_run_in_the_context_of_the_application(app: Flask, caplog: pytest.LogCaptureFixture) -> None:
    app.test_client().post("/orders/ann")
    with caplog.at_level(logging.INFO):
        assert Worker(flask_shop.queues.store).drain() == 1
    assert "thank you, ann from shop@example.org" in caplog.text


def test_async_handlers_run_in_it_too() -> None:
    queues, seen = Queues(), []
    mails = queues.queue("mails", str)

    @mails.handler
    async def send(mail: str) -> None:
        seen.append(f"{mail} in {current_app.name}")

    app = Flask("shop")
    app.config["PENSTOCK_URL"] = "memory://"
    queues.init_app(app)
    mails.put("x")
    assert Worker(queues.store).drain() == 1
    assert seen == ["x in shop"]
    queues.close()


def test_each_application_of_a_factory_has_its_own_store(tmp_path: Path) -> None:
    for name in ("one", "two"):
        app = flask_shop.create_app(f"sqlite:///{tmp_path}/{name}.db")
        app.test_client().post(f"/orders/{name}")
        assert [entry.value for entry in flask_shop.mails.find()] == [f"thank you, {name}"]
    flask_shop.queues.close()


def test_queues_without_an_application_or_a_url_say_so() -> None:
    queues = Queues()
    mails = queues.queue("mails", str)
    with pytest.raises(NotOpen, match="init_app"):
        mails.put("x")
    queues.init_app(Flask("shop"))
    with pytest.raises(BadInput, match=r"'shop' has no PENSTOCK_URL"):
        mails.put("x")


def test_a_store_that_is_down_is_an_error_at_the_first_use_and_heals(free_port: int, tmp_path: Path) -> None:
    queues = Queues()
    mails = queues.queue("mails", str)
    app = Flask("shop")
    app.config["PENSTOCK_URL"] = f"postgresql://shop@127.0.0.1:{free_port}/shop?timeout=1"
    queues.init_app(app)
    with pytest.raises((penstock.errors.StoreUnavailable, penstock.errors.CannotOpen)):
        mails.put("x")
    app.config["PENSTOCK_URL"] = f"sqlite:///{tmp_path}/shop.db"
    assert mails.put("x").created
    queues.close()


def test_the_command_works_until_it_is_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open_queues(url) as store:
        store.queue("mails", str).put("thank you, ann")
        ended: list[object] = []
        command = [sys.executable, "-m", "flask", "--app", "examples.integrations.flask_shop", "penstock", "worker"]
        process = subprocess.Popen(command, cwd=ROOT, env={"SHOP_URL": url, "PATH": "/usr/bin:/bin"})
        try:
            while not ended and process.poll() is None:
                ended = list(store.queue("mails", str).history())
                store.driver.wait(store.driver.bell(), 0.2)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
        assert [row.state for row in ended] == ["done"]
