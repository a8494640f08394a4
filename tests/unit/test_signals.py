"""Signals: the hub by itself; what stores and workers tell is part of the contract suite."""

import logging

import pytest

from penstock import Signal, Signals
from penstock.errors import BadInput
from penstock.signals import KINDS


def test_told_to_those_who_listen_for_the_kind() -> None:
    hub, puts, everything = Signals(), [], []
    hub.subscribe(puts.append, "put")
    hub.subscribe(everything.append)
    hub.tell("put", "q", ("a", "b"), 5, seconds=0.5, created=2)
    hub.tell("locked", "q", (), 6)
    assert puts == [Signal("put", "q", ("a", "b"), 5, 0.5, 2, {"created": 2})]
    assert [one.kind for one in everything] == ["put", "locked"]


def test_wants_is_false_while_nobody_listens() -> None:
    hub = Signals()
    assert not any(hub.wants(kind) for kind in KINDS)
    end = hub.subscribe(lambda signal: None, "put")
    assert hub.wants("put")
    assert not hub.wants("settled")
    end()
    assert not hub.wants("put")
    end()


def test_totals_count_ids_or_calls() -> None:
    hub = Signals()
    hub.tell("put", "q", ("a", "b"), 0)
    hub.tell("locked", "q", (), 0)
    hub.count("settled", 7)
    assert hub.totals == {"put": 2, "locked": 1, "settled": 7}


def test_a_listener_that_fails_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    hub, heard = Signals(), []

    def bad(signal: Signal) -> None:
        raise RuntimeError("oh")

    hub.subscribe(bad, "put")
    hub.subscribe(heard.append, "put")
    with caplog.at_level(logging.ERROR):
        hub.tell("put", "q", ("a",), 0)
    assert len(heard) == 1
    assert "put" in caplog.text


def test_the_same_listener_twice_is_two_until_it_ends() -> None:
    hub, heard = Signals(), []
    first = hub.subscribe(heard.append, "put")
    hub.subscribe(heard.append, "locked")
    first()
    hub.tell("put", "q", (), 0)
    hub.tell("locked", "q", (), 0)
    assert [one.kind for one in heard] == ["locked"]


def test_unknown_kinds_are_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="lease_lost"):
        Signals().subscribe(lambda signal: None, "put", "finished")


def test_a_listener_may_subscribe_and_end_while_it_is_told() -> None:
    hub, heard = Signals(), []

    def once(signal: Signal) -> None:
        heard.append(signal.kind)
        end()
        hub.subscribe(lambda other: heard.append("later"), "put")

    end = hub.subscribe(once, "put")
    hub.tell("put", "q", (), 0)
    hub.tell("put", "q", (), 0)
    assert heard == ["put", "later"]


def test_the_table_in_the_docstring_names_every_kind() -> None:
    import penstock.signals

    listed = {
        line.split()[0] for line in (penstock.signals.__doc__ or "").splitlines() if line[:1].isalpha() and "  " in line
    }
    assert listed >= KINDS
