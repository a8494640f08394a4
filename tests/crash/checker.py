"""The judge: from what processes recorded and what the store holds, which promises were broken.

Everything here is a pure function over two plain things: *events*, what every process wrote down about its calls (see
``recorder``), and a *dump*, the rows of the store read with nothing but its own driver (``dumps``). Nothing is
taken from Penstock, so a mistake in there cannot hide itself.

====  ==========================================================================================================
Q1    an acknowledged put is found in exactly one place, with its content
Q2    nothing is found that was never put, nor what was refused
Q3    one final state per entry and generation, one settle per lease
Q4    one lease at a time: the next claim comes after the end of the last
Q5    every recorded outcome belongs to the lease that was settled; a refused one left nothing
Q6    fences rise
Q7    a step, that is endings and puts together, happened whole or not at all
Q8    handler starts stay within the attempts
Q9    nothing is claimed before it is due
Q10   after the faults ended everything came to an end
Q13   the history of an entry is a path from put to end
====  ==========================================================================================================
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

FINAL = {"done", "dead", "cancelled", "expired"}
# What an ending leaves in the history; a snooze and a release leave nothing there.
ROW_OF = {"done": "done", "dead": "dead", "retry": "retried"}
# Dead by decision of the store, not of a handler: no settle stands behind such a row.
STORES_OWN = ("lease ran out", "no attempts left")

Event = dict[str, Any]
Row = dict[str, Any]


class Violation(NamedTuple):
    """A broken promise."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass
class Dump:
    """The rows of a store. ``live`` rows have ``leased``; ended ones have ``state``, ``started`` and ``ended``."""

    live: list[Row] = field(default_factory=list)
    history: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    holds: list[Row] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)


@dataclass
class Step:
    """One step of one process: what it asked for, and what it was told: ok, fail, or info (nobody knows)."""

    endings: list[tuple[str, str, str]]  # id, token, outcome
    puts: dict[str, Event]
    told: str = "info"
    error: str = ""
    created: set[str] | None = None  # of an ok step: the ids its puts really made


class Told:
    """The events, sorted by what they are about."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.steps: list[Step] = []
        self.claims: defaultdict[str, list[Event]] = defaultdict(list)
        self.starts: Counter[tuple[str, int]] = Counter()
        self.known: set[str] = set()  # ids put outside of recorded steps
        self.ended: set[str] = set()  # ids that somebody has ended, or may have
        self.queues: dict[str, str] = {}  # of every id that was put the queue
        open_: dict[tuple[int, int], Step] = {}
        for event in events:
            match event["op"]:
                case "step":
                    key = (event["process"], event["number"])
                    if event["phase"] == "invoke":
                        endings = [(id_, token, outcome) for id_, token, outcome in event["endings"]]
                        open_[key] = Step(endings, {put["id"]: put for put in event["puts"]})
                        self.steps.append(open_[key])
                    else:
                        step = open_.pop(key)
                        step.told, step.error = event["phase"], event.get("error", "")
                        step.created = set(event["created"]) if event["phase"] == "ok" else None
                case "claimed":
                    self.claims[event["id"]].append(event)
                case "start":
                    self.starts[event["id"], event["generation"]] += 1
                case "known":
                    self.known.update(event["ids"])
        for step in self.steps:
            self.queues.update((id_, put["queue"]) for id_, put in step.puts.items())
            if step.told != "fail":
                self.ended.update(id_ for id_, _, outcome in step.endings if outcome in ("done", "dead"))


def check(
    events: Iterable[Event],
    dump: Dump,
    *,
    forgotten: frozenset[str] = frozenset(),
    drained: bool = True,
) -> list[Violation]:
    """All broken promises; ``drained``: nothing may be left.

    Of the queues in ``forgotten`` history was pruned: rows of what has ended may be missing, all of them or the first.
    """
    told = Told(events)
    store = Found(dump, told)
    rules: list[Callable[[Told, Found, frozenset[str]], Iterator[Violation]]] = [
        durability, no_ghosts, one_final_state, single_lease, fencing, fences_rise, whole_steps, attempts_kept,
        not_early, paths, holds,
    ]  # fmt: skip
    broken = [Violation("Q1", f"the store says it is damaged: {line}") for line in dump.damage]
    for rule in rules:
        broken += rule(told, store, forgotten)
    if drained:
        broken += [Violation("Q10", f"{row['id']} of {row['queue']} is still live") for row in dump.live]
    return broken


class Rows(dict[str, list[Row]]):
    """Rows by id; an id without rows has none."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        for row in rows:
            self.setdefault(row["id"], []).append(row)

    def __missing__(self, id_: str) -> list[Row]:
        return []


class Found:
    """The dump, by id."""

    def __init__(self, dump: Dump, told: Told) -> None:
        self.dump = dump
        attempts = {
            (id_, claim["generation"], claim["attempt"]): claim
            for id_, claims in told.claims.items()
            for claim in claims
        }
        for row in dump.history:
            if "token" not in row:  # a store that does not write it down: it was the one of that attempt's claim
                claim = attempts.get((row["id"], row["generation"], row["attempt"]))
                ran = claim is not None and row["started"] is not None
                row["token"], row["fence"] = (claim["token"], claim["fence"]) if claim and ran else (None, None)
        self.live, self.dead, self.rows = Rows(dump.live), Rows(dump.dead), Rows(dump.history)
        self.by_token: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in dump.history:
            if row["token"] is not None and row["state"] in ("done", "dead", "retried"):
                self.by_token[row["id"], row["token"]].append(row)
        self.ids = set(self.live) | set(self.dead) | set(self.rows)

    def generation(self, id_: str) -> int:
        """The latest generation of an entry."""
        return max(row["generation"] for row in (*self.live[id_], *self.rows[id_], *self.dead[id_]))

    def settled(self, ending: tuple[str, str, str]) -> bool | None:
        """Whether an ending left its row, or None when it leaves none by its nature."""
        id_, token, outcome = ending
        if outcome not in ROW_OF:
            return None
        return any(row["state"] == ROW_OF[outcome] for row in self.by_token.get((id_, token), ()))


def ran(row: Row) -> bool:
    """Whether a row of the history stands for a claimed attempt, and not for an end between two."""
    return row["state"] in ("done", "retried", "reaped") or (row["state"] == "dead" and row["error"] != STORES_OWN[1])


# --- the rules -------------------------------------------------------------------------------------------------------


def durability(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q1: acknowledged means there, once, unchanged."""
    for step in told.steps:
        for id_ in step.created or ():
            put = step.puts[id_]
            if put["queue"] in forgotten and id_ not in store.ids and id_ in told.ended:
                continue
            if id_ not in store.ids:
                yield Violation("Q1", f"{id_} of {put['queue']} was acknowledged and is lost")
                continue
            generation = store.generation(id_)
            live = [row for row in store.live[id_] if row["generation"] == generation]
            ended = [row for row in store.rows[id_] if row["generation"] == generation and row["state"] in FINAL]
            if put["queue"] in forgotten and len(store.dead[id_]) == 1 and not live:
                ended = ended or store.dead[id_]  # a dead letter outlives its rows
            if len(live) + len(ended) != 1 or len(store.live[id_]) > 1:
                places = [f"live {len(live)}", *(row["state"] for row in ended)]
                yield Violation("Q1", f"{id_} is in {len(live) + len(ended)} places: {', '.join(places)}")
            letters = store.dead[id_]
            if bool(letters) != any(row["state"] == "dead" for row in ended) or len(letters) > 1:
                yield Violation("Q1", f"{id_} has {len(letters)} dead letters, ended {[row['state'] for row in ended]}")
            for row in (*live, *ended, *letters):
                if row["payload"] is not None and row["payload"] != put["payload"]:
                    yield Violation("Q1", f"{id_} came back with another content")


def no_ghosts(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q2: what is there was asked for."""
    attempted = {id_ for step in told.steps for id_ in step.puts} | told.known
    refused = {id_ for step in told.steps if step.told == "fail" for id_ in step.puts}
    hoped = {id_ for step in told.steps if step.told != "fail" for id_ in step.puts}
    not_made = {
        id_ for step in told.steps if step.created is not None for id_ in step.puts.keys() - step.created
    }  # another entry holds its unique id
    for id_ in sorted(store.ids - attempted):
        yield Violation("Q2", f"{id_} was never put")
    for id_ in sorted(store.ids & ((refused - hoped) | not_made)):
        yield Violation("Q2", f"{id_} was refused and is there")


def one_final_state(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q3: one end per generation, one row per attempt, one settle per lease."""
    finals = Counter((row["id"], row["generation"]) for row in store.dump.history if row["state"] in FINAL)
    attempts = Counter((row["id"], row["generation"], row["attempt"]) for row in store.dump.history)
    settles = Counter(
        (id_, token) for step in told.steps if step.told == "ok" for id_, token, outcome in step.endings
    )  # fmt: skip
    for key, count in finals.items():
        if count > 1:
            yield Violation("Q3", f"{key} ended {count} times")
    for attempt_key, count in attempts.items():
        if count > 1:
            yield Violation("Q3", f"attempt {attempt_key} has {count} rows")
    for lease, count in settles.items():
        if count > 1:
            yield Violation("Q3", f"lease {lease} was settled {count} times")


def single_lease(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q4: between two claims of an entry its lease ended."""
    given_back = {
        (id_, token) for step in told.steps if step.told != "fail" for id_, token, outcome in step.endings
        if outcome not in ROW_OF
    }  # fmt: skip
    ends = {(row["id"], row["fence"]): row["ended"] for row in store.dump.history if ran(row)}
    for id_, claims in told.claims.items():
        ordered = sorted(claims, key=lambda claim: claim["fence"])
        for before, after in pairwise(ordered):
            key = (id_, before["fence"])
            if after["queue"] in forgotten or key == (id_, after["fence"]) or (id_, before["token"]) in given_back:
                continue
            if key not in ends:
                yield Violation("Q4", f"{id_} was claimed with {after['token']} while {before['token']} was out")
            elif ends[key] > after["claimed"]:
                yield Violation("Q4", f"{id_} was claimed at {after['claimed']} and let go at {ends[key]} only")


def fencing(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q5: the token decides. What was agreed has its row, and a row has somebody whose token it bears."""
    sent: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for step in told.steps:
        for ending in step.endings:
            sent[ending].append(step.told)
    for ending, results in sent.items():
        gone = not store.rows[ending[0]] or told.queues.get(ending[0]) in forgotten
        if "ok" in results and store.settled(ending) is False and not gone:
            yield Violation("Q5", f"{ending[0]}: {ending[2]} with {ending[1]} was agreed to and is not in the history")
    for row in store.dump.history:
        outcome = {"done": "done", "dead": "dead", "retried": "retry"}.get(row["state"])
        if outcome is None or row["token"] is None or (row["error"] or "").startswith(STORES_OWN):
            continue
        results = sent.get((row["id"], row["token"], outcome), [])
        if not results:
            yield Violation("Q5", f"{row['id']} is {row['state']} under {row['token']}, with which nobody settled it")
        elif set(results) == {"fail"}:
            yield Violation("Q5", f"{row['id']} is {row['state']} under {row['token']}, which was refused")


def fences_rise(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q6: each claim has a higher fence than the one before."""
    for id_, claims in told.claims.items():
        tokens: dict[int, str] = {}
        for claim in claims:
            if tokens.setdefault(claim["fence"], claim["token"]) != claim["token"]:
                yield Violation("Q6", f"{id_} was claimed twice with fence {claim['fence']}")
        in_time = sorted(claims, key=lambda claim: (claim["claimed"], claim["fence"]))
        for before, after in pairwise(in_time):
            if after["fence"] < before["fence"]:
                yield Violation("Q6", f"{id_}: fence {after['fence']} came after {before['fence']}")
    for id_, rows in store.rows.items():
        mine = sorted(filter(ran, rows), key=lambda row: (row["generation"], row["attempt"]))
        mine = [row for row in mine if row["fence"] is not None]  # nobody lived to tell of that claim
        for before, after in pairwise(mine):
            if after["fence"] <= before["fence"]:
                yield Violation("Q6", f"{id_}: history has fence {after['fence']} after {before['fence']}")


def whole_steps(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q7: all of a step or nothing of it."""
    senders = Counter(ending for step in told.steps if step.told != "fail" for ending in step.endings)
    for step in told.steps:
        parts: dict[str, bool] = {}
        for id_, token, outcome in step.endings:
            if step.told == "info" and senders[id_, token, outcome] > 1:
                continue  # it may have come by the other, which was cut off or agreed to
            there = store.settled((id_, token, outcome))
            gone = told.queues.get(id_) in forgotten or not (store.rows[id_] or store.live[id_])
            if there is not None and (there or not gone):
                parts[f"{outcome} of {id_}"] = there
        wanted = step.puts.keys() if step.created is None else step.created
        for id_ in wanted:
            if step.puts[id_]["queue"] not in forgotten and (step.created is not None or not step.puts[id_]["unique"]):
                parts[f"put of {id_}"] = id_ in store.ids
        if len(parts) < 2:
            continue
        if step.told == "fail":
            # What is there of a refused step may have come by another: only its own puts are telling, see Q2.
            continue
        happened = [name for name, there in parts.items() if there]
        missing = [name for name, there in parts.items() if not there]
        if missing and (happened or step.told == "ok"):
            yield Violation("Q7", f"a step told {step.told} happened in part: {happened}, but not {missing}")


def attempts_kept(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q8: no handler starts more often than allowed."""
    given_back = {
        (id_, token) for step in told.steps if step.told != "fail" for id_, token, outcome in step.endings
        if outcome not in ROW_OF
    }  # fmt: skip
    for id_, claims in told.claims.items():
        by_generation: defaultdict[int, list[Event]] = defaultdict(list)
        for claim in claims:
            if (id_, claim["token"]) not in given_back:
                by_generation[claim["generation"]].append(claim)
        for generation, mine in by_generation.items():
            most = min((claim["max"] for claim in mine if claim["max"] is not None), default=None)
            spent = len({claim["token"] for claim in mine})
            started = told.starts[id_, generation]
            if most is not None and max(spent, started) > most:
                yield Violation("Q8", f"{id_} was claimed {spent} and started {started} times, allowed are {most}")
            if started > spent:
                yield Violation("Q8", f"{id_} was started {started} times under {spent} leases")


def not_early(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q9: due first, claimed then."""
    for id_, claims in told.claims.items():
        for claim in claims:
            if claim["claimed"] < claim["due"]:
                yield Violation("Q9", f"{id_} was claimed {claim['due'] - claim['claimed']} µs too early")


def paths(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q13: attempts 1, 2, 3 …, all but the last lived on; a new generation only after an end."""
    for id_, rows in store.rows.items():
        if any(row["queue"] in forgotten for row in rows):
            continue
        latest = store.generation(id_)
        live = store.live[id_][0] if store.live[id_] else None
        for generation in range(1, latest + 1):
            mine = sorted((row for row in rows if row["generation"] == generation), key=lambda row: row["attempt"])
            numbers, states = [row["attempt"] for row in mine], [row["state"] for row in mine]
            if numbers != list(range(1, len(mine) + 1)):
                yield Violation("Q13", f"{id_} generation {generation} has attempts {numbers}")
            lives = live is not None and live["generation"] == generation
            if any(state in FINAL for state in (states if lives else states[:-1])):
                yield Violation("Q13", f"{id_} generation {generation} went on after its end: {states}")
            if not lives and (not states or states[-1] not in FINAL):
                yield Violation("Q13", f"{id_} generation {generation} is gone without an end: {states}")
            if lives and live is not None and live["attempt"] != len(mine) + bool(live["leased"]):
                yield Violation("Q13", f"{id_} is at attempt {live['attempt']}, its history at {len(mine)}")
            if any(b["ended"] < a["ended"] for a, b in pairwise(mine)):
                yield Violation("Q13", f"{id_} generation {generation} ended out of order")
            if any(row["started"] is not None and row["started"] > row["ended"] for row in mine):
                yield Violation("Q13", f"{id_} generation {generation} ended before it started")


def holds(told: Told, store: Found, forgotten: frozenset[str]) -> Iterator[Violation]:
    """Q13: a unique id without a period is held by a live entry and by nobody else."""
    for hold in store.dump.holds:
        if hold["until"] is None and not store.live[hold["id"]]:
            yield Violation("Q13", f"unique id {hold['unique_key']!r} is held by {hold['id']}, which has ended")
