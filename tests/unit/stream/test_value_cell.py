"""Values of many keys: a plain dict, whatever is done to them one by one or together, and whoever has written them."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from penstock.errors import SchemaMismatch, Undecodable, WrongType
from penstock.stream import Topology, Value, computation
from penstock.stream.engine import blocks
from penstock.stream.engine.changelog import Change, check_shapes, shapes_of, upgraded
from penstock.stream.engine.state_store import Cell, Entry
from penstock.stream.engine.value_cell import BLOCK, ValueCell


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


NUMBERS: list[Any] = [0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 63, (1 << 64) - 1]
FLOATS: list[Any] = [0.5, -0.0, 0.0, 1e300, 5e-324, 3.0]
VALUES: dict[Any, list[Any]] = {
    int: NUMBERS, float: FLOATS, str: ["", "ä", "long" * 50], bytes: [b"", b"\xff", b"1"],
    Point: [Point(1), Point(2, 0.5)], list[int]: [[], [1, 2]],
    Any: [*NUMBERS, *FLOATS, None, True, False, "text", [1, [2]], {"n": 1}, "long" * 50],
}  # fmt: skip
KEYS = ["", "a", "ä", "json:1", "*", *(f"k{number}" for number in range(30))]


def pairs(held: list[Any], partials: Iterable[Any]) -> list[Any]:
    return [[value, partial] for value, partial in zip(held, partials, strict=True)]


def make(type_: Any, ttl: str | None = None) -> ValueCell:
    cell: ValueCell = Value("v", type_, ttl=ttl).cell()
    cell.scope.strict = False
    cell.scope.now = 1
    return cell


def seen(cell: ValueCell) -> dict[str, str]:
    """The value of each key, with its type: True is not 1."""
    found = {}
    for key in KEYS:
        cell.scope.key_text = key
        if cell:
            found[key] = repr(cell.get())
    return found


def shown(model: dict[str, Any]) -> dict[str, str]:
    return {key: repr(value) for key, value in model.items()}


def step(chance: random.Random, cell: ValueCell, model: dict[str, Any], values: list[Any]) -> None:
    """Do something to both."""
    cell.scope.key_text = key = chance.choice(KEYS)
    what = chance.randrange(5)
    if what <= 1:
        model[key] = value = chance.choice(values)
        cell.set(value)
    elif what == 2:
        model.pop(key, None)
        cell.clear()
    elif what == 3:
        assert repr(cell.get("none")) == repr(model.get(key, "none"))
    elif None in values:  # what a fold gives is of any type
        some = {one: chance.choice(values) for one in chance.sample(KEYS, chance.randrange(len(KEYS)))}
        cell.fold(list(some), some.values(), "new", pairs)
        for one, partial in some.items():
            held = model.get(one)
            model[one] = ["new" if held is None else held, partial]


def old_changes(cell: ValueCell) -> list[Entry]:
    """What older versions write: an entry for each key. The state goes on with what comes back from it."""
    entries = Cell.changes(cell)
    cell._ready_block = {}, []
    return entries


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("type_", VALUES, ids=str)
def test_it_is_a_dict_by_key(type_: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in blocks, and now and then by an older version, one by one; read back, and rewritten all the time."""
    monkeypatch.setattr(blocks, "KEYS", 7)
    monkeypatch.setattr(blocks, "AGAIN", 5)
    monkeypatch.setattr(blocks, "BYTES", 100)
    chance = random.Random(seed)
    cell = make(type_)
    now: dict[str, Any] = {}
    committed: dict[str, Any] = {}
    log: list[Entry] = []
    for _ in range(60):
        for _ in range(chance.randrange(8)):
            step(chance, cell, now, VALUES[type_])
        assert seen(cell) == shown(now)
        if chance.random() < 0.3:
            cell.rollback()
            now = {**committed}
        elif chance.random() < 0.7:
            changes = cell.changes() if chance.random() < 0.7 else old_changes(cell)
            if chance.random() < 0.2:
                # What this checkpoint changes is not written again with it.
                log = [entry for place in list(cell.places()) for entry in cell.entries(*place)]
            log += changes
            cell.apply()
            committed = {**now}
            if chance.random() < 0.4:
                cell = make(type_)
                for entry in log:
                    cell.load(Entry(*msgspec.msgpack.decode(msgspec.msgpack.encode(tuple(entry)))))
            assert cell.entry_count() == len(now)
        assert seen(cell) == shown(now)


def test_many_keys_are_few_entries() -> None:
    cell = make(int)
    cell.fold([str(number) for number in range(5000)], range(5000), 0, lambda held, partials: list(partials))
    entries = cell.changes()
    assert [entry.sub for entry in entries] == [BLOCK] * 5
    assert sum(map(cell.weight, entries)) == 5000
    cell.apply()
    assert sum(len(list(cell.entries(*place))) for place in cell.places()) == 20
    cell.scope.key_text = "7"
    cell.clear()
    [entry] = cell.changes()
    assert cell.weight(entry) == 1


def test_a_value_that_was_changed_in_place_is_forgotten() -> None:
    cell = make(list[int])
    cell.set([1])
    cell.changes()
    cell.apply()
    cell.get().append(2)
    assert cell.get() == [1, 2]
    cell.rollback()
    assert cell.get() == [1]


def test_a_wrong_value_fails_with_the_checkpoint_and_nothing_is_kept() -> None:
    cell = make(int)
    cell.fold(["a", "b"], [1, "two"], 0, lambda held, partials: list(partials))
    with pytest.raises(WrongType):
        cell.changes()
    cell.rollback()
    assert seen(cell) == {}
    cell.scope.key_text = "\ud800"
    cell.set(1)
    with pytest.raises(Undecodable, match="not UTF-8"):
        cell.changes()


def test_values_get_ends_and_lose_them() -> None:
    """A state may lose its ttl, and get one again: what was written in between has no end."""
    log: list[Entry] = []
    for number, (ttl, known) in enumerate([("10s", None), (None, 0), ("10s", 1)]):
        cell = make(int, ttl)
        for entry in log:
            cell.load(entry)
        cell.scope.now = 60_000_000 * number
        cell.scope.key_text = "a"
        assert cell.get(None) == known
        if number < 2:
            cell.set(number)
            log += cell.changes()


class TestVersions:
    @staticmethod
    def node(version: int = 1, type_: Any = int, **options: Any) -> Any:
        @computation("c", inputs="in", states=[Value("v", type_)], version=version, **options)
        def made(record: Any, ctx: Any) -> None: ...

        return Topology("t").stream("in").add(made).nodes["c"].computation

    def test_older_versions_refuse_what_they_cannot_read(self) -> None:
        """They compare shapes."""
        assert shapes_of(self.node()) == {"v": "value of int, in blocks"}

    def test_what_older_versions_wrote_is_taken(self) -> None:
        check_shapes(self.node(), Change(1, {"v": "value of int"}))
        check_shapes(self.node(), Change(1, shapes_of(self.node())))
        with pytest.raises(SchemaMismatch, match="kept as value of str, in blocks and declared as value of int"):
            check_shapes(self.node(), Change(1, shapes_of(self.node(type_=str))))

    def test_values_in_blocks_are_upgraded(self) -> None:
        class Two(type(self.node())):  # type: ignore[misc]
            name, inputs, version, states = "c", "in", 2, (Value("v", str),)

            def process(self, record: Any, ctx: Any) -> None: ...

            def upgrade(self, version: int, state: str, key: str, value: Any) -> Any:
                return None if value == 3 else f"{key}={value!r}"

        before = make(Any)
        before.fold(["a", "b", "c", "d"], [1, 3, [1], 0.5], 0, lambda held, partials: list(partials))
        cell = make(str)
        for entry in before.changes():
            cell.load(upgraded(Two(), entry, cell, 1))
        assert seen(cell) == {"a": "'a=1'"}
        assert cell.entry_count() == 3
        cell.scope.key_text = "d"
        assert cell.get() == "d=0.5"

    def test_what_is_not_json_says_so(self) -> None:
        class Two(type(self.node())):  # type: ignore[misc]
            name, inputs, version, states = "c", "in", 2, (Value("v", bytes),)

            def process(self, record: Any, ctx: Any) -> None: ...

        before = make(bytes)
        before.scope.key_text = "a"
        before.set(b"\xff\x00")
        [entry] = before.changes()
        with pytest.raises(Undecodable):
            upgraded(Two(), entry, make(bytes), 1)


def test_what_is_no_block_is_told() -> None:
    with pytest.raises(Undecodable, match="values of state v cannot be read"):
        make(int).load(Entry("v", "", BLOCK, b"?"))
