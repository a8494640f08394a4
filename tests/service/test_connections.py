"""Connections, as raw sockets: whatever a client does or does not do, none is held beyond its deadline."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from penstock import open_queues

CONNECTIONS = 4
# Deadlines short enough for a test, and few connections; all that is not said here is as in production.
SCRIPT = f"""
import sys
from penstock.service import ServiceSettings, serve
limits = dict(head_seconds=0.5, body_seconds=0.5, connections={CONNECTIONS})
known = ServiceSettings.__struct_fields__
limits |= {{name: 0.5 for name in ("idle_seconds", "answer_seconds") if name in known}}
serve(ServiceSettings(queues=sys.argv[1], port=0, **limits), lambda url: print(url, flush=True))
"""
HEAD = b"Host: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = f"sqlite:///{tmp_path_factory.mktemp('held')}/q.db"
    with open_queues(store) as queues:
        queues.queue("large").put_many(["x" * 200_000] * 60)
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, store], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def url(served: str) -> str:
    """Where the service is, once the connections of the test before are gone."""
    _until(lambda: _free(served) >= CONNECTIONS - 1, "the connections of another test to end")
    return served


def _free(url: str) -> int:
    """How many connections the service still has, up to its limit."""
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(httpx2.Client(base_url=url)) for _ in range(CONNECTIONS)]
        return sum(client.get("/ready").status_code == 200 for client in clients)


class Holder:
    """A client that sends something, then a byte now and then, and reads nothing unless told to."""

    def __init__(self, url: str, first: bytes, then: bytes, *, small_window: bool = False) -> None:
        self._socket = socket.socket()
        if small_window:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        self._socket.sendall(first)
        self._wait_for_answer()
        self._then = then
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _wait_for_answer(self) -> None:
        """Let the service see this client before the next one comes; what it answers stays unread."""
        self._socket.settimeout(0.3)
        with contextlib.suppress(OSError):
            self._socket.recv(1, socket.MSG_PEEK)
        self._socket.settimeout(None)

    def _drip(self) -> None:
        with contextlib.suppress(OSError):
            while not self._stopped.wait(0.1):
                self._socket.sendall(self._then)

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._socket.close()


READ_ALL = b"GET /v1/queues/large/entries?limit=60 HTTP/1.1\r\n" + HEAD + b"\r\n"
HOLDERS: dict[str, dict[str, Any]] = {
    "a body that nobody reads": {
        "first": b"GET /live HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000\r\n\r\n", "then": b"x",
    },
    "a body behind a 404": {
        "first": b"POST /nowhere HTTP/1.1\r\n" + HEAD + b"Content-Length: 1000\r\n\r\n", "then": b"x",
    },
    "the extension of a chunk": {
        "first": b"POST /nowhere HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;a", "then": b"x",
    },
    "the extension of a chunk that is read": {
        "first": b"POST /v1/queues/q/entries HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5;a",
        "then": b"x",
    },
    "a head behind a whole request": {
        "first": b"GET /live HTTP/1.1\r\n" + HEAD + b"\r\nGET /live HTTP/1.1\r\nX: a", "then": b"x",
    },
    "an answer that is not read": {"first": READ_ALL, "then": b"", "small_window": True},
    "the last answer, not read": {
        "first": READ_ALL.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), "then": b"", "small_window": True,
    },
    "many answers that are not read": {"first": READ_ALL * 5, "then": b"", "small_window": True},
    "a stream that is not read": {
        "first": b"GET /v1/signals HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", "then": b"x",
    },
    "a silent connection": {"first": b"", "then": b""},
}  # fmt: skip


@pytest.mark.parametrize("kind", HOLDERS)
def test_nobody_holds_a_connection_beyond_its_deadline(url: str, kind: str) -> None:
    holders = [Holder(url, **HOLDERS[kind]) for _ in range(CONNECTIONS)]
    try:
        _until(lambda: httpx2.get(f"{url}/ready").status_code == 200, f"a connection that is free of {kind}")
    finally:
        for holder in holders:
            holder.close()


def test_who_comes_when_all_connections_are_taken_is_told_so(url: str) -> None:
    with contextlib.ExitStack() as opened:
        # Each has asked once and may ask again for as long as it does not keep silent.
        clients = [opened.enter_context(httpx2.Client(base_url=url)) for _ in range(CONNECTIONS)]
        stopped = threading.Event()
        answers: list[int] = []

        def keep_asking(client: httpx2.Client) -> None:
            while not stopped.wait(0.1):
                answers.append(client.get("/ready").status_code)

        threads = [threading.Thread(target=keep_asking, args=(client,)) for client in clients]
        for client in clients:
            _until(lambda client=client: client.get("/ready").status_code == 200, "a connection")
        for thread in threads:
            thread.start()
        try:
            refused = httpx2.get(f"{url}/ready")
            assert refused.status_code == 503
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) > 0
            assert refused.headers["connection"] == "close"
            assert httpx2.get(f"{url}/live").status_code == 200, "the process lives, and is not to be restarted"
            _until(lambda: len(answers) > CONNECTIONS, "answers to those who were there before")
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        assert set(answers) == {200}


def test_a_body_that_arrives_late_does_not_cost_the_connection(url: str) -> None:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as client:
        client.sendall(b"GET /live HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\n\r\n")
        assert _answer(client).startswith(b"HTTP/1.1 200")
        client.sendall(b"abcGET /live HTTP/1.1\r\n" + HEAD + b"\r\n")
        assert _answer(client).startswith(b"HTTP/1.1 200"), "what is left of a body is not the next request"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (
            b"POST /live HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
        (b"GET /live HTTP/9.9\r\n" + HEAD + b"\r\n", b"400"),
        (b"GET /live HTTP/1.1\r\n" + HEAD + b"X-Long: " + b"a" * 40_000 + b"\r\n\r\n", b"4"),
        (b"GET /v1/queues/%00 HTTP/1.1\r\n" + HEAD + b"\r\n", b"400"),
        (b"no HTTP at all\r\n\r\n", b"400"),
        (b"GET /live HTTP/1.1\nHost: localhost\n\n", b"400"),
        (b"GET /live HTTP/1.1\r\n" + HEAD + b"X: a\n\r\n", b"400"),
        (b"GET /live HTTP/1.1\r\n" + HEAD + b"\n", b"400"),
        (b"GET /live HTTP/1.1\r\n" + HEAD + b"X: a\r\n b\r\n\r\n", b"400"),
        (b"GET /live HTTP/1.1\r\n" + HEAD + b"X: a\r\n\tTransfer-Encoding: chunked\r\n\r\n", b"400"),
    ],
    ids=[
        "two lengths",
        "unknown version",
        "large head in one packet",
        "NUL",
        "not HTTP",
        "LF everywhere",
        "one LF",
        "LF at the end",
        "folded",
        "folded with a tab",
    ],
)
def test_odd_requests_are_refused_and_the_connection_ends(url: str, request_: bytes, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as client:
        client.sendall(request_)
        answer = b""
        while part := client.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert json.loads(body)["status"] == int(answer[9:12])


@pytest.mark.parametrize("pieces", ["together", "apart", "byte by byte"])
@pytest.mark.parametrize("second", [b"X: a\nY: b\r\n\r\n", b"X: a\r\n b\r\n\r\n"], ids=["LF", "folded"])
def test_a_later_request_with_an_odd_head_ends_the_connection(url: str, second: bytes, pieces: str) -> None:
    good = b"GET /live HTTP/1.1\r\n" + HEAD + b"\r\n"
    odd = b"GET /live HTTP/1.1\r\n" + HEAD + second
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as client:
        if pieces == "together":
            client.sendall(good + odd)
            answer = b""
        else:
            client.sendall(good)
            answer = _answer(client)
            parts = [odd] if pieces == "apart" else [odd[place : place + 1] for place in range(len(odd))]
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for part in parts:
                    client.sendall(part)
        with contextlib.suppress(ConnectionResetError):  # where it was refused before all had been sent
            while part := client.recv(4096):
                answer += part
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"HTTP/1.1 400" in answer or pieces == "byte by byte"


def test_a_body_may_have_any_bytes(url: str) -> None:
    body = b'{"value":\n [1,\n\t2]}'
    head = b"POST /v1/queues/odd/entries HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as client:
        client.sendall(head + body)
        assert client.recv(4096).startswith(b"HTTP/1.1 201")


def _answer(client: socket.socket) -> bytes:
    """One answer of /live."""
    answer = b""
    while not answer.endswith(b'{"status":"ok"}') and (part := client.recv(4096)):
        answer += part
    return answer


def _until(wanted: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not wanted():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
