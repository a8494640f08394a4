"""The typed client against the real service: every call, every problem, and what is tried again."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.backends import backend, free_port
from tests.serving import Served

from penstock import errors
from penstock.breaker.settings import BreakerConfig
from penstock.client import AsyncClient, Client, NewEntry, NewRecord, answers
from penstock.client.problems import PREFIX, error_of
from penstock.errors import (
    BadInput,
    EntryNotFound,
    NotAllowed,
    OutcomeUnknown,
    PenstockError,
    StoreUnavailable,
    Undecodable,
    UniqueHeld,
    Unsupported,
)
from penstock.service.problems import kind_of


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with backend() as far:
        (folder / "routes.json").write_text(json.dumps({"/crm/(.*)": far.url}))
        made = Served(
            "--url", f"sqlite:///{folder}/q.db", "--logs", f"file://{folder}/logs", "--routes",
            str(folder / "routes.json"), "--no-deliver",
        )  # fmt: skip
        yield made
        made.close()


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.url) as made:
        yield made


class Mail(msgspec.Struct):
    to: str
    size: int = 0


def test_from_put_to_history(client: Client) -> None:
    made = client.put("mails", Mail("ann", 3), labels={"customer": "ann"}, headers={"trace": "1"}, delay="0s")
    assert (made.queue, made.created) == ("mails", True)
    entry = client.entry("mails", made.id)
    assert (entry.state, entry.labels, entry.headers, entry.raw) == (
        "waiting",
        {"customer": "ann"},
        {"trace": "1"},
        None,
    )
    assert entry.read(Mail) == Mail("ann", 3)
    with pytest.raises(Undecodable, match="no int"):
        entry.read(int)
    [leased] = client.claim("mails", lease=timedelta(seconds=30), owner="me", wait=1)
    assert (leased.id, leased.attempt) == (made.id, 1)
    assert leased.until > datetime.now(UTC) + timedelta(seconds=20)
    assert [one.ok for one in client.extend([leased], lease="2m")] == [True]
    [ended] = client.end([leased])
    assert (ended.id, ended.ok) == (made.id, True)
    [again] = client.end([leased])
    assert (again.ok, again.problem) == (False, "urn:penstock:problem:lease-lost")
    [row] = client.history("mails", made.id).items
    assert (row.state, row.attempt, row.read(Mail).to) == ("done", 1, "ann")
    assert client.claim("mails") == []


def test_pages_counts_and_changes(client: Client) -> None:
    puts = client.put_many("many", [1, NewEntry(value=2, priority=5, delay="1h"), NewEntry(value={"n": 3})])
    assert [one.created for one in puts] == [True] * 3
    first = client.entries("many", limit=2)
    assert [one.value for one in first.items] == [1, 2]
    assert first.next is not None
    assert [one.value for one in client.entries("many", after=first.next).items] == [{"n": 3}]
    counts = client.queue("many")
    assert (counts.ready, counts.delayed, counts.fifo) == (2, 1, False)
    page = client.queues(prefix="man", limit=1)
    assert [one.queue for one in page.items] == ["many"]
    assert client.define("many", rate="100/s").queue == "many"
    assert client.cancel("many", puts[0].id, puts[1].id) == 2
    [leased] = client.claim("many")
    assert client.end([leased], "dead", error="no good")[0].ok
    [letter] = client.dead("many").items
    assert letter.error == "no good"
    assert client.replay("many", letter.id) == 1
    assert client.queue("many").ready == 1


def test_bytes(client: Client) -> None:
    made = client.put("raw", raw=b"\x00\xff")
    assert client.entry("raw", made.id).raw == b"\x00\xff"


def test_locks(client: Client) -> None:
    client.put("locked", 1)
    held = client.lock("locked", "ann", reason="repair")
    assert (held.holder, held.reason) == ("ann", "repair")
    assert held in client.locks().items
    assert client.queue("locked").locks == [held]
    assert client.claim("locked") == []
    assert client.unlock("locked", "ann") is None
    with pytest.raises(EntryNotFound):
        client.unlock("locked", "ann")


def test_records(client: Client) -> None:
    made = client.create_log("clicks", partitions=2)
    assert [(one.partition, one.start, one.end) for one in made.partitions] == [(0, 0, 0), (1, 0, 0)]
    assert client.create_log("clicks", partitions=2) == made
    places = client.append("clicks", [{"page": "/"}, NewRecord(value=2, key="ann", headers={"a": "b"})], partition=0)
    assert [one.offset for one in places] == [0, 1]
    assert "clicks" in client.logs()
    page = client.records("clicks", partition=0, limit=1)
    assert ([one.value for one in page.items], page.next, page.end) == ([{"page": "/"}], 1, 2)
    [record] = client.records("clicks", partition=0, start=page.next).items
    assert (record.value, record.headers) == (2, {"a": "b"})
    with pytest.raises(errors.LogNotFound):
        client.group("clicks", "nobody")


def test_queued_requests_and_circuits(client: Client, served: Served) -> None:
    id_ = client.send("customer-7", "put", "/crm/7", b'{"a": 1}', headers={"content-type": "application/json"})
    assert client.entry("requests.customer-7", id_).value["uri"] == "/crm/7"
    with pytest.raises(BadInput, match="no route"):
        client.send("q", "PUT", "/elsewhere")
    with pytest.raises(BadInput, match="not a path"):
        client.send("q", "PUT", "crm")
    assert client.circuits().items == []
    with pytest.raises(errors.CircuitNotFound):
        client.set_circuit("/crm/(.*)", "close", why="test")
    with pytest.raises(errors.Conflict, match="off"):
        client.set_circuit("/crm/(.*)", "open", why="test")
    httpx2.put(f"{served.url}/v1/breaker/config", json=BreakerConfig.active().resource()).raise_for_status()
    assert client.set_circuit("/crm/(.*)", "open", why="test").state == "open"
    [circuit] = client.circuits().items
    assert (circuit.circuit, circuit.transitions[-1].why) == ("/crm/(.*)", "test")
    assert client.set_circuit(circuit.hash, "close").state == "closed"


def test_errors_are_those_of_the_service(client: Client) -> None:
    client.put("once", 1, unique="u")
    with pytest.raises(UniqueHeld, match="u"):
        client.put("once", 2, unique="u", on_conflict="raise")
    with pytest.raises(EntryNotFound) as caught:
        client.queue("nowhere")
    assert "GET /v1/queues" in caught.value.hint
    with pytest.raises(BadInput, match="priority"):
        client.put("once", 1, priority=1000)
    with pytest.raises(BadInput, match="time zone"):
        client.entries("once", due_from=datetime(2026, 1, 1))  # noqa: DTZ001
    other = msgspec.structs.replace(LEASED, queue="b")
    with pytest.raises(BadInput, match="2 queues"):
        client.end([LEASED, other])
    for wrong in ("", ".."):
        with pytest.raises(BadInput, match="not a name"):
            client.queue(wrong)
    with pytest.raises(EntryNotFound):
        client.queue("a/../../live")


LEASED = answers.Leased(
    id="1", queue="a", state="leased", type="", seq=1, priority=0, created=datetime.now(UTC), due=datetime.now(UTC),
    attempt=1, generation=0, labels={}, headers={}, unique=None, expires=None, error=None, owner=None, ended=None,
    token="t", fence=1, until=datetime.now(UTC),
)  # fmt: skip


def test_every_error_comes_back_as_itself() -> None:
    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            sent = json.dumps({"type": kind_of(kind("x")), "detail": "what", "hint": "next"}).encode()
            back = error_of(500, sent, "GET /")
            assert (type(back), back.message, back.hint) == (kind, "what", "next")
    for status, kind in ((401, NotAllowed), (404, EntryNotFound), (422, BadInput), (502, StoreUnavailable)):
        assert type(error_of(status, b"<html>", "GET /")) is kind
    assert type(error_of(500, b'{"type": "urn:penstock:problem:os"}', "GET /")) is PenstockError
    assert kind_of(PenstockError()).removesuffix("penstock-error") == PREFIX


def test_keys(tmp_path: Path) -> None:
    from penstock.service import new_key

    key = new_key(tmp_path / "keys.json", "ann", ("read",))
    served = Served("--url", f"sqlite:///{tmp_path}/q.db", "--keys", f"{tmp_path}/keys.json")
    try:
        with Client(served.url) as stranger, pytest.raises(NotAllowed, match="key"):
            stranger.queues()
        with Client(served.url, key=key) as reader:
            assert reader.queues().items == []
            with pytest.raises(NotAllowed):
                reader.put("q", 1)
            with pytest.raises(Unsupported):
                reader.logs()
    finally:
        served.close()


# --- what is tried again -----------------------------------------------------------------------------


class Between:
    """In front of a service: can drop answers after the service has done the work, or answer itself."""

    def __init__(self, target: str) -> None:
        self.calls: list[tuple[str, str, str | None]] = []
        self.drop = 0
        self.away = 0
        self.away_status = 503
        between = self
        import httpx2

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def relay(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                between.calls.append((self.command, self.path, self.headers.get("idempotency-key")))
                if between.away:
                    between.away -= 1
                    self.send_response(between.away_status)
                    self.send_header("retry-after", "0")
                    self.send_header("content-length", "0")
                    self.end_headers()
                    return
                kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host",)}
                answer = httpx2.request(self.command, target + self.path, headers=kept, content=body)
                if between.drop:
                    between.drop -= 1
                    self.close_connection = True
                    return
                self.send_response(answer.status_code)
                self.send_header("content-type", answer.headers["content-type"])
                self.send_header("content-length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = relay

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


@pytest.fixture
def between(served: Served) -> Iterator[Between]:
    made = Between(served.url)
    yield made
    made.close()


def test_a_put_whose_answer_is_lost_is_stored_once(between: Between) -> None:
    between.drop = 2
    with Client(between.url) as client:
        made = client.put("lost", "x")
        assert client.queue("lost").ready == 1
        assert client.entry("lost", made.id).value == "x"
        several = client.put_many("lost", [1, 2], idempotency_key="mine")
        between.drop = 1
        assert [one.id for one in client.put_many("lost", [1, 2], idempotency_key="mine")] == [
            one.id for one in several
        ]
        assert client.queue("lost").ready == 3
    keys = [key for method, path, key in between.calls if method == "POST" and path.endswith("entries")]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_a_store_that_is_away_is_asked_again(between: Between) -> None:
    between.away = 3
    with Client(between.url) as client:
        assert client.put("away", 1).created
        between.away, before = 4, len(between.calls)
        with pytest.raises(StoreUnavailable, match="503"):
            client.queue("away")
        assert len(between.calls) == before + 4


def test_who_is_told_to_come_back_does_so_whatever_was_asked(between: Between) -> None:
    between.away, between.away_status = 3, 429
    with Client(between.url) as client:
        assert client.claim("crowded", wait=0.1) == [], "nothing was done, so a claim can be repeated, too"
        between.away = 4
        with pytest.raises(StoreUnavailable, match="429"):
            client.claim("crowded")


@pytest.mark.parametrize("number", [0, 1_700_000_000, 1.5, True])
def test_a_number_is_not_a_time_for_the_client(between: Between, number: Any) -> None:
    with Client(between.url) as client:
        for call in (
            lambda: client.put("q", 1, due=number), lambda: client.entries("q", due_before=number),
            lambda: client.history("q", since=number, before=number), lambda: client.records("log", since=number),
            lambda: client.put_many("q", [NewEntry(value=1, due=number)]),
        ):  # fmt: skip
            with pytest.raises(BadInput, match="not a time"):
                call()
    assert between.calls == [], "nothing was sent"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.claim("unsafe"), lambda client: client.append("unsafe", [1]),
        lambda client: client.cancel("unsafe", "x"), lambda client: client.end([LEASED]),
    ],
)  # fmt: skip
def test_what_may_have_had_its_effect_is_not_repeated(between: Between, call: Callable[[Client], Any]) -> None:
    with Client(between.url) as client:
        between.drop = 1
        with pytest.raises(OutcomeUnknown, match="look before repeating"):
            call(client)
        between.away = 1
        with pytest.raises(StoreUnavailable):
            call(client)
    assert len(between.calls) == 2


def test_what_was_never_sent_may_always_be_sent_again(served: Served) -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", tries=2) as client, pytest.raises(StoreUnavailable, match="no answer"):
        client.claim("q")
    with socket.socket() as late, Client(f"http://127.0.0.1:{port}", tries=8) as client:
        late.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        answer = b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"items":[]}'

        def listen() -> None:
            late.bind(("127.0.0.1", port))
            late.listen()
            with late.accept()[0] as one:
                one.recv(65536)
                one.sendall(answer)

        timer = threading.Timer(0.3, listen)
        timer.start()
        assert client.claim("q") == []
        timer.join()


@pytest.mark.parametrize("answer", [b"<html>hello</html>", b"{}", b'{"items": 5, "next": null}'])
def test_somebody_else_answers(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as one:
                one.recv(65536)
                one.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            Client(f"http://127.0.0.1:{server.getsockname()[1]}") as client,
            pytest.raises(PenstockError, match="not an answer of the service"),
        ):
            client.queues()
        thread.join()


@pytest.mark.parametrize("wrong", ["localhost:8080", "ftp://x", ""])
def test_what_is_no_address(wrong: str) -> None:
    with pytest.raises(BadInput, match="not an address"):
        Client(wrong)
    with pytest.raises(BadInput, match="tries"):
        Client("http://x", tries=0)


@pytest.mark.parametrize("backend_name", ["asyncio"])
def test_the_asynchronous_client(served: Served, backend_name: str) -> None:
    import anyio

    async def main() -> None:
        async with AsyncClient(served.url) as client:
            made = await client.put("async", {"a": 1}, labels={"x": "y"})
            [leased] = await client.claim("async", wait=1)
            assert leased.id == made.id
            assert (await client.end([leased], "retry", delay="1h", error="later"))[0].ok
            assert (await client.queue("async")).retrying == 1
            with pytest.raises(EntryNotFound):
                await client.queue("nowhere")
        async with AsyncClient(f"http://127.0.0.1:{free_port()}", tries=2) as nobody:
            with pytest.raises(StoreUnavailable):
                await nobody.queues()

    anyio.run(main, backend=backend_name)


SHAPES = {
    "PutView": answers.Put, "EntryView": answers.Entry, "LeasedView": answers.Leased, "EndedView": answers.Ended,
    "HistoryView": answers.HistoryRow, "LockView": answers.Lock, "QueueView": answers.QueueCounts,
    "Queues": answers.Page, "Entries": answers.Page, "History": answers.Page, "Locks": answers.Page,
    "Circuits": answers.Page, "Number": answers.Number, "LogView": answers.Log, "PartitionView": answers.Partition,
    "OffsetView": answers.Place, "RecordView": answers.Record, "Records": answers.RecordPage,
    "GroupView": answers.GroupLag, "GroupPartition": answers.GroupPartition, "CircuitBody": answers.Circuit,
    "TransitionView": answers.Transition, "ProgressView": answers.Progress,
    "BatchView": answers.Batch, "ResultView": answers.Result, "NewEntryBody": NewEntry, "NewRecord": NewRecord,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_those_of_the_service(served: Served, name: str) -> None:
    import httpx2

    schema = httpx2.get(f"{served.url}/openapi.json").json()["components"]["schemas"][name]["properties"]
    mine = {field.encode_name for field in msgspec.structs.fields(SHAPES[name])}
    mine = {re.sub("^raw$", "bytes", field) for field in mine}
    assert mine == set(schema)


def test_an_entry_is_put_after_another_and_results_are_read(client: Client) -> None:
    first = client.put("linked", 1)
    later = client.put("linked", 2, after=[first.id])
    [last] = client.put_many("linked", [NewEntry(value=3, after=[later.id], on="ended")])
    assert [client.entry("linked", one.id).state for one in (first, later, last)] == ["waiting", "held", "held"]
    assert client.result("linked", first.id).state == "waiting"
    client.end(client.claim("linked"))
    result = client.result("linked", first.id)
    assert (result.state, result.available, result.value) == ("done", False, None)
    assert client.entry("linked", later.id).state == "waiting"


@pytest.mark.parametrize("value", [{}, [], None, 0, False, "", {"a": {}}])
def test_an_empty_value_is_a_value(client: Client, value: Any) -> None:
    client.put("empty", value)
    client.put_many("empty", [value, NewEntry(value=value, labels={"a": "b"})])
    found = client.claim("empty", limit=3)
    assert [one.value for one in found] == [value] * 3
    client.end(found)
    client.create_log("empties")
    place = client.append("empties", [value])[0]
    assert client.records("empties", start=place.offset).items[0].value == value


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.put("c", float("nan")),
        lambda client: client.put("c", {"a": [float("inf")]}),
        lambda client: client.put("c", b"x"),
        lambda client: client.put("c", {"a": b"x"}),
        lambda client: client.put("c", {1: 2}),
        lambda client: client.put("c", object()),
        lambda client: client.put("c", "\ud800"),
        lambda client: client.put("c", 1, raw=b"x"),
        lambda client: client.put("c", 1, labels={"a": object()}),
        lambda client: client.put("c", 1, idempotency_key="a\nb"),
        lambda client: client.append("c", [float("nan")]),
        lambda client: client.queue("\ud800"),
        lambda client: client.queues(prefix="\ud800"),
        lambda client: client.send("é€", "PUT", "/crm/x"),
        lambda client: client.send("a\r\nb: c", "PUT", "/crm/x"),
        lambda client: client.send("q", "PU T", "/crm/x"),
        lambda client: client.send("q", "PUT", "/crm/x y"),
        lambda client: client.send("q", "PUT", "/crm/\r\nx"),
        lambda client: client.send("q", "PUT", "/crm/x", "text"),
        lambda client: client.send("q", "PUT", "/crm/x", headers={"a b": "c"}),
        lambda client: client.send("q", "PUT", "/crm/x", headers={"a": "b\nc"}),
        lambda client: client.define("c", rate="\ud800"),
    ],
)
def test_what_cannot_be_sent_is_bad_input(client: Client, call: Callable[[Client], Any]) -> None:
    with pytest.raises(BadInput):
        call(client)
