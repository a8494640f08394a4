"""An auction house, as public benchmarks of stream processors have it: its events, ten queries, and what they give.

The events are people, auctions and bids, a little out of order. Each query is a few ready-made pieces; where a query is
more than those, it is one computation with timers. What a query gives is computed once more here, in plain Python over
all events at once. Results are compared without their order, and of totals the last one of each key.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.log.store import LogStore
from penstock.stream import (
    Context,
    List,
    Session,
    Sliding,
    Timer,
    Topology,
    Tumbling,
    computation,
    filter_values,
    map_values,
    regular_join,
    rekey,
    running_fold,
    table_join,
    window_join,
    windowed_count,
    windowed_top,
)

PARTITIONS = 3
MILLISECOND, SECOND = 1_000, 1_000_000
BEGIN = 1_700_000_000 * SECOND
DISORDER = 2 * SECOND
NEAR = ("OR", "ID", "CA")
CATEGORY = 10
HOT = Sliding("10s", "2s")
TEN_SECONDS = Tumbling("10s")
PAUSE = "1500ms"
LAST_SALES = 10


class Person(msgspec.Struct, frozen=True):
    id: int
    name: str
    state: str


class Auction(msgspec.Struct, frozen=True):
    id: int
    seller: int
    category: int
    opens: int
    closes: int


class Bid(msgspec.Struct, frozen=True):
    auction: int
    bidder: int
    price: int
    at: int


class Sale(msgspec.Struct, frozen=True):
    """What an auction brought; ``price`` is that of the highest bid, the earlier one of two equal ones."""

    auction: int
    seller: int
    category: int
    price: int
    closes: int


Event = tuple[int, str, str, Any]  # time, stream, key, value
Result = list[Any]


def events(count: int, seed: int) -> list[Event]:
    """One person to three auctions to 46 bids; read in another order than they happened."""
    chance = random.Random(seed)
    people: list[Person] = []
    auctions: list[Auction] = []
    happened: list[Event] = []
    for number in range(count):
        at = BEGIN + number * 20 * MILLISECOND + chance.randrange(20) * MILLISECOND
        kind = number % 50
        if kind == 0 or not people:
            people.append(Person(len(people), f"name-{len(people)}", chance.choice(("OR", "ID", "CA", "WA", "NY"))))
            happened.append((at, "people", str(people[-1].id), people[-1]))
        elif kind < 4 or not auctions:
            seller = chance.choice(people[-10:]).id
            closes = at + chance.randrange(1, 12) * SECOND
            auctions.append(Auction(len(auctions), seller, chance.choice((10, 11, 12)), at, closes))
            happened.append((at, "auctions", str(auctions[-1].id), auctions[-1]))
        else:
            auction = chance.choice(auctions[-8:]).id
            bid = Bid(auction, chance.choice(people[-20:]).id, chance.randrange(1, 500), at)
            happened.append((at, "bids", str(auction), bid))
    return sorted(happened, key=lambda event: event[0] + chance.randrange(DISORDER // 2))


def append(logs: LogStore, read: list[Event]) -> None:
    """What is read next, in that order."""
    for stream in ("people", "auctions", "bids"):
        logs.create(stream, PARTITIONS)
        chosen = [event for event in read if event[1] == stream]
        if chosen:
            with logs.appender(stream) as out:
                out.append_many(
                    [value for _, _, _, value in chosen],
                    keys=[key for _, _, key, _ in chosen],
                    timestamps=[at for at, _, _, _ in chosen],
                )


def flow_of(*names: str) -> Topology:
    """The queries with these names, over the three streams."""
    flow = Topology("auctions", partitions=PARTITIONS)
    for name, kind in (("people", Person), ("auctions", Auction), ("bids", Bid)):
        flow.stream(name, kind, out_of_order="2s")
    if not {"prices", "sellers"}.isdisjoint(names):
        flow.stream("sales", Sale).add(sales)
    for name in names:
        QUERIES[name][0](flow)
    return flow


# --- the queries, each with its answer ---------------------------------------------------------------------------


def in_cents(flow: Topology) -> None:
    """Currencies: every bid at another price."""
    flow.stream("in-cents", int).add(map_values("in-cents", lambda bid: bid.price * 908, "bids", "in-cents"))


def all_in_cents(all_events: list[Event]) -> Result:
    return [value.price * 908 for _, stream, _, value in all_events if stream == "bids"]


def chosen(flow: Topology) -> None:
    """Selection: the bids of some auctions."""
    flow.stream("chosen", Bid).add(filter_values("chosen", lambda bid: bid.auction % 7 == 0, "bids", "chosen"))


def all_chosen(all_events: list[Event]) -> Result:
    return [plain(value) for _, stream, _, value in all_events if stream == "bids" and value.auction % 7 == 0]


def local(flow: Topology) -> None:
    """Local items: who sells something of a category near us, whenever they signed up."""
    flow.stream("near", Person).add(filter_values("near", lambda person: person.state in NEAR, "people", "near"))
    flow.stream("items", Auction).add(
        filter_values("items", lambda item: item.category == CATEGORY, "auctions", "items")
    )
    flow.stream("by-seller", Auction).add(rekey("by-seller", lambda item: str(item.seller), "items", "by-seller"))
    pairs = regular_join("local", "near", "by-seller", "local", joiner=lambda who, what: [who.name, who.state, what.id])
    flow.stream("local").add(pairs)


def all_local(all_events: list[Event]) -> Result:
    people = {value.id: value for _, stream, _, value in all_events if stream == "people"}
    return [
        [people[item.seller].name, people[item.seller].state, item.id]
        for _, stream, _, item in all_events
        if stream == "auctions" and item.category == CATEGORY and people[item.seller].state in NEAR
    ]


@computation(
    "sales", inputs=("auctions", "bids"), outputs="sales", states=[List("offers", list), List("item", Auction)]
)
def sales(record: Any, ctx: Context) -> None:
    """The highest bid of each auction, when it closes; bids may come before their auction does."""
    if ctx.stream == "auctions":
        ctx.list("item").append(record.value)
        ctx.set_timer(record.value.closes)
    else:
        bid = record.value
        ctx.list("offers").append([bid.price, -bid.at, bid.bidder])


@sales.timer
def close(timer: Timer, ctx: Context) -> None:
    [item] = ctx.list("item").items()
    offers = [offer for offer in ctx.list("offers").items() if item.opens <= -offer[1] < item.closes]
    if offers:
        sale = Sale(item.id, item.seller, item.category, max(offers)[0], item.closes)
        ctx.produce("sales", sale)


def all_sales(all_events: list[Event]) -> list[Sale]:
    offers = defaultdict(list)
    for _, stream, _, value in all_events:
        if stream == "bids":
            offers[value.auction].append(value)
    ended = []
    for _, stream, _, item in all_events:
        if stream == "auctions":
            prices = [bid.price for bid in offers[item.id] if item.opens <= bid.at < item.closes]
            if prices:
                ended.append(Sale(item.id, item.seller, item.category, max(prices), item.closes))
    return ended


def prices(flow: Topology) -> None:
    """Average price per category: how many sales, and their sum."""
    flow.stream("by-category", Sale).stream("prices", list)
    flow.add(rekey("by-category", lambda sale: str(sale.category), "sales", "by-category"))
    flow.add(running_fold("prices", "by-category", "prices", initial=[0, 0], fold=add_sale))


def add_sale(total: list[int], sale: Sale) -> list[int]:
    return [total[0] + 1, total[1] + sale.price]


def all_prices(all_events: list[Event]) -> Result:
    found: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for sale in all_sales(all_events):
        found[sale.category] = add_sale(found[sale.category], sale)
    return list(found.values())


def sellers(flow: Topology) -> None:
    """Average price per seller: what the last sales brought."""
    flow.stream("of-seller", Sale).stream("sellers", list)
    flow.add(rekey("of-seller", lambda sale: str(sale.seller), "sales", "of-seller"))
    flow.add(running_fold("sellers", "of-seller", "sellers", initial=[], fold=keep_last))


def keep_last(kept: list[list[int]], sale: Sale) -> list[list[int]]:
    return sorted([*kept, [sale.closes, sale.auction, sale.price]])[-LAST_SALES:]


def all_sellers(all_events: list[Event]) -> Result:
    found: dict[int, list[list[int]]] = defaultdict(list)
    for sale in all_sales(all_events):
        found[sale.seller] = keep_last(found[sale.seller], sale)
    return list(found.values())


def hot(flow: Topology) -> None:
    """Hot items: the auctions with most bids of each window; a window's counts all come at its last moment."""
    flow.stream("bids-per-item").stream("hot")
    flow.add(
        windowed_count(
            "bids-per-item", "bids", "bids-per-item", HOT,
            key=lambda window: "all", result=lambda window: [window.key, window.value],
        )
    )  # fmt: skip
    flow.add(
        windowed_top(
            "hot", "bids-per-item", "hot", Tumbling(HOT.every), 1, by=lambda counted: counted[1], ties="keep",
            result=lambda window: [window.end, sorted(window.value)],
        )
    )  # fmt: skip


def all_hot(all_events: list[Event]) -> Result:
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for at, stream, key, _ in all_events:
        if stream == "bids":
            first = at - at % (2 * SECOND)
            for start in range(first - 8 * SECOND, first + 1, 2 * SECOND):
                counts[start + 10 * SECOND][key] += 1
    return [
        [end, sorted([key, count] for key, count in counted.items() if count == max(counted.values()))]
        for end, counted in counts.items()
    ]


def highest(flow: Topology) -> None:
    """Highest bid: of each ten seconds, first per auction, then of all."""
    flow.stream("best", Bid).stream("highest")
    flow.add(
        windowed_top(
            "best", "bids", "best", TEN_SECONDS, 1, by=rank_of, key=lambda window: "all",
            result=lambda window: window.value[0],
        )
    )  # fmt: skip
    flow.add(
        windowed_top(
            "highest", "best", "highest", TEN_SECONDS, 1, by=rank_of, result=lambda window: plain(window.value[0])
        )
    )


def rank_of(bid: Bid) -> tuple[int, ...]:
    return (bid.price, -bid.at, bid.bidder)


def all_highest(all_events: list[Event]) -> Result:
    found: dict[int, Bid] = {}
    for at, stream, _, bid in all_events:
        if stream == "bids":
            start = at // (10 * SECOND)
            found[start] = max(found.get(start, bid), bid, key=rank_of)
    return [plain(bid) for bid in found.values()]


def newcomers(flow: Topology) -> None:
    """New users: who signed up and opened an auction in the same ten seconds."""
    flow.stream("opened", Auction).stream("newcomers")
    flow.add(rekey("opened", lambda item: str(item.seller), "auctions", "opened"))
    flow.add(
        window_join(
            "newcomers", "people", "opened", "newcomers", TEN_SECONDS,
            joiner=lambda who, what, window: [who.id, what.id, window.start],
        )
    )  # fmt: skip


def all_newcomers(all_events: list[Event]) -> Result:
    signed_up = {value.id: at // (10 * SECOND) for at, stream, _, value in all_events if stream == "people"}
    return [
        [item.seller, item.id, at - at % (10 * SECOND)]
        for at, stream, _, item in all_events
        if stream == "auctions" and signed_up[item.seller] == at // (10 * SECOND)
    ]


def visits(flow: Topology) -> None:
    """User sessions: how many bids somebody made without a longer pause."""
    flow.stream("of-bidder", Bid).stream("visits")
    flow.add(rekey("of-bidder", lambda bid: str(bid.bidder), "bids", "of-bidder"))
    flow.add(
        windowed_count(
            "visits", "of-bidder", "visits", Session(PAUSE),
            result=lambda window: [window.key, window.start, window.end, window.value],
        )
    )  # fmt: skip


def all_visits(all_events: list[Event]) -> Result:
    bids: dict[int, list[int]] = defaultdict(list)
    for at, stream, _, value in all_events:
        if stream == "bids":
            bids[value.bidder].append(at)
    pause, found = 1500 * MILLISECOND, []
    for bidder, times in bids.items():
        times.sort()
        start, count, last = times[0], 0, times[0]
        for at in times:
            if at - last > pause:
                found.append([str(bidder), start, last + pause, count])
                start, count = at, 0
            last, count = at, count + 1
        found.append([str(bidder), start, last + pause, count])
    return found


def categories(flow: Topology) -> None:
    """Side input: every bid with the category of its auction, from a table."""
    named = table_join("categories", "bids", "auctions", "categories", joiner=lambda bid, item: [bid.at, item.category])
    flow.stream("categories").add(named)


def all_categories(all_events: list[Event]) -> Result:
    known = {item.id: item.category for _, stream, _, item in all_events if stream == "auctions"}
    return [[bid.at, known[bid.auction]] for _, stream, _, bid in all_events if stream == "bids"]


def plain(value: msgspec.Struct) -> Any:
    return msgspec.to_builtins(value)


# Name of the query and of the stream it writes: how to add it, its answer, and whether only the last per key counts.
QUERIES: dict[str, tuple[Callable[[Topology], None], Callable[[list[Event]], Result], bool]] = {
    "in-cents": (in_cents, all_in_cents, False),
    "chosen": (chosen, all_chosen, False),
    "local": (local, all_local, False),
    "prices": (prices, all_prices, True),
    "hot": (hot, all_hot, False),
    "sellers": (sellers, all_sellers, True),
    "highest": (highest, all_highest, False),
    "newcomers": (newcomers, all_newcomers, False),
    "visits": (visits, all_visits, False),
    "categories": (categories, all_categories, False),
}


def results(logs: LogStore, name: str) -> Result:
    """What a query has given, in an order of its own."""
    records = [record for place in logs.partitions(name) for batch in logs.batches(place) for record in batch.records()]
    if QUERIES[name][2]:
        records = list({record.key: record for record in records}.values())
    return sorted((msgspec.json.decode(record.payload) for record in records), key=repr)


def answer(name: str, all_events: list[Event]) -> Result:
    """What a query has to give, in the same order."""
    return sorted(QUERIES[name][1](all_events), key=repr)


def everything() -> Topology:
    """All queries in one topology, for runners that import it."""
    return flow_of(*QUERIES)
