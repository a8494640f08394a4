"""A backend's name leads where its route may lead, and what was checked is what is connected to."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest
from tests.backends import Backend, backend

from penstock import QueueStore, Retry, Worker, open_queues
from penstock.errors import BadInput
from penstock.gateway.addresses import checked_addresses, plain_address
from penstock.gateway.deadlines import bounded_client
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.routes import Routes

REAL = socket.getaddrinfo


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made


@pytest.fixture
def store() -> Iterator[QueueStore]:
    with open_queues("memory://") as made:
        yield made


class Names:
    """A resolver whose answers can be told, and change: each name's answers are used up one by one, the last stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []

    def __call__(self, host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        self.asked.append(host)
        if host not in self.answers:
            return REAL(host, port, *arguments, **options)
        told = self.answers[host]
        addresses = told.pop(0) if len(told) > 1 else told[0]
        return [found for address in addresses for found in REAL(address, port, type=socket.SOCK_STREAM)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


def deliver(store: QueueStore, target: str, *, times: int = 1, **route: Any) -> str | None:
    """Send one request there; the error with which it stayed in its queue, None if it was delivered."""
    gateway = Gateway(store, Routes.read({"/a/(.*)": {"target": f"{target}/$1", **route}}))
    deliverer = Deliverer(gateway, retry=Retry(attempts=None, delays=["0s"]), timeout=3.0)
    gateway.accept("PUT", "/a/x", [("x-queue", "q")], b"secret")
    Worker(store).drain(limit=times)
    deliverer.close()
    left = gateway.family.find()
    return left[0].error if left else None


def test_a_name_that_changes_its_answer_leads_nowhere_else(store: QueueStore, far: Backend, names: Names) -> None:
    # First a public address beside this machine's, as if to pass a check of the first one only; then this machine's.
    names.answers["crm.test"] = [["8.8.8.8", "127.0.0.1"], ["127.0.0.1"]]
    error = deliver(store, f"http://crm.test:{far.port}", times=3)
    assert "private address" in (error or "")
    assert far.calls == []


def test_it_is_asked_once_and_the_answer_is_kept(far: Backend, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    names.answers["crm.test"] = [["127.0.0.1"], ["203.0.113.1"]]
    connected: list[Any] = []
    real = socket.create_connection

    def connect(address: Any, *arguments: Any, **options: Any) -> Any:
        connected.append(address[0])
        return real(address, *arguments, **options)

    monkeypatch.setattr(socket, "create_connection", connect)
    with bounded_client(1, private=True) as client:
        for _ in range(2):
            assert client.put(f"http://crm.test:{far.port}/x").status_code == 200
    assert names.asked.count("crm.test") == 1
    assert connected == ["127.0.0.1"]
    assert {headers["Host"] for _, _, headers, _ in far.calls} == {f"crm.test:{far.port}"}


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "127.1", "[::ffff:127.0.0.1]", "crm.test"])
def test_disguises_of_this_machine(store: QueueStore, far: Backend, names: Names, host: str) -> None:
    names.answers["crm.test"] = [["127.0.0.1"]]
    error = deliver(store, f"http://{host}:{far.port}")
    assert "private address" in (error or ""), error
    assert far.calls == []
    store.queue("requests.q", bytes).cancel(*(one.id for one in store.queue("requests.q", bytes).find()))
    assert deliver(store, f"http://{host}:{far.port}", private=True) is None
    assert [call[3] for call in far.calls] == [b"secret"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_who_names_this_machine_means_it(store: QueueStore, far: Backend, host: str) -> None:
    assert deliver(store, f"http://{host}:{far.port}") is None
    assert len(far.calls) == 1


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "fe80::1",
        "::",
        "ff02::1",
        "::ffff:169.254.169.254",
        "::ffff:0:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1::6464:64c8",
    ],
)
@pytest.mark.parametrize("private", [True, False])
def test_where_no_backend_may_be(names: Names, address: str, private: bool) -> None:
    names.answers["crm.test"] = [["8.8.8.8", address]]
    with pytest.raises(httpcore2.ConnectError, match="where no backend may be"):
        checked_addresses("crm.test", 80, private=private)
    if plain_address(address) is not None:
        host = f"[{address}]" if ":" in address else address
        with pytest.raises(BadInput, match="where no backend may be"):
            Routes.read({"/a": {"target": f"http://{host}/", "private": private}})


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "127.0.0.2", "::1", "fd00::1", "::ffff:10.0.0.1",
     "2002:a00:1::", "64:ff9b::a00:1", "2001:0:1:1:1:1:f5ff:fffe"],
)  # fmt: skip
def test_private_networks_need_a_word(names: Names, address: str) -> None:
    names.answers["crm.test"] = [["8.8.8.8", address]]
    with pytest.raises(httpcore2.ConnectError, match="a private address"):
        checked_addresses("crm.test", 80, private=False)
    assert checked_addresses("crm.test", 80, private=True)[0] == "8.8.8.8"
    names.answers["localhost"] = [["10.0.0.1"]]
    with pytest.raises(httpcore2.ConnectError, match="a private address"):
        checked_addresses("localhost", 80, private=False)


def test_public_addresses_are_fine(names: Names) -> None:
    names.answers["crm.test"] = [["8.8.8.8", "2606:4700::1111", "8.8.8.8"]]
    assert checked_addresses("crm.test", 80, private=False) == ["8.8.8.8", "2606:4700::1111"]
    with pytest.raises(httpcore2.ConnectError, match="has no address"):
        checked_addresses("nobody.invalid", 80, private=True)


def test_one_dead_address_leaves_time_for_the_next(far: Backend, names: Names) -> None:
    names.answers["crm.test"] = [["127.0.0.9", "127.0.0.1"]]
    with bounded_client(1, private=True) as client:
        assert client.put(f"http://crm.test:{far.port}/x", timeout=5).status_code == 200


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_this_machine_is_not_followed(store: QueueStore, far: Backend, status: int) -> None:
    with backend() as inside:
        far.mode, far.headers = status, {"location": f"{inside.url}/admin"}
        assert f"status {status}" in (deliver(store, far.url) or "")
        assert (len(far.calls), inside.calls) == (1, [])


def test_proxies_of_the_environment_are_not_used(
    store: QueueStore, far: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert deliver(store, far.url) is None
        assert (len(far.calls), proxy.calls) == (1, [])


@pytest.mark.parametrize(
    "target",
    ["http://127.0.0.1@crm.test/", "http://crm.test:80@127.0.0.1/", "http://user:pw@crm.test/", "http://crm.test\\@x/"],
)
def test_names_in_front_of_the_host_are_refused(target: str) -> None:
    with pytest.raises(BadInput):
        Routes.read({"/a/(.*)": target})


def test_an_octal_address_is_no_way_in(store: QueueStore, far: Backend) -> None:
    deliver(store, f"http://0177.0.0.1:{far.port}")
    assert far.calls == []
    with pytest.raises(httpcore2.ConnectError):
        checked_addresses("0177.0.0.1", far.port, private=False)


@pytest.mark.parametrize(
    "rest", ["@127.0.0.1", ":80@127.0.0.1", "\\@127.0.0.1", "//127.0.0.1", "/..//127.0.0.1", "%40127.0.0.1"]
)
def test_addresses_with_tricks_stay_with_their_backend(store: QueueStore, far: Backend, rest: str) -> None:
    with backend() as other:
        gateway = Gateway(store, Routes.read({"/a/(.*)": f"{far.url}/$1", "(.*)": far.url}))
        deliverer = Deliverer(gateway, timeout=3.0)
        for uri in (f"{rest}:{other.port}/", f"/a/{rest}:{other.port}/"):
            with contextlib.suppress(BadInput):
                gateway.accept("PUT", uri, [("x-queue", "q")])
        Worker(store).drain()
        deliverer.close()
        assert other.calls == []
        assert "\\" in rest or ".." in rest or len(far.calls) > 0


@pytest.fixture
def https(tmp_path: Path) -> Iterator[Callable[[], tuple[Backend, ssl.SSLContext, list[Any]]]]:
    """A backend whose certificate is for crm.test, the context that trusts it, and the names asked for in TLS."""
    made: list[Backend] = []

    def start() -> tuple[Backend, ssl.SSLContext, list[Any]]:
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days",
             "2", "-subj", "/CN=crm.test", "-addext", "subjectAltName=DNS:crm.test"],
            check=True, capture_output=True,
        )  # fmt: skip
        asked: list[Any] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        context.sni_callback = lambda _, name, __: asked.append(name)
        far = Backend()
        made.append(far)
        far.server.socket = context.wrap_socket(far.server.socket, server_side=True)
        return far, ssl.create_default_context(cafile=str(certificate)), asked

    yield start
    for one in made:
        one.close()


def test_tls_is_about_the_name(https: Any, names: Names) -> None:
    far, trusting, asked = https()
    names.answers.update({"crm.test": [["127.0.0.1"]], "erp.test": [["127.0.0.1"]]})
    with bounded_client(2, private=True, verify=trusting) as client:
        assert client.put(f"https://crm.test:{far.port}/x").status_code == 200
        with pytest.raises(httpx2.ConnectError, match=r"(?i)hostname|certificate"):
            client.put(f"https://erp.test:{far.port}/x")
    assert asked == ["crm.test", "erp.test"]
    [(_, _, headers, _)] = far.calls
    assert headers["Host"] == f"crm.test:{far.port}"


@pytest.mark.parametrize(
    "address",
    ["64:ff9b:1::7f00:1", "::10.0.0.1", "::ffff:0:10.0.0.1", "fec0::1", "192.0.0.8", "192.88.99.1", "5f00::1",
     "3fff::1", "fd00:ec2::254", "100.100.100.200"],
)  # fmt: skip
def test_odd_ranges_are_not_public(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    names.answers["crm.example"] = [[address]]
    monkeypatch.setattr(socket, "getaddrinfo", names)
    with pytest.raises(httpcore2.ConnectError, match="nothing was sent"):
        checked_addresses("crm.example", 80, private=False)


@pytest.mark.parametrize("address", ["fd00:ec2::254", "100.100.100.200", "169.254.169.254", "168.63.129.16"])
def test_where_clouds_keep_their_secrets_is_never_a_backend(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names()
    names.answers["crm.example"] = [[address]]
    monkeypatch.setattr(socket, "getaddrinfo", names)
    with pytest.raises(httpcore2.ConnectError, match="where no backend may be"):
        checked_addresses("crm.example", 80, private=True)
    with pytest.raises(BadInput, match="where no backend may be"):
        Routes.read({"/a": f"http://[{address}]/" if ":" in address else f"http://{address}/"})
