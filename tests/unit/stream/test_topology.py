"""A topology: what it refuses before anything runs, what it answers, how it looks."""

import copy
import pickle
from typing import Any

import pytest

import penstock
from penstock.errors import BadInput, Conflict, PenstockError, WrongType
from penstock.policy import Batching, Retry
from penstock.stream.computation import CONTINUE, Computation, Policy, computation
from penstock.stream.local.runner import LocalRunner
from penstock.stream.operators import map_values
from penstock.stream.state import List, Map, Value
from penstock.stream.topology import Topology


class Pass(Computation):
    name, inputs, outputs = "pass", "in", "out"

    def process(self, record: Any, ctx: Any) -> None:
        ctx.produce("out", record)


class Source(Computation):
    name, outputs = "source", "out"

    def on_timer(self, timer: Any, ctx: Any) -> None: ...


def topology(*streams: str) -> Topology:
    made = Topology("test")
    for name in streams:
        made.stream(name, int)
    return made


def chain(*names: str) -> Topology:
    """Pass after pass: s0 → a → s1 → b → s2 …"""
    made = topology(*(f"s{number}" for number in range(len(names) + 1)))
    for number, name in enumerate(names):
        made.add(Pass, name=name, streams={"in": f"s{number}", "out": f"s{number + 1}"})
    return made


def missing_inputs(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "was not there" in record.getMessage()]


def test_an_input_log_that_a_runner_has_to_create_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with penstock.open_logs("memory://") as logs:
        logs.create("s00")
        for _ in range(2):
            with LocalRunner(chain("a", "b"), logs):
                assert logs.exists("s0")
    [told] = missing_inputs(caplog)
    assert told.startswith("topology test reads the log s0, which was not there in memory://; it was created, empty.")
    assert "empty. Did you mean s00? Create logs before you start a runner." in told


def test_logs_that_are_there_and_logs_between_computations_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with penstock.open_logs("memory://") as logs:
        logs.create("s0")
        with LocalRunner(chain("a", "b"), logs):
            assert {"s0", "s1", "s2"} <= set(logs.names())
    assert missing_inputs(caplog) == []


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda: Topology("no spaces"), "topology name"),
            (lambda: Topology("t", partitions=0), "partitions=0"),
            (lambda: topology("a", "a"), "already"),
            (lambda: Topology("t").stream("a", partitions=True), "partitions"),
            (lambda: Topology("t").stream("a", object()), "payload type"),
            (lambda: topology("in", "out").add(Pass).add(Pass), "already"),
            (lambda: topology("in", "out").add(Computation), "no name"),
            (lambda: topology("in", "out").add(len), "not a computation"),  # type: ignore[arg-type]
            (lambda: topology("in", "out").add(Pass, concurrency=-1), "concurrency"),
            (lambda: topology("in", "out").add(Pass, streams={"inn": "in"}), "'inn' to map"),
            (lambda: topology("in").check(), "no computations"),
            (lambda: topology("inn", "out").add(Pass).check(), "Did you mean inn"),
            (lambda: topology("in", "out").add(Pass, streams={"out": "in"}).check(), "cycle: pass → pass"),
            (lambda: chain("a", "b").add(Pass, name="c", streams={"in": "s2", "out": "s0"}).check(), "cycle: "),
            (lambda: topology("in", "out").add(computation("x", inputs="in", policy=3)(print)).check(), "policy=3"),
            (lambda: topology("in", "out").add(computation("x", inputs="in", batch=3)(print)).check(), "batch=3"),
            (lambda: topology("in", "out").add(computation("x", inputs="in", version=0)(print)).check(), "version 0"),
            (lambda: Topology("t").stream("in", out_of_order=3), "out_of_order"),
            (lambda: topology("in").add(computation("x", inputs="in", states=[int])(print)).check(), "as a state"),
            (
                lambda: topology("in").add(
                    computation("x", inputs="in", states=[Value("a", int), Map("a", int)])(print)
                ).check(),
                "two states 'a'",
            ),
            (lambda: topology("in", "out").add(computation("x")(print)).check(), "reads nothing"),
            (lambda: topology("in", "out").add(computation("x", outputs="out")(print)).check(), "no on_timer"),
            (lambda: topology("in", "out").add(Computation(), name="x", streams={}).check(), "reads nothing"),
            (lambda: computation("x", input="in")(print), "'input' is unknown"),
            (lambda: topology("in", "pass.state").add(Pass, streams={"out": "pass.state"}).check(), "name of a log"),
            (lambda: Value("a/b", int), "state name"),
            (lambda: Value("a", object()), "payload type"),
            (lambda: List("a", int, ttl="soon"), "ttl"),
            (lambda: Policy(on_failure="explode"), "explode"),  # type: ignore[arg-type]
            (lambda: Policy(retry=3), "retry=3"),  # type: ignore[arg-type]
            (lambda: Policy(skip_first=-1), "skip_first"),
            (lambda: chain("a").draw("jpeg"), "jpeg"),  # type: ignore[arg-type]
            (lambda: chain("a").ancestors("b"), "no stream or computation 'b'"),
        ],
    )  # fmt: skip
    def test_with_a_reason(self, make: Any, says: str) -> None:
        with pytest.raises(BadInput, match=says):
            make()

    def test_two_writers_where_one_is_allowed(self) -> None:
        made = Topology("test").stream("in").stream("out", single_writer=True)
        made.add(Pass, name="a").check()
        with pytest.raises(BadInput, match="one writer and has a, b"):
            made.add(Pass, name="b").check()

    def test_a_computation_that_cannot_be_copied(self) -> None:
        import threading

        class Locked(Pass):
            def __init__(self) -> None:
                self.lock = threading.Lock()

        with pytest.raises(BadInput, match=r"in init\(\)"):
            topology("in", "out").add(Locked).check()

    def test_against_the_logs_of_a_store(self) -> None:
        store = penstock.open_logs("memory://")
        store.create("in", 3)
        store.create("two", 2)
        store.create("other", 3, partitioner="java")
        store.create("json", 3, codec="json")
        with pytest.raises(Conflict, match="declared with 4 partitions and has 3"):
            LocalRunner(Topology("t").stream("in", partitions=4).stream("out").add(Pass), store)
        joined = computation("j", inputs=("in", "two"), states=[Value("v", int)])(print)
        with pytest.raises(Conflict, match="in 3, two 2"):
            LocalRunner(Topology("t").stream("in").stream("two").add(joined), store)
        joined = computation("j", inputs=("in", "other"), states=[Value("v", int)])(print)
        with pytest.raises(Conflict, match="crc32, java"):
            LocalRunner(Topology("t").stream("in").stream("other").add(joined), store)
        assert store.names() == ["in", "json", "other", "two"], "nothing was created"
        with pytest.raises(BadInput, match="no option 'checkpoint_record'"):
            LocalRunner(topology("in", "out").add(Pass), store, checkpoint_record=3)
        with pytest.raises((PenstockError, WrongType)):
            LocalRunner(
                Topology("t").stream("json", codec=Odd()).stream("out").add(Pass, streams={"in": "json"}), store
            )


class Odd:
    """A codec of another kind."""

    name = "odd"
    type_name = "odd"

    def encode(self, value: Any) -> bytes:
        return b""

    def decode(self, payload: bytes) -> Any:
        return None


class TestAsked:
    def diamond(self) -> Topology:
        made = topology("s1", "s2", "s3", "s4", "s5")
        made.add(computation("a", inputs="s1", outputs=("s2", "s3"))(print))
        made.add(computation("b", inputs="s2", outputs="s4")(print))
        made.add(computation("c", inputs="s3", outputs="s4")(print))
        return made.add(computation("d", inputs="s4", outputs="s5")(print), concurrency=3)

    def test_who_is_where(self) -> None:
        made = self.diamond()
        assert [node.name for node in made.order()] == ["a", "b", "c", "d"]
        assert made.parents("d") == {"s4"}
        assert made.parents("s4") == {"b", "c"}
        assert made.children("a") == {"s2", "s3"}
        assert made.ancestors("b") == {"s2", "a", "s1"}
        assert made.descendants("a") == {"s2", "s3", "b", "c", "s4", "d", "s5"}
        assert made.parents_of("d") == ["b", "c"]
        assert made.roots() == {"s1"}
        assert (made.is_source("s1"), made.is_source("a"), made.is_sink("s5"), made.is_sink("d")) == (
            True,
            False,
            True,
            False,
        )

    def test_the_order_does_not_depend_on_when_they_were_added(self) -> None:
        made = topology("s1", "s2", "s3")
        made.add(Pass, name="later", streams={"in": "s2", "out": "s3"})
        made.add(Pass, name="earlier", streams={"in": "s1", "out": "s2"})
        assert [node.name for node in made.order()] == ["earlier", "later"]

    def test_pictures(self) -> None:
        made = self.diamond()
        mermaid = made.draw()
        assert mermaid.startswith("flowchart LR\n")
        assert mermaid.count("-->") == 9
        assert '["d x3"]' in mermaid
        plantuml = made.draw("plantuml")
        assert plantuml.startswith("@startuml\n")
        assert plantuml.endswith("@enduml\n")
        assert plantuml.count("==>") == 9
        assert "note right: x3" in plantuml
        assert "s4 → [d x3] → s5" in made.draw("text")
        assert "(source) → [source] → out" in topology("out").add(Source).draw("text")

    def test_one_name_for_a_stream_and_a_computation_is_no_trouble(self) -> None:
        made = topology("in", "pass").add(Pass, streams={"out": "pass"}).check()
        assert made.draw().count("-->") == 2


class TestSentAround:
    """Another runner may send a topology to other processes."""

    def test_states_and_computations_survive_pickling_and_copying(self) -> None:
        declared = Value("v", dict[str, int], default={}, ttl="1h")
        for made in (pickle.loads(pickle.dumps(declared)), copy.deepcopy(declared)):
            assert (made.name, made.shape, made.ttl, made.default) == (declared.name, declared.shape, 3_600_000_000, {})
            assert made.codec.decode(b'{"a":1}') == {"a": 1}
        piece = map_values("m", str, "in", "out", policy=CONTINUE)
        again = pickle.loads(pickle.dumps(piece))
        assert (again.name, again.inputs, again.outputs, again.policy) == ("m", ("in",), ("out",), CONTINUE)

    def test_options_of_a_function(self) -> None:
        @computation("f", inputs="in", batch=Batching(size=2), policy=Policy(retry=Retry(attempts=2)))
        def function(records: Any, ctx: Any) -> None: ...

        assert function.overrides("process_batch")
        assert not function.overrides("process")
        assert not function.keeps
        assert topology("in").add(function).check().nodes["f"].policy.retry.attempts == 2
