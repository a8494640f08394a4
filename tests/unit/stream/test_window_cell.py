"""The windows of many keys: a plain dict of values by window and key, whatever is done to it one by one or together."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from penstock.errors import PayloadTooLarge, Undecodable, WrongType
from penstock.stream.engine import blocks
from penstock.stream.engine.state_store import Entry
from penstock.stream.engine.window_cell import ABSENT, Span, WindowCell
from penstock.stream.state import Windows
from penstock.stream.windows import OpenWindow

VALUES: list[Any] = [
    0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 80, None, 0.5, -0.0, 1e300, True, "text", "ä", [1, [2]],
    {"n": 1}, "long" * 50,
]  # fmt: skip
KEYS = ["", "a", "ä", "json:1", *(f"k{number}" for number in range(30))]
SPANS = [Span(start + size, start) for start in range(-2, 3) for size in (1, 2)]


def make(accumulator: Any = Any) -> WindowCell:
    cell = Windows("open", OpenWindow[accumulator]).cell()
    cell.scope.strict = False
    return cell


def seen(cell: WindowCell) -> dict[Any, Any]:
    """All that is open, with the types: True is not 1."""
    return {
        (window, key): repr(value)
        for window in cell.ended_by(100)
        for key, value in cell.values(window).items()
    }  # fmt: skip


def restored(log: list[Entry]) -> WindowCell:
    cell = make()
    for entry in log:
        cell.load(Entry(*msgspec.msgpack.decode(msgspec.msgpack.encode(tuple(entry)))))
    return cell


def pairs(held: list[Any], partials: Iterable[Any]) -> list[Any]:
    return [[value, partial] for value, partial in zip(held, partials, strict=True)]


def sums(held: list[Any], partials: Iterable[Any]) -> list[Any]:
    return [value + partial for value, partial in zip(held, partials, strict=True)]


class Model:
    """What is open, as of the last checkpoint and now."""

    def __init__(self) -> None:
        self.committed: dict[Any, Any] = {}
        self.now: dict[Any, Any] = {}

    def due(self) -> list[Any]:
        return sorted(self.now)

    def shown(self) -> dict[Any, Any]:
        return {place: repr(value) for place, value in self.now.items()}


def step(chance: random.Random, cell: WindowCell, model: Model) -> None:
    """Do something to both."""
    window, key = chance.choice(SPANS), chance.choice(KEYS)
    cell.scope.key_text = key
    what = chance.randrange(9)
    if what <= 2:
        model.now[window, key] = value = chance.choice(VALUES)
        cell.set(window, value)
    elif what == 3:
        model.now.pop((window, key), None)
        cell.delete(window)
    elif what <= 5:
        partials = {one: chance.choice(VALUES) for one in chance.sample(KEYS, chance.randrange(len(KEYS)))}
        for one, partial in partials.items():
            model.now[window, one] = [model.now.get((window, one), "new"), partial]
        cell.fold(window, partials, "new", pairs)
    elif what == 6 and model.now:
        for _ in range(chance.randrange(1, 4)):
            taken = cell.take(100)
            place = min(model.now, default=None)
            assert (taken and (taken[1], taken[0])) == place
            model.now.pop(place, None)
    elif what == 7 and model.now:
        window, key = chance.choice([*model.now, (window, key)])
        assert cell.take_one(key, window) is (model.now.pop((window, key), ABSENT) is not ABSENT)
        assert not cell.take_one(key, window)
    elif what == 8 and model.now:
        window = min(model.now)[0]
        cell.close(window)
        model.now = {place: value for place, value in model.now.items() if place[0] != window}


@pytest.mark.parametrize("seed", range(60))
def test_it_is_a_dict_by_window_and_key(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "KEYS", 7)
    monkeypatch.setattr(blocks, "AGAIN", 5)
    monkeypatch.setattr(blocks, "BYTES", 100)
    chance = random.Random(seed)
    cell, model = make(), Model()
    log: list[Entry] = []
    for _ in range(80):
        for _ in range(chance.randrange(6)):
            step(chance, cell, model)
            assert cell.next_end() == (min(model.now)[0].end if model.now else None)
            # A value of a window that was taken is still there for its timer; nothing else sees it.
            window, key = chance.choice([*model.now, (SPANS[0], "none")])
            cell.scope.key_text = key
            assert repr(cell.get(window, ABSENT)) == repr(model.now.get((window, key), ABSENT))
        assert seen(cell) == model.shown()
        if chance.random() < 0.3:
            cell.rollback()
            model.now = {**model.committed}
        elif chance.random() < 0.6:
            changes = cell.changes()
            if chance.random() < 0.2:
                # What this checkpoint changes is not written again with it.
                log = [entry for place in list(cell.places()) for entry in cell.entries(*place)]
            log += changes
            cell.apply()
            model.committed = {**model.now}
            if chance.random() < 0.3:
                cell = restored(log)
            assert cell.entry_count() == len(model.now)
        assert seen(cell) == model.shown()
        assert [place[::-1] for place in cell.open_windows()] == model.due()


def test_a_value_that_was_changed_in_place_is_forgotten() -> None:
    cell, window = make(), SPANS[0]
    cell.set(window, [1])
    cell.changes()
    cell.apply()
    cell.get(window).append(2)
    assert cell.get(window) == [1, 2]
    cell.rollback()
    assert cell.get(window) == [1]


def test_one_entry_says_that_a_window_has_closed_for_all_keys() -> None:
    cell = make()
    cell.fold(SPANS[0], dict.fromkeys(map(str, range(5000)), 1), 0, sums)
    entries = cell.changes()
    assert len(entries) == 5
    assert sum(map(cell.weight, entries)) == 5000
    cell.apply()
    cell.close(SPANS[0])
    [entry] = cell.changes()
    assert entry.payload is None


def test_large_values_come_in_entries_of_their_own() -> None:
    cell = make()
    cell.fold(SPANS[0], {str(number): "x" * 20_000 for number in range(20)}, "", sums)
    assert max(len(entry.payload or b"") for entry in cell.changes()) <= blocks.BYTES
    cell.apply()
    [place] = cell.places()
    assert max(len(entry.payload or b"") for entry in cell.entries(*place)) <= blocks.BYTES


def test_windows_that_are_taken_in_checkpoints_of_their_own_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure each window has a checkpoint of its own: with many keys they would be sorted for each."""
    cell = make()
    sorted_: list[Span] = []
    keys = WindowCell.keys

    def watched(self: WindowCell, window: Span) -> list[str]:
        sorted_.append(window)
        return keys(self, window)

    cell.fold(SPANS[0], dict.fromkeys(map(str, range(100)), 1), 0, sums)
    cell.changes()
    cell.apply()
    monkeypatch.setattr(WindowCell, "keys", watched)
    taken = []
    while (place := cell.take(100)) is not None:
        taken.append(place[0])
        cell.changes()
        cell.apply()
    assert taken == sorted(map(str, range(100)))
    assert len(sorted_) == 1


@pytest.mark.parametrize("accumulator", [int, Any])
def test_what_no_checkpoint_could_keep_is_refused(accumulator: Any) -> None:
    cell = make(accumulator)
    cell.scope.strict = True
    wrong: Any = "text" if accumulator is int else object()
    with pytest.raises(WrongType):
        cell.set(SPANS[0], wrong)
    cell.scope.limit = 10
    with pytest.raises(PayloadTooLarge):
        cell.set(SPANS[0], 12345678901234567890)
    cell.scope.key_text = "\ud800"
    with pytest.raises(Undecodable):
        cell.set(SPANS[0], 1)
    cell.scope.strict = False
    cell.set(SPANS[0], 1)
    with pytest.raises(Undecodable, match="not UTF-8"):
        cell.changes()
    cell.rollback()
    assert cell.next_end() is None


def test_what_is_no_block_is_told() -> None:
    with pytest.raises(Undecodable, match="values of state open cannot be read"):
        make().load(Entry("open", "", "0/1", b"?"))
