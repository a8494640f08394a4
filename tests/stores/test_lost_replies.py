"""Replies that are lost on a real wire: what may have happened is called unknown, and asking again tells the truth."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES, Servers
from tests.stores.own_servers import claim, eventually, persistently
from tests.stores.wire_proxy import Proxy

from penstock import QueueStore, failpoints, open_queues
from penstock.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from penstock.ids import new_nonce
from penstock.queue.drivers.zookeeper import ZookeeperDriver
from penstock.queue.protocol import ClaimRequest, Ending, Find, Source, Step, StepDone

BEFORE_SENDING = {"postgres": "commit.before", "mysql": "commit.before", "redis": "redis.before"}
BEFORE_SENDING["zookeeper"] = "zookeeper.before"
OPTIONS = {
    "postgres": "reply_timeout=3s&timeout=3s",
    "mysql": "reply_timeout=3s&timeout=3s",
    "redis": "timeout=1s&connect_timeout=1s",
    "zookeeper": "session=20s",
}


class Wire:
    """A store behind a wire that swallows what the server says once a call is on its way."""

    def __init__(self, kind: str, proxy: Proxy, store: QueueStore, direct: QueueStore) -> None:
        self.kind, self.proxy, self.store, self.direct = kind, proxy, store, direct

    def lose_next_reply(self) -> None:
        """Let the next change reach the server, and nothing come back from then on."""

        def strike(point: str) -> None:
            if point == BEFORE_SENDING[self.kind]:
                failpoints.arm(None)
                self.lose_all()

        failpoints.arm(strike)

    def lose_all(self) -> None:
        self.proxy.cut_replies = 1_000_000

    def take_down(self) -> None:
        """Cut the wire for good; a client that waits for replies all the time has noticed that."""
        self.proxy.down = True
        self.proxy.cut_all()
        if isinstance(self.store.driver, ZookeeperDriver):
            connection = self.store.driver.connection
            eventually(lambda: not connection.connected, "the connection is gone")

    def heal(self) -> None:
        failpoints.arm(None)
        self.proxy.cut_replies = 0
        self.proxy.down = False


@pytest.fixture(params=list(BEFORE_SENDING))
def wire(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[Wire]:
    place, port = STORES[request.param](tmp_path, servers), servers(request.param).port
    proxy = Proxy(port)
    url = place.url.replace(f":{port}", f":{proxy.port}")
    url += ("&" if "?" in url else "?") + OPTIONS[request.param]
    with open_queues(url, node="one") as store, open_queues(place.url, node="two") as direct:
        if isinstance(store.driver, ZookeeperDriver):
            store.driver.address.patience = 2.0  # not before it is open, which takes longer on a busy machine
        made = Wire(request.param, proxy, store, direct)
        yield made
        made.heal()
    proxy.close()


def test_a_unit_whose_reply_was_lost_says_what_happened(wire: Wire) -> None:
    orders, invoices = wire.store.queue("orders", int), wire.store.queue("invoices", int)
    orders.put_many([1, 2])
    with wire.store.unit() as unit:
        taken = unit.take(orders, limit=2)
        promised = [unit.put(invoices, number) for number in range(3)]
        wire.lose_next_reply()
        with pytest.raises(OutcomeUnknown):
            unit.commit()
        eventually(lambda: len(wire.direct.driver.find(Find(queue="invoices"))) == 3, "it happened")
        wire.heal()
        done = persistently(unit.commit)
    assert [(one.id, one.created) for one in done.puts] == [(id_, True) for id_ in promised]
    assert [row.state for row in wire.direct.driver.history(Find())] == ["done"] * len(taken)
    assert len(wire.direct.driver.find(Find())) == 3


def test_a_put_whose_reply_was_lost_can_be_repeated(wire: Wire) -> None:
    queue = wire.store.queue("q", str)
    queue.put("before")
    wire.lose_next_reply()
    with pytest.raises(OutcomeUnknown):
        queue.put("x", id="mine")
    eventually(lambda: len(wire.direct.driver.find(Find(queue="q"))) == 2, "it happened")
    wire.heal()
    assert persistently(lambda: queue.put("x", id="mine")).created
    assert len(wire.direct.driver.find(Find(queue="q"))) == 2


@pytest.mark.parametrize("wire", ["postgres", "mysql"], indirect=True)  # the others do a round trip in one step
def test_a_server_that_is_gone_before_the_second_half_of_a_round_trip(wire: Wire) -> None:
    """One statement has ended what it could; the rest was left to a transaction that finds no server."""
    store = wire.store
    store.queue("q").put_many([1, 2])
    current, lost = claim(store, "q", limit=2).entries
    assert wire.direct.queue("q").cancel(lost.id, force=True) == 1
    steps = [Step((Ending(entry.lease, "done"),)) for entry in (current, lost)]
    following = ClaimRequest(new_nonce(), (Source("q", 1),), 1, "worker", "one", 60_000_000)

    def strike(point: str) -> None:
        if point == "claim.leased":
            failpoints.arm(None)
            wire.take_down()

    failpoints.arm(strike)
    with pytest.raises(OutcomeUnknown):
        store.driver.settle(steps, following)
    wire.heal()
    again = [Step(step.endings, repeat=True) for step in steps]
    done, late = persistently(lambda: store.driver.settle(again, following)).results
    assert isinstance(done, StepDone)
    assert isinstance(late, LeaseLost)
    assert [row.state for row in wire.direct.driver.history(Find(ids=(current.id,)))] == ["done"]


def test_a_settle_and_a_claim_whose_replies_were_lost(wire: Wire) -> None:
    store = wire.store
    store.queue("q").put_many([1, 2])
    [first] = claim(store, "q", limit=1).entries
    wire.lose_next_reply()
    with pytest.raises(OutcomeUnknown):
        store.driver.commit(Step((Ending(first.lease, "done"),)))
    eventually(lambda: wire.direct.driver.history(Find()), "it happened")
    wire.heal()
    persistently(lambda: store.driver.commit(Step((Ending(first.lease, "done"),), repeat=True)))
    wire.lose_next_reply()
    with pytest.raises(OutcomeUnknown):
        claim(store, "q", id="this-claim", limit=1)
    eventually(lambda: wire.direct.driver.find(Find(states=("leased",))), "it happened")
    wire.heal()
    [second] = persistently(lambda: claim(store, "q", id="this-claim", limit=1, repeat=True)).entries
    assert second.attempt == 1


def test_a_call_that_was_never_sent_is_not_in_doubt(wire: Wire) -> None:
    queue = wire.store.queue("q", str)
    queue.put("before")
    wire.take_down()
    with pytest.raises(StoreUnavailable):
        queue.put("x")
    assert len(wire.direct.driver.find(Find(queue="q"))) == 1
    wire.heal()
    assert persistently(lambda: queue.put("y")).created


@pytest.mark.parametrize("look", ["find", "counts", "locks", "dead", "history"])
def test_what_changes_nothing_is_never_in_doubt(wire: Wire, look: str) -> None:
    wire.store.queue("q", str).put("x")
    calls: dict[str, Callable[[], Any]] = {
        "find": lambda: wire.store.driver.find(Find()),
        "counts": lambda: wire.store.counts(queue="q"),
        "locks": lambda: wire.store.locks("q"),
        "dead": lambda: wire.store.driver.dead(Find()),
        "history": lambda: wire.store.driver.history(Find()),
    }
    wire.lose_all()
    with pytest.raises(StoreUnavailable):
        calls[look]()
