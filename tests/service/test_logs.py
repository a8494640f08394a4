"""Logs, groups, topologies, health, figures and signals over HTTP."""

import base64
import threading
from typing import Any

from penstock import LogStore, QueueStore
from penstock.stream import Computation, Context, Topology


def test_logs_and_records(client: Any, logs: LogStore) -> None:
    made = client.put("/v1/logs/clicks", json={"partitions": 2})
    assert [one["partition"] for one in made.json()["partitions"]] == [0, 1]
    assert client.put("/v1/logs/clicks", json={"partitions": 2}).status_code == 200
    assert client.put("/v1/logs/clicks", json={"partitions": 3}).status_code == 409
    body = {"records": [{"value": {"n": n}, "key": "ann", "headers": {"h": "1"}} for n in range(5)]}
    places = client.post("/v1/logs/clicks/records", json=body).json()["items"]
    assert len({one["partition"] for one in places}) == 1
    where = places[0]["partition"]
    first = client.get("/v1/logs/clicks/records", params={"partition": where, "limit": 3}).json()
    rest = client.get("/v1/logs/clicks/records", params={"partition": where, "start": first["next"]}).json()
    assert [one["value"]["n"] for one in (*first["items"], *rest["items"])] == [0, 1, 2, 3, 4]
    assert (first["items"][0]["key"], first["items"][0]["headers"]) == ("ann", {"h": "1"})
    assert client.get("/v1/logs").json()["items"] == ["clicks"]
    assert client.get("/v1/logs/clicks/records", params={"partition": 9}).status_code == 404
    unnamed = client.get("/v1/logs/clicks/records")
    assert (unnamed.status_code, "?partition=0" in unnamed.json()["hint"]) == (400, True)
    assert client.get("/v1/logs/clicks/records", params={"partition": where, "start": 99}).status_code == 416
    late = client.get("/v1/logs/clicks/records", params={"partition": where, "since": "2100-01-01T00:00:00Z"}).json()
    assert late["items"] == []
    with logs.log("clicks", dict).tailer("python") as tailer:
        assert [record.value["n"] for record in tailer.read(10)] == [0, 1, 2, 3, 4]


def test_raw_bytes(client: Any) -> None:
    client.put("/v1/logs/raw", json={})
    text = base64.b64encode(b"\xff\x00").decode()
    assert client.post("/v1/logs/raw/records", json={"records": [{"bytes": text}]}).status_code == 201
    assert client.get("/v1/logs/raw/records").json()["items"][0]["bytes"] == text
    mixed = {"records": [{"bytes": text}, {"value": 1}]}
    assert client.post("/v1/logs/raw/records", json=mixed).status_code == 400


def test_groups_and_offsets(client: Any, logs: LogStore) -> None:
    client.put("/v1/logs/clicks", json={"partitions": 1})
    client.post("/v1/logs/clicks/records", json={"records": [{"value": n} for n in range(4)]})
    assert client.put("/v1/logs/clicks/groups/billing", json={"offsets": {"0": 1}}).json()["lag"] == 3
    assert client.get("/v1/logs/clicks/groups").json()["items"] == ["billing"]
    assert client.get("/v1/logs/clicks/groups/billing").json()["partitions"][0]["committed"] == 1
    assert client.put("/v1/logs/clicks/groups/billing", json={"offsets": {"0": 9}}).status_code == 416
    assert client.put("/v1/logs/clicks/groups/billing", json={}).status_code == 400
    to_time = client.put("/v1/logs/clicks/groups/billing", json={"time": "2100-01-01T00:00:00Z"})
    assert to_time.json()["lag"] == 0
    with logs.log("clicks").tailer("billing"):
        assert client.put("/v1/logs/clicks/groups/billing", json={"offsets": {"0": 1}}).status_code == 409
    assert client.delete("/v1/logs/clicks/groups/billing").status_code == 204
    assert client.get("/v1/logs/clicks/groups/billing").status_code == 404
    assert client.delete("/v1/logs/clicks").status_code == 204
    assert client.get("/v1/logs/clicks").status_code == 404
    assert client.delete("/v1/logs/clicks").status_code == 404


def test_a_service_without_logs_says_so(serving: Any) -> None:
    answer = serving(with_logs=False).get("/v1/logs")
    assert answer.status_code == 409
    assert "--logs" in answer.json()["hint"]


class Copying(Computation):
    """Copies."""

    name = "copying"
    inputs = ("clicks",)
    outputs = ("copies",)

    def process(self, record: Any, ctx: Context) -> None:
        ctx.produce("copies", record.value)


def test_topologies(serving: Any, logs: LogStore) -> None:
    topology = Topology("shop")
    topology.stream("clicks", dict)
    topology.stream("copies", dict)
    topology.add(Copying)
    logs.create("clicks", 1)
    logs.log("clicks", dict).append({"n": 1})
    client = serving(topologies=(topology,))
    assert client.get("/v1/topologies").json()["items"] == ["shop"]
    [part] = client.get("/v1/topologies/shop").json()["computations"]
    assert (part["name"], part["inputs"]) == ("copying", [{"stream": "clicks", "lag": 1}])
    assert client.get("/v1/topologies/shop/picture").text.startswith("flowchart")
    assert client.get("/v1/topologies/shop/picture", params={"form": "crayon"}).status_code == 422
    assert client.get("/v1/topologies/nope").status_code == 404


def test_health_and_figures(client: Any, queues: QueueStore) -> None:
    queues.queue("q").put(1)
    assert client.get("/live").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ok"}
    text = client.get("/metrics").text
    assert 'penstock_queue_entries{queue="q",state="ready"} 1' in text
    assert 'penstock_signals_total{store="queues",kind="put"} 1' in text
    queues.close()
    answer = client.get("/ready")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert client.get("/live").status_code == 200
    assert client.get("/v1/queues").status_code == 503


def test_signals_are_streamed(client: Any, queues: QueueStore) -> None:
    lines: list[str] = []

    def listen() -> None:
        with client.stream("GET", "/v1/signals", params={"kind": ["put"], "limit": 2}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines.extend(answer.iter_lines())

    listening = threading.Thread(target=listen)
    listening.start()
    while listening.is_alive():
        queues.queue("q").put(1)
        listening.join(0.05)
    events = [line for line in lines if line.startswith("event:")]
    assert events[:2] == ["event: put", "event: put"]
    assert client.get("/v1/signals", params={"kind": "nonsense"}).status_code == 400
