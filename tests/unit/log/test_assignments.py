"""Who reads which partition: the pure functions."""

import itertools

import pytest

from penstock.log import Partition
from penstock.log.group import ranges, round_robin, sticky


def partitions(**logs: int) -> list[Partition]:
    return [Partition(log, index) for log, count in logs.items() for index in range(count)]


def test_round_robin_deals_out() -> None:
    shares = round_robin(["a", "b", "c"], partitions(t0=16, t1=8, t2=1))
    assert [len(share) for share in shares.values()] == [9, 8, 8]
    shares = round_robin(["a", "b", "c"], partitions(t0=4, t1=5))
    assert [len(share) for share in shares.values()] == [3, 3, 3]
    assert shares["a"][0] == Partition("t0", 0)


def test_ranges_give_the_first_more() -> None:
    shares = ranges(list("abcde"), partitions(t0=16, t1=8, t2=1))
    assert len(shares["a"]) == 7
    assert sum(map(len, shares.values())) == 25


@pytest.mark.parametrize("assign", [round_robin, ranges])
def test_nobody_gets_nothing(assign: object) -> None:
    assert assign([], partitions(a=3)) == {}  # type: ignore[operator]
    assert assign(["x"], []) == {"x": []}  # type: ignore[operator]


@pytest.mark.parametrize(("members", "count"), list(itertools.product((1, 2, 3, 7, 20), (1, 3, 16, 100))))
def test_sticky_is_even_and_complete(members: int, count: int) -> None:
    shares = sticky({f"m{one}": ["log"] for one in range(members)}, {"log": count})
    owned = [one for share in shares.values() for one in share]
    assert sorted(owned) == partitions(log=count)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


def test_sticky_moves_only_what_must() -> None:
    names = [f"member-{one}" for one in range(8)]
    owners: dict[Partition, str] = {}
    for count in (1, 2, 3, 5, 8, 7, 4, 6):  # they come and go
        members = {one: ["log"] for one in names[:count]}
        shares = sticky(members, {"log": 100}, owners)
        now = {one: member for member, share in shares.items() for one in share}
        moved = [one for one, member in owners.items() if member in members and now[one] != member]
        spare = sum(max(0, list(owners.values()).count(one) - len(shares[one])) for one in members)
        assert len(moved) == spare, "nobody loses what it may keep"
        assert sorted(now) == partitions(log=100)
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1
        assert sticky(members, {"log": 100}, now) == shares, "settled"
        owners = now


def test_sticky_gives_only_what_is_wanted() -> None:
    shares = sticky({"a": ["x"], "b": ["y"], "c": ["x", "y"], "d": []}, {"x": 4, "y": 4, "z": 4})
    assert all(one.log in ("x", "y") for share in shares.values() for one in share)
    assert {one.log for one in shares["a"]} <= {"x"}
    assert shares["d"] == []
    assert sum(map(len, shares.values())) == 8
