"""Sessions of the dashboard on several services over one store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.contract.queue.shorthand import put

from penstock import QueueStore, open_queues
from penstock.errors import StoreUnavailable
from penstock.queue.transfer import Copy
from penstock.service.dashboard import session
from penstock.service.dashboard.session import COOKIE, SECRET
from penstock.service.keys import new_key, read_keys, remove_key


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[list[QueueStore]]:
    """Two processes' handles of one SQLite file."""
    url = f"sqlite:///{tmp_path}/shared.db"
    with open_queues(url) as one, open_queues(url) as other:
        put(one, "mails")
        yield [one, other]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def pair(
    stores: list[QueueStore], keys: Path, serving_store: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> tuple[TestClient, TestClient]:
    """Two services, of which the second gets what the browser has got from the first."""
    monkeypatch.setattr(session, "FRESH", 0.0)
    new_key(keys, "other", ("read",))
    first, second = (serving_store(store, keys=keys) for store in stores)
    return first, second


def status(client: TestClient, path: str = "/ui/queues/mails") -> int:
    return client.get(path, follow_redirects=False).status_code


def sign_in(client: TestClient, secret: str, *others: TestClient) -> None:
    assert client.post("/ui/login", data={"key": secret}, follow_redirects=False).status_code == 303
    for other in others:
        other.cookies.set(COOKIE, client.cookies[COOKIE])


def token_of(client: TestClient, path: str = "/ui/do/lock?queue=mails") -> str:
    [token] = set(re.findall(r'name="token" value="([^"]+)"', client.get(path).text))
    return token


def test_a_session_and_its_forms_are_valid_on_every_service(
    pair: tuple[TestClient, TestClient], keys: Path, stores: list[QueueStore]
) -> None:
    first, second = pair
    sign_in(first, new_key(keys, "ann", ("admin",)), second)
    assert (status(first), status(second)) == (200, 200)
    assert "ann" in second.get("/").text
    form = {"queue": "mails", "token": token_of(first), "back": "/ui/queues/mails"}
    assert second.post("/ui/do/lock", data=form, follow_redirects=False).status_code == 303
    assert [lock.holder for lock in stores[0].locks("mails")] == ["dashboard"]


def test_signing_out_ends_the_session_everywhere(
    pair: tuple[TestClient, TestClient], keys: Path, stores: list[QueueStore], serving_store: Callable[..., TestClient]
) -> None:
    first, second = pair
    secret = new_key(keys, "ann", ("admin",))
    sign_in(first, secret, second)
    cookie = first.cookies[COOKIE]
    second.post("/ui/logout", data={"token": token_of(first, "/ui/more")}, follow_redirects=False)
    assert status(first) == 303
    restarted = serving_store(stores[0], keys=keys)
    restarted.cookies.set(COOKIE, cookie)
    assert status(restarted) == 303
    sign_in(first, secret)
    assert status(first) == 200, "another session of the same key is another matter"


def test_a_key_that_is_removed_or_changed_ends_its_sessions_everywhere(
    pair: tuple[TestClient, TestClient], keys: Path
) -> None:
    first, second = pair
    sign_in(first, new_key(keys, "ann", ("admin",)), second)
    [ann] = [key for key in read_keys(keys) if key.name == "ann"]
    text = keys.read_text()
    keys.write_text(text.replace('"admin"', '"read", "produce"'))
    assert (ann.scopes, status(first), status(second)) == (("admin",), 303, 303)
    keys.write_text(text)
    assert (status(first), status(second)) == (200, 200)
    remove_key(keys, "ann")
    assert (status(first), status(second)) == (303, 303)


def test_forms_without_keys_are_valid_on_every_service_and_after_a_restart(
    stores: list[QueueStore], serving_store: Callable[..., TestClient]
) -> None:
    tokens = {token_of(serving_store(store)) for store in (*stores, stores[0])}
    assert len(tokens) == 1


@pytest.mark.parametrize("change", ["end", "signature", "whole", "unsigned", "nothing"])
def test_a_cookie_that_was_changed_is_none(pair: tuple[TestClient, TestClient], keys: Path, change: str) -> None:
    first, second = pair
    sign_in(first, new_key(keys, "ann", ("admin",)))
    text, _, signature = first.cookies[COOKIE].rpartition(".")
    changed = {
        "end": f"{text[:-4]}AAAA.{signature}",
        "signature": f"{text}.{'A' * len(signature)}",
        "whole": "é" * 40,
        "unsigned": text,
        "nothing": ".",
    }[change]
    answer = second.get("/ui/queues", headers={"cookie": f"{COOKIE}={changed}".encode()}, follow_redirects=False)
    assert answer.status_code == 303


def test_another_store_has_another_secret_and_a_copy_too(stores: list[QueueStore], tmp_path: Path, keys: Path) -> None:
    sessions = session.Sessions(None, stores[0])
    assert session.Sessions(None, stores[1])._secret == sessions._secret
    with open_queues(f"sqlite:///{tmp_path}/copy.db") as other:
        Copy(stores[0], other).run()
        assert other.driver.document(SECRET) is None
        assert session.Sessions(None, other)._secret != sessions._secret


def test_a_store_that_does_not_answer_leaves_the_list_as_it_was(
    pair: tuple[TestClient, TestClient], keys: Path, stores: list[QueueStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    sign_in(first, new_key(keys, "ann", ("admin",)), second)
    assert (status(first), status(second)) == (200, 200)

    def away(*_: object, **__: object) -> object:
        raise StoreUnavailable("the store is away.")

    monkeypatch.setattr(type(stores[0].driver), "documents", away)
    assert status(first) in (200, 503), "the visitor is known all the same"
