"""What becomes of entries, applied to all collections.

Whoever ends, returns or takes away entries says so to an :class:`Endings` and applies it: settling, reaping, cancelling
and claims that meet an expired entry. What follows the end of an entry has its one place in :meth:`Endings.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from penstock.clock import Micros
from penstock.queue import linking, refusals
from penstock.queue.entry import HELD, AttemptState
from penstock.queue.linking import Follow, SourceState, total
from penstock.queue.protocol import KeptResult, Link, NewResult, Wait
from penstock.queue.rules.rows import Attempt, Claim, ClaimKey, Dead, Live, Settlement
from penstock.queue.rules.state import State, postponed_key, state_in


class Endings:
    """Endings of one atomic block."""

    __slots__ = (
        "_attempts", "_claimed", "_dead", "_follow", "_now", "_over", "_remembered", "_results",
        "_returns", "_state", "_waiting",
    )  # fmt: skip

    def __init__(self, state: State, now: Micros, follow: Follow | None = None) -> None:
        """Start empty. Where the step has more to do, ``follow`` does what follows from the endings."""
        self._state = state
        self._now = now
        self._follow = follow
        self._claimed: dict[ClaimKey, list[str]] = {}  # what leaves claims
        self._waiting: list[str] = []  # what leaves the ready entries
        self._attempts: list[Attempt] = []
        self._results: dict[str, KeptResult] = {}
        self._over: list[tuple[Live, AttemptState]] = []
        self._dead: list[Live] = []
        self._returns: list[Live] = []
        self._remembered: list[tuple[str, str, str]] = []

    def end(
        self,
        live: Live,
        state: AttemptState,
        *,
        key: ClaimKey | None = None,
        started: Micros | None = None,
        error: str | None = None,
        by_owner: bool = False,
        result: NewResult | None = None,
    ) -> None:
        """End an entry that a claim holds (``key``) or that waits."""
        self._leave(live, key)
        row = self.record(live, state, key=key, started=started, error=error, by_owner=by_owner)
        self._over.append((live, state))
        if result is not None:
            self._results[live.body.id] = KeptResult(
                live.generation, result.codec, self._now + result.kept_us, result.value, live.body.queue, result.batch
            )
        if state == "dead":
            last = live.error if error is None else error
            # Its number is that of the row: dead letters are in the order of death.
            self._dead.append(msgspec.structs.replace(live, seq=row.seq, suspect=False, error=last))

    def record(
        self,
        live: Live,
        state: AttemptState,
        *,
        key: ClaimKey | None,
        started: Micros | None = None,
        error: str | None = None,
        by_owner: bool = False,
    ) -> Attempt:
        """Write an attempt down in the history."""
        seq = next(self._state.row_seqs)
        if key is None:
            # An entry that ends between two attempts is recorded under the attempt it did not get.
            row = Attempt(seq, live, state, live.attempt + 1, None, started, self._now, error, None)
        else:
            claim = self._state.claims[key]
            # Only the owner's own ending may be taken for a repeat of his call.
            token = claim.token(live) if by_owner else None
            started = claim.claimed_us if started is None else started
            row = Attempt(seq, live, state, live.attempt, claim.owner, started, self._now, error, token)
        self._attempts.append(row)
        return row

    def give_back(
        self,
        live: Live,
        due: Micros,
        *,
        key: ClaimKey,
        attempt: int,
        error: str | None = None,
        suspect: bool = False,
    ) -> None:
        """Let an entry that a claim holds wait again, in its old place."""
        self._leave(live, key)
        self._returns.append(
            msgspec.structs.replace(
                live, due_us=due, attempt=attempt, suspect=suspect, error=live.error if error is None else error
            )
        )

    def remember(self, live: Live, key: ClaimKey, outcome: str) -> None:
        """Remember that this outcome was settled, because it leaves no history row."""
        self._remembered.append((live.body.id, self._state.claims[key].token(live), outcome))

    def _leave(self, live: Live, key: ClaimKey | None) -> None:
        if key is None:
            self._waiting.append(live.body.id)
        elif key in self._claimed:
            self._claimed[key].append(live.body.id)
        else:
            self._claimed[key] = [live.body.id]

    def apply(self) -> None:
        """Write it all down; inside atomic()."""
        state = self._state
        # 1. They leave the claims that hold them, or the ready entries.
        for key, ids in self._claimed.items():
            take_out(state, key, ids)
        for id_ in self._waiting:
            del state.ready[id_]
        # 2. Attempts that ended go to the history.
        history = state.history
        for row in self._attempts:
            history[row.seq] = row
        # 3. Dead letters are kept apart, whatever happens to the history.
        for live in self._dead:
            state.dead[live.body.id] = Dead(live, self._now)
        # 4. What comes back waits again.
        for live in self._returns:
            state.ready[live.body.id] = live
        # 5. Ended entries release their unique ids, unless these are held for a period.
        for live, _ in self._over:
            if live.body.unique is not None and live.body.unique_mode != "period":
                state.release_unique(live.body)
        # 6. Their links are consumed.
        if state.links and self._over:
            consume(state, self._now, {live.body.id: ended for live, ended in self._over}, self._follow)
        for id_, result in self._results.items():
            state.results[id_] = result
        # 7. What left no row is remembered, in case the call is repeated.
        for id_, token, outcome in self._remembered:
            state.settled[id_, token] = Settlement(outcome, self._now)


def consume(state: State, now: Micros, ends: Mapping[str, str], follow: Follow | None = None) -> None:
    """Let what waits for ended entries know; inside atomic()."""
    linked = {id_: ended for id_, ended in ends.items() if id_ in state.links}
    if linked:
        following_ends = following(state, now) if follow is None else follow
        following_ends.ended(linked)
        if follow is None:
            following_ends.finish()


def following(state: State, now: Micros) -> Follow:
    """What follows from a step that begins now."""
    return Follow(Links(state, now), None if state.fan_out is None else Rest(state, state.fan_out))


def resume(state: State, now: Micros) -> bool:
    """Consume one part of the links that steps before postponed. Returns whether there was one."""
    key = next(iter(state.postponed), None)
    if key is None:
        return False
    with state.atomic():
        links = state.links[key]
        del state.links[key]
        follow = following(state, now)
        follow.resume(links, state_in(key))
        follow.finish()
    return True


class Rest:
    """The links that a step leaves to later ones, in parts of which each fits into a step."""

    def __init__(self, state: State, room: int) -> None:
        """``room`` is how many links the step may consume."""
        self._state = state
        self._part = self.room = room

    def postpone(self, links: Sequence[Link], state: str) -> None:
        """Keep links of one source, which has ended like this."""
        for start in range(0, len(links), self._part):
            key = postponed_key(links[0].source, next(self._state.seqs), state)
            self._state.links[key] = tuple(links[start : start + self._part])


class Links:
    """The links of a state, for the rules that all stores share."""

    def __init__(self, state: State, now: Micros) -> None:
        """For one step at one time."""
        self._state = state
        self._now = now

    def links_from(self, sources: Sequence[str]) -> list[Link]:
        """The links of these entries that are not consumed."""
        return [link for source in sources for link in self._state.links.get(source, ())]

    def add_links(self, links: Sequence[Link]) -> None:
        """Keep new links."""
        state = self._state
        by_source: dict[str, list[Link]] = {}
        for link in links:
            by_source.setdefault(link.source, []).append(link)
        for source, new in by_source.items():
            known = state.links.get(source, ())
            if state.waiters is not None and len(known) + len(new) > state.waiters:
                raise refusals.too_many_waiters(source, state.waiters)
            state.links[source] = (*known, *new)

    def take_links(self, ends: Mapping[str, str]) -> list[Link]:
        """Forget the links that these ends consume, and say which they were."""
        taken: list[Link] = []
        for source, state in ends.items():
            links = self._state.links.get(source, ())
            left = tuple(link for link in links if not linking.is_consumed(link, state))
            if len(left) == len(links):
                continue
            taken += [link for link in links if linking.is_consumed(link, state)]
            if left:
                self._state.links[source] = left
            else:
                del self._state.links[source]
        return taken

    def mark_source(self, id_: str) -> SourceState | None:
        """Whether an entry lives, or how it ended."""
        if self._state.live(id_) is not None:
            return "live"
        if id_ in self._state.dead:
            return "dead"
        end = self._state.last_end(id_)
        return None if end is None else cast(SourceState, end.state)

    def hold(self, targets: Sequence[str]) -> None:
        """Let new entries be held."""
        for target in targets:
            live = self._state.ready[target]
            if self._state.ready_queues.queue(live.queue).fifo:
                raise refusals.held_in_fifo(live.queue)
            self._state.ready[target] = msgspec.structs.replace(live, due_us=HELD)

    def lock_held(self, target: str) -> bool:
        """Whether an entry is held."""
        live = self._state.ready.get(target)
        return live is not None and live.is_held

    def count(self, changes: Sequence[Wait]) -> list[Wait]:
        """Add to what entries need and have counted."""
        waits = [total(self._state.waits.get(change.id), change) for change in changes]
        for wait in waits:
            self._state.waits[wait.id] = wait
        return waits

    def release(self, targets: Sequence[str]) -> None:
        """Let those that are still held become due."""
        for live in self._held(targets):
            self._state.ready[live.id] = msgspec.structs.replace(live, due_us=max(live.first_due_us, self._now))

    def cancel(self, reasons: Mapping[str, str], follow: Follow) -> None:
        """End those that are still held as cancelled."""
        endings = Endings(self._state, self._now, follow)
        for live in self._held(sorted(reasons)):
            endings.end(live, "cancelled", error=reasons[live.id])
            self._state.cascaded[live.id] = (live.queue, reasons[live.id])
        endings.apply()

    def _held(self, targets: Sequence[str]) -> list[Live]:
        """Those that are still held; what a forgotten one needed is forgotten, too."""
        for target in targets:
            self._state.drop_wait(target)
        waiting = (self._state.ready.get(target) for target in targets)
        return [live for live in waiting if live is not None and live.is_held]


def take_out(state: State, key: ClaimKey, ids: list[str]) -> None:
    """Take entries out of a claim; an empty one ends."""
    claim = state.claims[key]
    if len(ids) == len(claim.held):
        del state.claims[key]
        return
    held = dict(claim.held)
    for id_ in ids:
        del held[id_]
    state.claims[key] = with_held(claim, held)


def with_held(claim: Claim, held: dict[str, Live]) -> Claim:
    """The claim with other entries."""
    return msgspec.structs.replace(claim, held=held)


def take_away(state: State, live: Live, key: ClaimKey, now: Micros, *, error: str) -> None:
    """Void the lease on an entry; it waits again, and its attempt is spent. Inside atomic()."""
    endings = Endings(state, now)
    endings.record(live, "retried", key=key, error=error)
    endings.give_back(live, live.due_us, key=key, attempt=live.attempt)
    endings.apply()
