"""`penstock serve` as a process: it stays when the store goes, ends with grace, and waits for no one."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.serving import Served

from penstock import open_queues

FLOWS = """
from penstock.stream import Computation, Topology

class Count(Computation):
    inputs, outputs = ("clicks",), ("counts",)

    def process(self, record, ctx): ...

web = Topology("web").stream("clicks").stream("counts").add(Count, name="count")
"""


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def start(*options: str, folder: Path | None = None) -> Served:
        made.append(Served(*options, folder=folder))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_it_serves_and_ends_with_grace(serve: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    served = serve("--url", url)
    assert "has no space 'penstock' yet; creating it" in served.said
    with httpx2.Client(base_url=served.url) as client:
        assert client.post("/v1/queues/q/entries", json={"value": 1}).status_code == 201
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(
                httpx2.post(f"{served.url}/v1/queues/empty/claims?wait=2", json={}, timeout=10)
            )
        )
        waiting.start()
        streamed: list[bytes] = []
        stream = threading.Thread(target=lambda: streamed.append(httpx2.get(f"{served.url}/v1/signals").content))
        stream.start()
        time.sleep(0.5)
        served.process.send_signal(signal.SIGTERM)
        waiting.join()
        stream.join(10)
    assert answers[0].json() == {"items": []}, "a request under way is finished"
    assert streamed, "a stream ends when the service does"
    assert served.process.wait(10) == 0
    with open_queues(url) as store:
        assert store.queue("q").counts().ready == 1


def test_no_answer_waits_for_an_acknowledgement(serve: Any, tmp_path: Path) -> None:
    served = serve("--url", f"sqlite:///{tmp_path}/q.db")
    took = []
    with httpx2.Client(base_url=served.url) as client:
        for _ in range(20):
            began = time.perf_counter()
            assert client.get("/live").status_code == 200
            took.append(time.perf_counter() - began)
    # A head that is sent before its body is acknowledged after 40 ms, once the connection is not new any more.
    assert min(took[10:]) < 0.03


def test_a_body_that_is_not_http_is_not_an_error_of_ours(serve: Any, tmp_path: Path) -> None:
    served = serve("--url", f"sqlite:///{tmp_path}/q.db")
    port = int(served.url.rpartition(":")[2])

    def send(head: str, *, at_once: bool) -> bytes:
        whole = f"{head}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(whole + (b"no chunk\r\n" if at_once else b""))
            answer = client.recv(65536)
            if not at_once:
                client.sendall(b"no chunk\r\n")
            while piece := client.recv(65536):
                answer += piece
            return answer

    here, elsewhere = "Host: localhost", "Host: evil.example"
    assert send(f"POST /live HTTP/1.1\r\n{elsewhere}", at_once=True).startswith(b"HTTP/1.1 400 ")
    assert send(f"POST /v1/queues/q/entries HTTP/1.1\r\n{here}", at_once=True).startswith(b"HTTP/1.1 400 ")
    assert send(f"GET /live HTTP/1.1\r\n{here}", at_once=False).startswith(b"HTTP/1.1 200 ")
    assert send(f"POST /nowhere HTTP/1.1\r\n{here}", at_once=False).startswith(b"HTTP/1.1 404 ")
    assert httpx2.get(f"{served.url}/live").status_code == 200
    assert "Traceback" not in served.close()


def test_a_topology_is_imported_from_the_current_folder(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "flows_of_a_shop.py").write_text(FLOWS)
    options = ("--url", f"sqlite:///{tmp_path}/q.db", "--logs", f"file://{tmp_path}/logs")
    served = serve(*options, "--topology", "flows_of_a_shop:web", folder=tmp_path)
    assert "web" in httpx2.get(f"{served.url}/ui/topologies").text, served.said


def test_slow_heads_and_bodies_are_cut_off(tmp_path: Path) -> None:
    script = (
        "from penstock.service import ServiceSettings, serve; import sys; "
        "serve(ServiceSettings(queues=sys.argv[1], port=0, head_seconds=0.5, body_seconds=0.5), "
        "lambda url: print(url, flush=True))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, f"sqlite:///{tmp_path}/q.db"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        for sent, answer in (
            (b"", b""),
            (b"GET /live HTTP/1.1\r\nHost: localhost\r\n", b""),
            (
                b"POST /v1/queues/q/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{",
                b"HTTP/1.1 408",
            ),
        ):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
                slow.sendall(sent)
                got = b""
                while part := slow.recv(4096):
                    got += part
                assert got.startswith(answer)
                assert bool(got) == bool(answer)
        with socket.create_connection(("127.0.0.1", port), timeout=5) as large:
            large.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
            assert large.recv(100).startswith(b"HTTP/1.1 400")
        assert httpx2.get(f"http://127.0.0.1:{port}/live").status_code == 200
    finally:
        process.kill()
        process.communicate()


def test_the_store_goes_and_comes_back(serve: Any, servers: Any) -> None:
    from tools.servers import Redis

    redis = Redis(durable=False).start()
    try:
        served = serve("--url", f"{redis.url}&timeout=2")
        assert served.url, served.said + served.close()
        with httpx2.Client(base_url=served.url, timeout=20) as client:
            assert client.post("/v1/queues/q/entries", json={"value": 1}).status_code == 201
            os.kill(redis.process.pid, signal.SIGSTOP)
            try:
                answer = client.post("/v1/queues/q/entries", json={"value": 2})
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
                assert client.get("/ready").status_code == 503
                assert client.get("/live").status_code == 200
            finally:
                os.kill(redis.process.pid, signal.SIGCONT)
            deadline = time.monotonic() + 20
            while client.get("/ready").status_code != 200:
                assert time.monotonic() < deadline
            assert client.post("/v1/queues/q/entries", json={"value": 3}).status_code == 201
    finally:
        redis.close()


def test_what_it_refuses(serve: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    for options, told in (
        (("--url", url, "--host", "0.0.0.0"), "no API keys are configured"),
        (("--url", "nonsense"), "is not a store URL"),
        (("--url", f"sqlite:///{tmp_path}/new.db", "--routes", f"{tmp_path}/none.json"), "none.json cannot be read"),
        (("--url", url, "--keys", f"{tmp_path}/none.json"), "penstock key new"),
    ):
        served = serve(*options)
        assert served.process.wait(20) == 2
        assert told in served.said + served.close()
    assert not (tmp_path / "new.db").exists(), "what cannot be read is found before a store is made"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve("--url", url, "--port", str(port))
        assert served.process.wait(20) == 2
        assert "cannot listen" in served.said


def test_the_openapi_and_the_figures_can_be_switched_off_by_command(serve: Any, tmp_path: Path) -> None:
    served = serve("--url", "memory://", "--no-openapi", "--no-metrics")
    assert "openapi" not in served.said
    for path, status in (("/openapi.json", 404), ("/metrics", 404), ("/live", 200)):
        assert httpx2.get(served.url + path).status_code == status, path
    keys = f"{tmp_path}/keys.json"
    subprocess.run([sys.executable, "-m", "penstock", "key", "new", "a", "--keys", keys, "--scope", "read"], check=True)
    behind_a_key = serve("--url", "memory://", "--keys", keys, "--openapi-key")
    assert httpx2.get(f"{behind_a_key.url}/openapi.json").status_code == 401


def test_keys_by_command(serve: Any, tmp_path: Path) -> None:
    keys = f"{tmp_path}/keys.json"
    made = subprocess.run(
        [sys.executable, "-m", "penstock", "key", "new", "ann", "--keys", keys, "--scope", "read"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    served = serve("--url", f"sqlite:///{tmp_path}/q.db", "--keys", keys)
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    assert httpx2.get(f"{served.url}/v1/queues").status_code == 401
    assert httpx2.get(f"{served.url}/v1/queues", headers=headers).status_code == 200
    listed = subprocess.run(
        [sys.executable, "-m", "penstock", "key", "list", "--keys", keys], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split()[-2:] == ["ann", "read"]
    assert made.stdout.strip() not in listed.stdout
    subprocess.run([sys.executable, "-m", "penstock", "key", "remove", "ann", "--keys", keys], check=True)
    assert httpx2.get(f"{served.url}/v1/queues", headers=headers).status_code == 401


def test_who_has_hung_up_is_given_nothing(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "routes.json").write_text('{"/crm/(.*)": "http://127.0.0.1:9/$1"}')
    served = serve("--url", f"sqlite:///{tmp_path}/q.db", "--routes", f"{tmp_path}/routes.json")
    where = ("127.0.0.1", int(served.url.rsplit(":", 1)[1]))
    head = b"host: localhost\r\ncontent-type: application/json\r\n"
    with httpx2.Client(base_url=served.url) as client:
        with socket.create_connection(where) as waiter:
            waiter.sendall(b"POST /v1/queues/w/claims?wait=20 HTTP/1.1\r\n" + head + b"content-length: 2\r\n\r\n{}")
            time.sleep(0.7)
        time.sleep(0.3)
        client.post("/v1/queues/w/entries", json={"value": "job"})
        time.sleep(1)
        assert len(client.post("/v1/queues/w/claims", json={}).json()["items"]) == 1
        with socket.create_connection(where) as cut_off:
            cut_off.sendall(b"PUT /crm/x HTTP/1.1\r\n" + head + b"x-queue: q\r\ncontent-length: 100\r\n\r\nabc")
            time.sleep(0.3)
        assert client.put("/crm/pay?token=s3cret", headers={"x-queue": "q"}).status_code == 202
        time.sleep(1.5)
        errors = [row["error"] for row in client.get("/v1/queues/requests.q/history").json()["items"]]
        assert errors
        assert all("crm/pay" in error and "s3cret" not in error for error in errors), "the request has it, no error"
    said = served.close()
    assert "Traceback" not in said
    assert "s3cret" not in said
