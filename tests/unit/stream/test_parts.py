"""The parts of a task: cells of state, timers, the watermark, the changelog."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stream.stored import items_of

import penstock
from penstock.errors import PenstockError, WrongType
from penstock.stream.computation import computation
from penstock.stream.engine import changelog as changelogs
from penstock.stream.engine.changelog import Changelog, state_log
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.watermark import END, LOWEST, Promise, Reach, SilentInput, Watermark
from penstock.stream.internal_logs import cut_state_log, last_change, make_state_log, state_payloads
from penstock.stream.state import List, Map, Value
from penstock.stream.timers import Timer, Timers
from penstock.stream.topology import Topology
from penstock.stream.validate import ResolvedTopology


class TestCells:
    def test_changes_are_only_what_changed(self) -> None:
        cell = Map("m", int).cell()
        cell.scope.key_text = "a"
        for number in range(100):
            cell.set(str(number), number)
        assert len(cell.changes()) == 100
        cell.apply()
        cell.set("5", 6)
        cell.delete("7")
        assert cell.changes() == [Entry("m", "a", "5", b"6"), Entry("m", "a", "7", None)]

    def test_a_list_writes_what_was_appended(self) -> None:
        cell = List("l", int).cell()
        cell.extend(range(50))
        assert len(cell.changes()) == 50
        cell.apply()
        cell.append(50)
        assert cell.changes() == [Entry("l", "", "50", b"50")]
        cell.apply()
        cell.replace([1, 2])
        assert cell.changes() == [Entry("l", "", "2", None), Entry("l", "", "0", b"1"), Entry("l", "", "1", b"2")]

    def test_rollback_forgets_also_what_was_changed_in_place(self) -> None:
        cell = Value("v", dict, None).cell()
        cell.set({"a": 1})
        cell.changes()
        cell.apply()
        cell.get()["a"] = 2
        cell.rollback()
        assert cell.get() == {"a": 1}

    def test_strict_finds_a_wrong_type_when_it_is_set(self) -> None:
        cells: list[Any] = [Value("v", int).cell(), List("l", int).cell(), Map("m", int).cell()]
        for cell, call in zip(
            cells, (lambda c: c.set("x"), lambda c: c.append("x"), lambda c: c.set("k", "x")), strict=True
        ):
            with pytest.raises(WrongType):
                call(cell)
            cell.scope.strict = False
            call(cell)
            with pytest.raises(WrongType):
                cell.changes()


class TestTimers:
    def test_by_time_and_key_and_one_per_name(self) -> None:
        timers = Timers()
        for at, key in ((5, "b"), (5, "a"), (3, "c"), (9, "d")):
            timers.set("event", key, "", at)
        timers.set("event", "d", "", 1)
        timers.set("event", "c", "", 20)
        fired = []
        while (timer := timers.take("event", 10)) is not None:
            fired.append((timer.time_us, timer.key))
        assert fired == [(1, "d"), (5, "a"), (5, "b")]
        assert timers.next("event") == 20
        assert len(timers) == 1

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from(["set", "clear", "take", "mark"]))
        )
    )
    def test_rollback_goes_back_to_the_last_checkpoint(self, steps: list[tuple[str, int, str]]) -> None:
        timers, model = Timers(), dict[str, int]()
        kept: dict[str, int] = {}
        for key, at, what in steps:
            if what == "set":
                timers.set("event", key, "", at)
                model[key] = at
            elif what == "clear":
                timers.clear("event", key, "")
                model.pop(key, None)
            elif what == "take":
                expected = min(((when, one) for one, when in model.items() if when <= at), default=None)
                assert timers.take("event", at) == (None if expected is None else Timer(expected[1], "", expected[0]))
                if expected is not None:
                    del model[expected[1]]
            else:
                timers.apply()
                kept = dict(model)
        timers.rollback()
        assert {key: timers.at((kind, key, name)) for kind, key, name in timers.places()} == kept


class TestWatermark:
    def test_the_least_of_the_inputs_that_are_not_silent(self) -> None:
        mark = Watermark(["a", "b"], {"a": 10, "b": 10}, idle=100, now=0)
        mark.mark("a", 500, 1)
        assert mark.next({}) == LOWEST, "nothing is known of b"
        mark.mark("b", 300, 2)
        assert mark.next({}) == 290
        assert mark.quiet(101) == ["a"]
        assert mark.quiet(102) == ["a", "b"]
        mark.mark("a", 600, 200)
        assert mark.quiet(201) == ["b"]
        assert mark.next({"b": SilentInput("log", 0, 7)}) == 590, "b is silent"
        assert mark.next({}) == 290, "b has records that wait"
        mark.move({"b": SilentInput("log", 0, 7)})
        assert (mark.low, mark.firm) == (590, 290), "whatever b brings"
        assert mark.promise == Promise(290, 590, (SilentInput("log", 0, 7),))
        mark.move({})
        assert mark.low == 590, "never back"
        assert mark.promise == Promise(290)

    def test_what_was_promised_before_still_holds(self) -> None:
        mark = Watermark(["a"], output_delay=10)
        mark.resume(100, 120)
        assert (mark.low, mark.promise) == (120, Promise(90))
        mark.mark("a", 90, 0)
        mark.move({})
        assert (mark.low, mark.promise) == (120, Promise(90)), "never back"
        mark.mark("a", 200, 0)
        mark.move({})
        assert mark.promise == Promise(190), "less what outputs may be older"
        assert mark.promise_until(195) is None, "a timer is due that has not fired"
        assert mark.promise_until(205) == Promise(190)
        mark.finish()
        assert mark.promise_until(205) == Promise(END)

    def test_without_idle_an_input_is_waited_for_without_end(self) -> None:
        mark = Watermark(["a", "b"], idle=None)
        mark.mark("a", 500, 1)
        assert mark.quiet(10**15) == []

    def test_an_input_that_is_computed_counts_as_its_writers_say(self) -> None:
        mark = Watermark(["a", "b"], inner=["b"])
        mark.mark("a", 500, 1)
        mark.mark("b", 900, 1)
        assert mark.next({}) == LOWEST, "nothing was reported"
        mark.set_reach("b", Reach(40, 60, (SilentInput("edge", 1, 3),)))
        mark.move({})
        assert (mark.low, mark.firm) == (60, 40)
        assert mark.promise == Promise(40, 60, (SilentInput("edge", 1, 3),))
        mark.set_reach("b", Reach(END, END))
        mark.move({})
        assert (mark.low, mark.promise) == (500, Promise(500)), "what has ended holds nobody"
        mark.set_reach("b", Reach(450, 450))
        mark.move({})
        assert (mark.low, mark.promise) == (500, Promise(450)), "a writer that comes back may write older records"

    def test_rollback(self) -> None:
        mark = Watermark(["a"])
        mark.mark("a", 5, 0)
        mark.move({})
        mark.apply()
        mark.mark("a", 50, 0)
        mark.move({})
        mark.rollback()
        assert (mark.low, mark.high) == (5, 5)


class TestChangelog:
    """Rewritten in rounds: what a restore finds is always the state."""

    @pytest.mark.parametrize("seed", range(4))
    def test_a_restore_gives_the_state_whatever_was_rewritten(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(changelogs, "SMALL", 10)
        monkeypatch.setattr(changelogs, "CHUNK", 200)
        rng = random.Random(seed)
        store = penstock.open_logs("memory://")
        declared = [Value("v", int), List("l", int), Map("m", int)]

        @computation("c", inputs="in", states=declared)
        def made(record: Any, ctx: Any) -> None: ...

        @made.timer
        def rings(timer: Any, ctx: Any) -> None: ...

        topology = Topology("t").stream("in").add(made)
        ResolvedTopology(topology, store)
        node = topology.nodes["c"]

        def fresh() -> Any:
            cells = {one.name: one.cell() for one in declared}
            timers, mark = Timers(), Watermark(["in"])
            log = Changelog(node.computation, place)
            payloads, start, end = state_payloads(store, place)
            log.restore(payloads, cells, timers, mark, inputs={}, start=start, end=end)
            return cells, timers, mark, log

        place = store.partitions(state_log("c"))[0]
        cells, timers, mark, log = fresh()
        for number in range(150):
            for _ in range(rng.randint(1, 6)):
                key = f"k{rng.randrange(6)}"
                for cell in cells.values():
                    cell.scope.key_text = key
                value, items, held = cells["v"], cells["l"], cells["m"]
                what, number_in, sub = rng.randrange(8), rng.randrange(99), str(rng.randrange(4))
                if what == 0:
                    value.set(number_in)
                elif what == 1:
                    value.clear()
                elif what == 2:
                    items.append(number_in)
                elif what == 3:
                    items.replace(items.items()[1:])
                elif what == 4:
                    held.set(sub, 1)
                elif what == 5:
                    held.delete(sub)
                elif what == 6:
                    timers.set("event", key, "t", number_in)
                else:
                    timers.clear("event", key, "t")
            changes = [entry for cell in cells.values() for entry in cell.changes()]
            changes += changelogs.timer_changes(timers)
            if not changes:
                continue
            with store.transaction() as tx:
                tx.append_many(place.log, log.records(changes, cells, timers, mark, {"in": number}), bytes, partition=0)
                done = tx.commit()
            for cell in cells.values():
                cell.apply()
            timers.apply()
            start = log.written(done.offsets[place][-1] + 1)
            if start is not None:
                cut_state_log(store, place, start)
            if rng.random() < 0.1:
                before = dump(cells, timers)
                cells, timers, mark, log = fresh()
                assert dump(cells, timers) == before
        assert dump(*fresh()[:2]) == dump(cells, timers)
        assert store.bounds_of(place).start > 0, "the beginning was let go"

    def test_what_is_no_state_is_told(self) -> None:
        store = penstock.open_logs("memory://")
        make_state_log(store, "c", 1)
        with store.appender("c.state", bytes) as out:
            out.append(b"hello")
        with pytest.raises(PenstockError, match="not a state change"):
            last_change(store, store.partitions("c.state")[0])


def dump(cells: Any, timers: Timers) -> Any:
    found = [entry for cell in cells.values() for place in cell.places() for entry in cell.entries(*place)]
    return items_of(found), {place: timers.at(place) for place in timers.places()}
