"""Settle: steps of endings, puts and events, each atomic by itself; cancelling; and what keeps leases alive."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from penstock import failpoints
from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.queue import refusals
from penstock.queue.drivers.sql import registry
from penstock.queue.drivers.sql.endings import Endings, Links, consume_done, keep_results
from penstock.queue.drivers.sql.put import put
from penstock.queue.drivers.sql.read import live_entry
from penstock.queue.drivers.sql.repeats import done_before, was_settled
from penstock.queue.drivers.sql.rows import Live, Ref, is_genuine, puts_for
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import Lease
from penstock.queue.linking import Follow
from penstock.queue.protocol import Ending, PutResult, Scope, Step, StepDone


def is_success(step: Step) -> bool:
    """One success and nothing else: what workers send by the hundred."""
    endings = step.endings
    return (
        len(endings) == 1
        and not step.puts
        and not step.events
        and not step.repeat
        and not step.links
        and endings[0].outcome == "done"
        and endings[0].error is None
        and endings[0].lease.ref.plain
        and is_genuine(endings[0].lease)
    )


class Successes(NamedTuple):
    """What plain successes ask for beside their ends."""

    results: bool  # to keep what a handler returned
    links: bool  # to release what waits for one of them


def successes(steps: Sequence[Step]) -> Successes | None:
    """What these steps ask for beside their ends, or None if one of them is anything but a success.

    Each is of another entry: of two endings of one entry only the first may happen.
    """
    entries: set[str] = set()
    results = links = False
    for step in steps:
        if not is_success(step):
            return None
        ending = step.endings[0]
        lease = ending.lease
        entries.add(lease.entry)
        results = results or ending.result is not None
        links = links or lease.ref.linked
    return Successes(results, links) if len(entries) == len(steps) else None


def follow_successes(session: Session, steps: Sequence[Step]) -> None:
    """What follows from plain successes that have just left their claims."""
    endings = [step.endings[0] for step in steps]
    keep_results(session, [(ending.lease.entry, ending.result) for ending in endings if ending.result is not None])
    linked = [ending.lease.entry for ending in endings if ending.lease.ref.linked]
    if linked:
        consume_done(session, linked)


def settle(session: Session, steps: Sequence[Step]) -> list[StepDone | PenstockError]:
    """Do each step in order: those of one ending that follow each other together, the others one by one."""
    results: list[StepDone | PenstockError] = []
    for alone, group in groupby(steps, key=_is_one_ending):
        run = list(group)
        distinct = len({step.endings[0].lease.entry for step in run}) == len(run) if alone else False
        results += _settle_endings(session, run) if distinct else [_guarded(session, step) for step in run]
    return results


def _is_one_ending(step: Step) -> bool:
    return len(step.endings) == 1 and not step.puts and not step.events and not step.links


def _settle_endings(session: Session, steps: Sequence[Step]) -> list[StepDone | PenstockError]:
    """End many entries at once; each ending is its own step, so one that is not current hinders no other."""
    results: list[StepDone | PenstockError] = []
    endings = Endings(session)
    held = _held(session, [step.endings[0] for step in steps])
    for step in steps:
        [ending] = step.endings
        live = held.get(ending.lease.ref.seq)
        if live is None:
            happened = step.repeat and was_settled(session, ending)
            results.append(StepDone() if happened else refusals.lease_lost(ending.lease))
        else:
            _end(session, endings, live, ending)
            results.append(StepDone())
    endings.apply()
    failpoints.point("finish.recorded")
    return results


def _guarded(session: Session, step: Step) -> StepDone | PenstockError:
    session.execute("SAVEPOINT step")
    try:
        done = _step(session, step)
    except PenstockError as error:
        session.execute("ROLLBACK TO SAVEPOINT step")
        session.execute("RELEASE SAVEPOINT step")
        # A queue's row that the step made went with it.
        session.queue_rows.clear()
        return error
    except BaseException:
        # The database may have given up the whole transaction, and the savepoint with it: that is what counts then.
        with contextlib.suppress(Exception):
            session.execute("ROLLBACK TO SAVEPOINT step")
            session.execute("RELEASE SAVEPOINT step")
        raise
    session.execute("RELEASE SAVEPOINT step")
    return done


def _step(session: Session, step: Step) -> StepDone:
    """Endings, then puts, then events; raises before anything of the step is left behind."""
    # 1. Everything that is ended has to be held.
    held = _held(session, step.endings)
    if step.repeat and not held and (done := done_before(session, step)) is not None:
        return done
    follow = Follow(Links(session))
    endings = Endings(session, follow)
    for ending in step.endings:
        live = held.get(ending.lease.ref.seq)
        if live is None:
            raise refusals.lease_lost(ending.lease)
        _end(session, endings, live, ending)
    # 2. It leaves its claims, and what follows from its end happens.
    endings.apply()
    # 3. New entries, also those that subscriptions get of events.
    known: set[str] = set()
    puts = put(session, step.puts, repeat=step.repeat, links=step.links, known=known) if step.puts else []
    published: list[tuple[PutResult, ...]] = []
    if step.events:
        subscriptions = registry.subscriptions(session)
        for event in step.events:
            wanted = puts_for(event, subscriptions)
            published.append(tuple(put(session, wanted, repeat=step.repeat)) if wanted else ())
    # 4. Who waits for whom; what waits for nothing any more is released last.
    if step.links:
        follow.linked(step.links, step.puts, puts, known)
    failpoints.point("links.made")
    follow.finish()
    return StepDone(tuple(puts), tuple(published))


def _held(session: Session, endings: Sequence[Ending]) -> dict[int, Live]:
    """The entries of these leases that are still held with them, by seq; their claims are locked."""
    if not endings:
        return {}
    refs: list[Ref] = [ending.lease.ref for ending in endings]
    claims, seqs = list({ref.claim for ref in refs}), [ref.seq for ref in refs]
    if not session.rows("lock_claims", claims=claims, seqs=seqs):
        return {}
    tokens = {ending.lease.ref.seq: ending.lease.token for ending in endings}
    entries = (Live(*row) for row in session.rows("held", claims=claims, seqs=seqs))
    return {live.seq: live for live in entries if tokens[live.seq] == f"{live.fence}-{live.claim}"}


def _end(session: Session, endings: Endings, live: Live, ending: Ending) -> None:
    """What becomes of one entry."""
    outcome = ending.outcome
    if outcome in ("done", "dead"):
        endings.end(live, outcome, started=ending.started_us, error=ending.error, by_owner=True, result=ending.result)
        return
    due = live.due
    if outcome != "release":
        due = session.now + ending.delay_us if ending.due_us is None else ending.due_us
    if outcome == "retry":
        endings.record(live, "retried", started=ending.started_us, error=ending.error, by_owner=True)
        endings.give_back(live, due, attempt=live.attempt, error=ending.error)
        return
    # Released means untouched: nothing has shown that a suspect is harmless.
    suspect = outcome == "release" and live.suspect
    endings.give_back(live, due, attempt=live.attempt - 1, error=ending.error, suspect=suspect)
    endings.remember(live, outcome)


# --- leases --------------------------------------------------------------------------------------------------------


def extend(session: Session, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
    """Prolong leases, waiting for nobody. Returns the end asked for, for each lease, or None if it is lost."""
    refs: list[Ref] = [lease.ref for lease in leases if is_genuine(lease)]
    ends = _extend(session, refs, lease_us)
    missing = [ref for ref in refs if (ref.claim, ref.seq) not in ends]
    if missing:
        # Claims that hold more than what is named here: the others run out as they would have.
        session.change("split_off", **_named(missing))
        ends.update(_extend(session, missing, lease_us))
    missing = [ref for ref in missing if (ref.claim, ref.seq) not in ends]
    if missing:
        # What somebody is ending just now is held until he is done; it is prolonged by the next heartbeat.
        ends = {**_ends(session.rows("held_until", **_named(missing))), **ends}
    return [ends.get((lease.ref.claim, lease.ref.seq)) if is_genuine(lease) else None for lease in leases]


def _extend(session: Session, refs: Sequence[Ref], lease_us: Micros) -> dict[tuple[str, int], Micros]:
    if not refs:
        return {}
    return _ends(session.rows("extend", now=session.fixed_now, lease=lease_us, **_named(refs)))


def _ends(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[str, int], Micros]:
    return {(claim, seq): until for claim, seq, until in rows}


def _named(refs: Sequence[Ref]) -> dict[str, Any]:
    return {"claims": list({ref.claim for ref in refs}), "seqs": [ref.seq for ref in refs]}


def split_off(session: Session, refs: Sequence[Ref]) -> None:
    """Give entries a claim record of their own, apart from those they were claimed with."""
    session.rows("lock_claims", **_named(refs))
    session.change("split_off", **_named(refs))


# --- cancelling ----------------------------------------------------------------------------------------------------


def cancel(session: Session, ids: Sequence[str], *, force: bool, scope: Scope | None) -> list[tuple[str, str]]:
    """End entries as cancelled, all or none."""
    cancelled = []
    for id_ in ids:
        live = live_entry(session, id_, lock=True, scope=scope)
        if live is None:
            if session.row("was_cancelled", id=id_):
                continue
            raise refusals.not_live(id_)
        running = live.claim is not None
        if running and not force:
            raise refusals.entry_leased(live.id, live.queue, live.owner)
        endings = Endings(session)
        endings.end(live, "cancelled", ran=running)
        endings.apply()
        cancelled.append((id_, live.queue))
    return cancelled
