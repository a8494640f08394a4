"""Cells of state against a plain model: whatever was kept, dropped, taken back or restored, and at what cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec import JsonCodec
from penstock.stream.engine.cells import ListCell, MapCell
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.value_cell import ValueCell
from penstock.stream.state import Declared, List, Map, Value

KEYS = st.sampled_from(["ann", "bob", ""])
SUBS = st.sampled_from(["a", "b", "c", "ä", ""])
NUMBERS = st.integers(0, 9)
ENDINGS = st.sampled_from(["commit", "rollback", "restore"]).map(lambda ending: (ending,))


class CountingCodec:
    """JSON numbers, and how often one was read."""

    name = "json"
    type_name = "int"

    def __init__(self) -> None:
        self.decodes = 0
        self._codec: JsonCodec[int] = JsonCodec(int)

    def encode(self, value: int) -> bytes:
        return self._codec.encode(value)

    def decode(self, payload: bytes) -> int:
        self.decodes += 1
        return self._codec.decode(payload)


def counted(declared: Declared[Any]) -> tuple[Any, CountingCodec]:
    """A cell whose decodes are counted."""
    codec = CountingCodec()
    declared._codec = codec
    return declared.cell(), codec


def commit(cell: Any) -> list[Entry]:
    changes = list(cell.changes())
    cell.apply()
    return changes


def restored(declared: Declared[Any], cell: Any) -> Any:
    """Another cell with what one has kept, in another order."""
    again = declared.cell()
    entries = [entry for place in cell.places() for entry in cell.entries(*place)]
    for entry in reversed(entries):
        again.load(entry)
    assert again.entry_count() == cell.entry_count() == sum(map(cell.weight, entries))
    return again


def ended(declared: Declared[Any], cell: Any, ending: str) -> Any:
    if ending == "rollback":
        cell.rollback()
        return cell
    commit(cell)
    return restored(declared, cell) if ending == "restore" else cell


MAP_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, SUBS, NUMBERS),
        st.tuples(st.just("delete"), KEYS, SUBS),
        st.tuples(st.sampled_from(["clear", "items", "length", "contains", "between", "get"]), KEYS),
        ENDINGS,
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(MAP_STEPS)
def test_a_map_is_a_dict_for_each_key(steps: list[tuple[Any, ...]]) -> None:
    declared: Map[int] = Map("m", int)
    cell: MapCell = declared.cell()
    model: dict[str, dict[str, int]] = {}
    kept: dict[str, dict[str, int]] = {}
    for name, *given_ in steps:
        if name in ("commit", "rollback", "restore"):
            cell = ended(declared, cell, name)
            if name == "rollback":
                model = {key: dict(items) for key, items in kept.items()}
            kept = {key: dict(items) for key, items in model.items()}
            continue
        cell.scope.key_text = given_[0]
        items = model.setdefault(given_[0], {})
        if name == "set":
            cell.set(*given_[1:])
            items[given_[1]] = given_[2]
        elif name == "delete":
            cell.delete(given_[1])
            items.pop(given_[1], None)
        elif name == "clear":
            cell.clear()
            items.clear()
        elif name == "items":
            assert list(cell.items().items()) == sorted(items.items())
        elif name == "length":
            assert (len(cell), bool(cell)) == (len(items), bool(items))
        elif name == "contains":
            assert [sub in cell for sub in ("a", "ä", "x")] == [sub in items for sub in ("a", "ä", "x")]
        elif name == "between":
            assert cell.between("a", "c") == sorted((sub, n) for sub, n in items.items() if "a" <= sub < "c")
        else:
            assert [cell.get(sub) for sub in ("a", "b", "x")] == [items.get(sub) for sub in ("a", "b", "x")]
    for key, items in model.items():
        cell.scope.key_text = key
        assert cell.items() == items
        assert len(cell) == len(items)


LIST_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), KEYS, NUMBERS),
        st.tuples(st.sampled_from(["extend", "replace"]), KEYS, st.lists(NUMBERS, max_size=4)),
        st.tuples(st.sampled_from(["clear", "items", "length"]), KEYS),
        ENDINGS,
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(LIST_STEPS)
def test_a_list_is_a_list_for_each_key(steps: list[tuple[Any, ...]]) -> None:
    declared: List[int] = List("l", int)
    cell: ListCell = declared.cell()
    model: dict[str, list[int]] = {}
    kept: dict[str, list[int]] = {}
    for name, *given_ in steps:
        if name in ("commit", "rollback", "restore"):
            cell = ended(declared, cell, name)
            if name == "rollback":
                model = {key: list(items) for key, items in kept.items()}
            kept = {key: list(items) for key, items in model.items()}
            continue
        cell.scope.key_text = given_[0]
        items = model.setdefault(given_[0], [])
        if name == "append":
            cell.append(given_[1])
            items.append(given_[1])
        elif name == "extend":
            cell.extend(given_[1])
            items.extend(given_[1])
        elif name == "replace":
            cell.replace(given_[1])
            items[:] = given_[1]
        elif name == "clear":
            cell.clear()
            items.clear()
        elif name == "items":
            assert cell.items() == items == list(cell)
        else:
            assert (len(cell), bool(cell)) == (len(items), bool(items))
    for key, items in model.items():
        cell.scope.key_text = key
        assert cell.items() == items


VALUE_STEPS = st.lists(
    st.one_of(st.tuples(st.just("set"), KEYS, NUMBERS), st.tuples(st.sampled_from(["clear", "get"]), KEYS), ENDINGS),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(VALUE_STEPS)
def test_a_value_is_there_or_not_for_each_key(steps: list[tuple[Any, ...]]) -> None:
    declared: Value[int] = Value("v", int, -1)
    cell: ValueCell = declared.cell()
    model: dict[str, int] = {}
    kept: dict[str, int] = {}
    for name, *given_ in steps:
        if name in ("commit", "rollback", "restore"):
            cell = ended(declared, cell, name)
            model = dict(kept) if name == "rollback" else model
            kept = dict(model)
            continue
        cell.scope.key_text = given_[0]
        assert bool(cell) == (given_[0] in model)
        if name == "set":
            cell.set(given_[1])
            model[given_[0]] = given_[1]
        elif name == "clear":
            cell.clear()
            model.pop(given_[0], None)
        else:
            assert cell.get() == model.get(given_[0], -1)
        assert bool(cell) == (given_[0] in model)


# --- what it costs -----------------------------------------------------------------------------------------

MANY = 5_000


@pytest.fixture
def large_map() -> tuple[MapCell, CountingCodec]:
    cell, codec = counted(Map("m", int))
    for number in range(MANY):
        cell.set(f"{number:04d}", number)
    commit(cell)
    codec.decodes = 0
    return cell, codec


def test_a_large_map_is_not_read_for_what_does_not_need_it(large_map: tuple[MapCell, CountingCodec]) -> None:
    cell, codec = large_map
    cell.scope.strict = False  # a strict cell reads back what it is given, and only that
    cell.set("new", 1)
    cell.delete("0001")
    assert (len(cell), "0002" in cell, "0001" in cell, bool(cell)) == (MANY, True, False, True)
    assert len(commit(cell)) == 2
    assert codec.decodes == 0


def test_an_item_of_a_large_map_is_one_read(large_map: tuple[MapCell, CountingCodec]) -> None:
    cell, codec = large_map
    assert cell.get("0042") == cell.get("0042") == 42
    assert cell.get("none") is None
    assert codec.decodes == 1


def test_a_range_of_a_large_map_reads_what_is_in_it(large_map: tuple[MapCell, CountingCodec]) -> None:
    cell, codec = large_map
    assert cell.between("0100", "0103") == [("0100", 100), ("0101", 101), ("0102", 102)]
    cell.delete("0101")
    cell.set("01015", 7)
    assert [sub for sub, _ in cell.between("0100", "0103")] == ["0100", "01015", "0102"]
    commit(cell)
    assert [sub for sub, _ in cell.between("0100", "0103")] == ["0100", "01015", "0102"]
    assert codec.decodes == 6
    codec.decodes = 0
    assert cell.last_before("0101") == ("0100", 100)
    assert cell.last_before("0050") == ("0049", 49)
    assert cell.last_before("0000") is None
    assert codec.decodes == 1, "one of the two was read before"


def test_appending_to_a_large_list_reads_none_of_it() -> None:
    cell, codec = counted(List("l", int))
    cell.extend(range(MANY))
    commit(cell)
    for number in range(10):
        cell.append(number)
        assert len(cell) == MANY + number + 1
        assert len(commit(cell)) == 1
    assert codec.decodes == 0
    cell.clear()
    assert not cell
    assert commit(cell) == [Entry("l", "", "0", None)]
    assert codec.decodes == 0


class CountingDict(dict[Any, Any]):
    """Counts the items that somebody walks over."""

    visited = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.visited += 1
            yield item


@pytest.mark.parametrize("ttl", [None, "10s"])
@pytest.mark.parametrize("kind", [List, Map])
def test_length_and_truth_visit_no_items(kind: type[Declared[Any]], ttl: str | None) -> None:
    """Whatever the work has changed so far."""
    cell: Any = kind("s", int, ttl=ttl).cell()
    for number in range(100):
        cell.append(number) if kind is List else cell.set(str(number), number)
    commit(cell)
    items = cell._committed[""] = CountingDict(cell._committed[""])
    for number in range(100, 110):
        cell.append(number) if kind is List else cell.set(str(number), number)
        assert (len(cell), bool(cell)) == (number + 1, True)
        commit(cell)
        assert (len(cell), bool(cell)) == (number + 1, True)
    if kind is Map:
        cell.delete("3")
        cell.delete("109")
        cell.set("3", 3)
        assert (len(cell), bool(cell)) == (109, True)
    cell.rollback()
    assert (len(cell), bool(cell)) == (110, True)
    assert items.visited == 0


def test_length_of_a_map_with_ends_visits_what_has_ended() -> None:
    cell = Map("m", int, ttl="10s").cell()
    for number in range(100):
        cell.scope.now = number * 1_000_000
        cell.set(str(number), number)
        commit(cell)
        expire(cell, cell.scope.now - 50_000_000)
    items = cell._committed[""] = CountingDict(cell._committed[""])
    assert (len(cell), len(items)) == (10, 60)
    cell.scope.now += 1_000_000
    assert len(cell) == 9
    assert items.visited == 0


# --- what has an end ------------------------------------------------------------------------------------------


def write(cell: Any, number: int) -> None:
    """One more item, or another value."""
    if isinstance(cell, ListCell):
        cell.append(number)
    elif isinstance(cell, MapCell):
        cell.set("a", number)
    else:
        cell.set(number)


def expire(cell: Any, now: int) -> list[Entry]:
    """What a checkpoint at this time drops."""
    return [entry for place in cell.expired(now) if (entry := cell.forget(*place)) is not None]


@pytest.mark.parametrize("declared", [List("l", int, ttl="10s"), Map("m", int, ttl="10s"), Value("v", int, ttl="10s")])
def test_what_ends_while_it_is_written_is_written(declared: Declared[Any]) -> None:
    """The work began before the end, the checkpoint comes after it."""
    cell: Any = declared.cell()
    cell.scope.now = 0
    write(cell, 1)
    commit(cell)
    cell.scope.now = 9_000_000
    write(cell, 2)
    assert expire(cell, 11_000_000) == []
    commit(cell)
    cell.scope.now = 12_000_000
    again = restored(declared, cell)
    again.scope.now = 12_000_000
    for each in (cell, again):
        assert bool(each)
        if declared.kind == "list":
            assert each.items() == [1, 2]
        else:
            assert (each.get("a") if declared.kind == "map" else each.get()) == 2
    assert len(expire(cell, 19_000_000)) == 1
    commit(cell)
    assert not cell
    assert cell.entry_count() == 0


@pytest.mark.parametrize("declared", [List("l", int, ttl="10s"), Map("m", int, ttl="10s"), Value("v", int, ttl="10s")])
def test_a_failed_write_does_not_put_off_the_end(declared: Declared[Any]) -> None:
    cell: Any = declared.cell()
    write(cell, 1)
    commit(cell)
    cell.scope.now = 9_000_000
    write(cell, 2)
    assert expire(cell, 11_000_000) == []
    cell.rollback()
    cell.scope.now = 11_000_000
    assert not cell
    assert len(expire(cell, 11_000_000)) == 1
    assert cell.entry_count() == 0


def test_items_of_a_map_end_one_by_one() -> None:
    cell = Map("m", int, ttl="10s").cell()
    for number in range(5):
        cell.scope.now = number * 1_000_000
        cell.set(str(number), number)
        commit(cell)
    cell.scope.now = 12_000_000
    assert (len(cell), bool(cell), dict(cell.items())) == (2, True, {"3": 3, "4": 4})
    assert cell.between("0", "9") == [("3", 3), ("4", 4)]
    assert len(expire(cell, 12_000_000)) == 3
    assert cell.between("0", "9") == [("3", 3), ("4", 4)]
    assert list(itertools.islice(cell.places(), 9)) == [("", "3"), ("", "4")]


def test_an_item_that_is_written_after_its_end_is_there_once() -> None:
    cell = Map("m", int, ttl="10s").cell()
    for sub in ("a", "b"):
        cell.set(sub, 1)
    commit(cell)
    assert cell.between("a", "z") == [("a", 1), ("b", 1)]
    commit(cell)  # what was read counts as it was read until then
    cell.scope.now = 11_000_000
    cell.set("a", 2)
    assert (len(cell), cell.between("a", "z"), cell.last_before("z")) == (1, [("a", 2)], ("a", 2))


TTL_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, SUBS),
        st.tuples(st.sampled_from(["delete", "get", "ask"]), KEYS, SUBS),
        st.tuples(st.just("wait"), st.integers(1, 6)),
        ENDINGS,
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(TTL_STEPS)
def test_a_map_with_ends_has_as_many_items_as_it_contains(steps: list[tuple[Any, ...]]) -> None:
    declared: Map[int] = Map("m", int, ttl="10s")
    cell: MapCell = declared.cell()
    now = 0
    for name, *given_ in steps:
        if name in ("commit", "rollback", "restore"):
            if name != "rollback":
                expire(cell, now)
            cell = ended(declared, cell, name)
        elif name == "wait":
            now += given_[0] * 1_000_000
        else:
            cell.scope.key_text = given_[0]
            if name == "set":
                cell.set(given_[1], now)
            elif name == "delete":
                cell.delete(given_[1])
            elif name == "get":
                cell.get(given_[1])
            else:
                assert cell.between("", "~~") == [(sub, cell.get(sub)) for sub in ("", "a", "b", "c") if sub in cell]
                below = [sub for sub in ("", "a", "b") if sub in cell]
                assert cell.last_before("c") == ((below[-1], cell.get(below[-1])) if below else None)
        cell.scope.now = now
        assert len(cell) == sum(sub in cell for sub in ("a", "b", "c", "ä", ""))
        assert bool(cell) == (len(cell) > 0)


def test_asking_about_keys_that_have_nothing_leaves_nothing_behind() -> None:
    cell = Map("m", int).cell()
    for number in range(10):
        cell.scope.key_text = str(number)
        assert (cell.between("a", "b"), cell.last_before("a"), len(cell)) == ([], None, 0)
    assert not cell._sorted
