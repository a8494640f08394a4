"""What becomes of entries, applied to all collections with one statement each.

Whoever ends, returns or takes away entries says so to an :class:`Endings` and applies it: settling, reaping, cancelling
and claims that meet an expired entry. What follows the end of an entry has its one place in :meth:`Endings.apply`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.read import live_entry
from penstock.queue.drivers.sql.rows import Live, is_linked, unique_mode
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import HELD
from penstock.queue.linking import Follow, SourceState, is_consumed
from penstock.queue.protocol import Link, NewResult, Wait


class _Attempt(msgspec.Struct, gc=False):
    """A row for the history."""

    live: Live
    state: str
    attempt: int
    started: Micros | None
    error: str | None
    claim: str | None  # the settling claim, or None if nobody settled it
    result: NewResult | None = None


class _Return(msgspec.Struct, gc=False):
    """A row for the ready entries."""

    live: Live
    due: Micros
    attempt: int
    suspect: bool
    error: str | None


class Endings:
    """Endings of one transaction; the rows of their entries are locked by it."""

    def __init__(self, session: Session, follow: Follow | None = None) -> None:
        """Start empty. Where the step has more to do, ``follow`` does what follows from the endings."""
        self._session = session
        self._follow = follow
        self._over: dict[str, str] = {}  # ends of entries that others wait for
        self._left: list[Live] = []  # what leaves where it is
        self._attempts: list[_Attempt] = []
        self._dead: list[_Attempt] = []
        self._returns: list[_Return] = []
        self._remembered: list[tuple[Live, str]] = []

    def end(
        self,
        live: Live,
        state: str,
        *,
        started: Micros | None = None,
        error: str | None = None,
        ran: bool = True,
        by_owner: bool = False,
        result: NewResult | None = None,
    ) -> None:
        """End an entry; ``ran`` says whether an attempt ended with it."""
        self._left.append(live)
        self.record(live, state, started=started, error=error, ran=ran, by_owner=by_owner)
        self._attempts[-1].result = result
        if is_linked(live.unique_mode):
            self._over[live.id] = state
        if state == "dead":
            self._dead.append(msgspec.structs.replace(self._attempts[-1], attempt=live.attempt))

    def record(
        self,
        live: Live,
        state: str,
        *,
        started: Micros | None = None,
        error: str | None = None,
        ran: bool = True,
        by_owner: bool = False,
    ) -> None:
        """Write an attempt down in the history."""
        # An entry that ends between two attempts is recorded under the attempt it did not get.
        attempt = live.attempt + (0 if ran else 1)
        started = live.claimed if started is None and ran else started
        # Only the owner's own ending may be taken for a repeat of his call.
        self._attempts.append(_Attempt(live, state, attempt, started, error, live.claim if by_owner else None))

    def give_back(
        self, live: Live, due: Micros, *, attempt: int, error: str | None = None, suspect: bool = False
    ) -> None:
        """Let an entry wait again."""
        self._left.append(live)
        self._returns.append(_Return(live, due, attempt, suspect, live.error if error is None else error))

    def remember(self, live: Live, outcome: str) -> None:
        """Remember that this outcome was settled, because it leaves no history row."""
        self._remembered.append((live, outcome))

    def apply(self) -> None:
        """Write it all down."""
        if not self._left:
            return
        self._leave()
        self._record()
        failpoints.point("end.recorded")
        self._add_dead()
        self._line_up()
        self._release_unique()
        self._clear_in_flight()
        self._remember()
        self._keep_results()
        self._consume_links()

    def _leave(self) -> None:
        """1. They leave the claims that hold them, or the ready entries."""
        claimed = [live for live in self._left if live.claim is not None]
        if claimed:
            claims = list({live.claim for live in claimed})
            self._session.change("let_go", claims=claims, seqs=[live.seq for live in claimed])
        waiting = [live.seq for live in self._left if live.claim is None]
        if waiting:
            self._session.change("take", seqs=waiting)

    def _record(self) -> None:
        """2. Attempts that ended go to the history."""
        attempts = self._attempts
        if attempts:
            self._session.change(
                "record_attempts", moment=self._session.now,
                generations=[attempt.live.generation for attempt in attempts],
                states=[attempt.state for attempt in attempts],
                claims=[attempt.claim for attempt in attempts],
                **_columns(attempts),
            )  # fmt: skip

    def _add_dead(self) -> None:
        """3. Dead letters are kept apart, whatever happens to the history."""
        dead = self._dead
        if dead:
            generations = [letter.live.generation for letter in dead]
            self._session.change("add_dead", moment=self._session.now, generations=generations, **_columns(dead))

    def _line_up(self) -> None:
        """4. What comes back waits again, in its old place."""
        returns = self._returns
        if returns:
            self._session.change(
                "give_back",
                seqs=[entry.live.seq for entry in returns],
                bodies=[entry.live.body for entry in returns],
                numbers=[entry.live.number for entry in returns],
                dues=[entry.due for entry in returns],
                generations=[entry.live.generation for entry in returns],
                attempts=[entry.attempt for entry in returns],
                fences=[entry.live.fence for entry in returns],
                suspects=[entry.suspect for entry in returns],
                fifos=[entry.live.fifo for entry in returns],
                errors=[entry.error for entry in returns],
            )
            self._session.rings = True

    def _release_unique(self) -> None:
        """5. Ended entries release their unique ids, unless these are held for a period."""
        comes_back = {entry.live.seq for entry in self._returns}
        holders = [
            live
            for live in self._left
            if live.unique_key is not None and unique_mode(live.unique_mode) != "period" and live.seq not in comes_back
        ]
        release_unique(self._session, holders)

    def _clear_in_flight(self) -> None:
        """6. The next entry of a FIFO queue, or of a limited label value, may come."""
        in_flight = [live for live in self._left if live.claim is not None and live.fifo]
        if in_flight:
            numbers = [live.number for live in in_flight]
            self._session.change("clear_in_flight", numbers=numbers, seqs=[live.seq for live in in_flight])
        if in_flight or any(live.labels is not None or live.fifo for live in self._left):
            self._session.rings = True

    def _remember(self) -> None:
        """7. What left no history row is remembered, in case the call is repeated."""
        if self._remembered:
            self._session.change(
                "remember", moment=self._session.now,
                claims=[live.claim for live, _ in self._remembered],
                ids=[live.id for live, _ in self._remembered],
                outcomes=[outcome for _, outcome in self._remembered],
            )  # fmt: skip

    def _keep_results(self) -> None:
        """8. What handlers returned, where it is to be kept."""
        keep_results(
            self._session,
            [(attempt.live.id, attempt.result) for attempt in self._attempts if attempt.result is not None],
        )

    def _consume_links(self) -> None:
        """9. What waits for them needs one less, or will never be."""
        if self._over:
            consume(self._session, self._over, self._follow)


def keep_results(session: Session, results: Sequence[tuple[str, NewResult]]) -> None:
    """Keep what handlers returned: id and result of each."""
    if results and session.knows("keep_results_alike"):
        _keep_alike(session, results)
    elif results:
        session.change(
            "keep_results",
            ids=[id_ for id_, _ in results],
            generations=[result.generation for _, result in results],
            codecs=[result.codec for _, result in results],
            untils=[session.now + result.kept_us for _, result in results],
            values=[result.value for _, result in results],
            queues=[result.queue for _, result in results],
            batches=[result.batch for _, result in results],
        )


def _keep_alike(session: Session, results: Sequence[tuple[str, NewResult]]) -> None:
    """The same, those together that differ in nothing but their values, which are JSON."""
    alike: dict[tuple[Any, ...], dict[str, str]] = {}
    last, values = None, {}
    for id_, result in results:
        place = (result.generation, result.codec, result.kept_us, result.queue, result.batch)
        if place != last:
            last, values = place, alike.setdefault(place, {})
        values[id_] = result.value.decode()
    for (generation, codec, kept_us, queue, batch), values in alike.items():
        session.change(
            "keep_results_alike", generation=generation, codec=codec, until=session.now + kept_us, queue=queue,
            batch=batch, values=msgspec.json.encode(values).decode(),
        )  # fmt: skip


def consume(session: Session, ends: dict[str, str], follow: Follow | None = None) -> None:
    """Let what waits for ended entries know."""
    following = Follow(Links(session)) if follow is None else follow
    following.ended(ends)
    failpoints.point("links.consumed")
    if follow is None:
        following.finish()


def consume_done(session: Session, sources: list[str]) -> None:
    """The same for entries that are done, with the fewest statements."""
    links = Links(session)
    counts = session.rows("links_of_done", sources=sources)
    session.change("drop_links_of_done", sources=sources)
    waits = links.count([Wait(target, -consumed, done) for target, consumed, done in counts])
    failpoints.point("links.consumed")
    released = sorted(wait.id for wait in waits if wait.needs == 0)
    if released:
        links.release(released)


class Links:
    """The links of a space inside one transaction, for the rules that all stores share."""

    def __init__(self, session: Session) -> None:
        """For one transaction."""
        self._session = session

    def links_from(self, sources: Sequence[str]) -> list[Link]:
        """The links of these entries that are not consumed."""
        return [Link(*row) for row in self._session.rows("links_from", sources=list(sources))]

    def add_links(self, links: Sequence[Link]) -> None:
        """Keep new links."""
        if links:
            self._session.change(
                "add_links",
                sources=[link.source for link in links],
                targets=[link.target for link in links],
                kinds=[link.on for link in links],
            )

    def take_links(self, ends: Mapping[str, str]) -> list[Link]:
        """Forget the links that these ends consume, and say which they were."""
        taken = [link for link in self.links_from(list(ends)) if is_consumed(link, ends[link.source])]
        if taken:
            dead = [id_ for id_, state in ends.items() if state == "dead"]
            self._session.change("drop_links", sources=list(ends), dead=dead or [""])
        return taken

    def mark_source(self, id_: str) -> SourceState | None:
        """See to it that the end of a live entry looks for links; or how it ended."""
        session = self._session
        known = session.row("known", id=id_)
        if known is None:
            return None
        # No claim is under way while the queue's rows are ours: none can take the entry with a body it read before.
        session.rows("lock_queue_rows", queue=known[0])
        live = live_entry(session, id_, lock=True)
        if live is None:
            ended = session.row("dead_by_id", id=id_) or session.row("last_end", id=id_)
            return None if ended is None else ended[1]
        session.change("mark_body", body=live.body)
        if live.claim is None:
            session.change("mark_waiting", seq=live.seq)
        else:
            session.change("mark_claimed", seq=live.seq, record=live.record)
        return "live"

    def hold(self, targets: Sequence[str]) -> None:
        """Let new entries be held."""
        if targets:
            seqs = [seq for (seq,) in self._session.rows("places_of", ids=list(targets))]
            self._session.change("set_due", seqs=seqs, due=HELD)

    def lock_held(self, target: str) -> bool:
        """Whether an entry is held; who would release it waits for this transaction."""
        self._session.change(
            "count_wait", id=target, **dict.fromkeys(("needs", "done", "dead", "cancelled", "expired"), 0)
        )
        return self._held(target) is not None

    def count(self, changes: Sequence[Wait]) -> list[Wait]:
        """Add to what entries need and have counted."""
        if len(changes) < 2:
            return [self.count_one(change) for change in changes]
        columns = _wait_columns(changes)
        # In the order of their ids, as everybody does: nobody waits for one who waits for him.
        known = {id_ for (id_,) in self._session.rows("lock_waits", ids=columns["ids"])}
        fresh = [change for change in changes if change.id not in known]
        if fresh:
            self._session.change("load_waits", **_wait_columns(fresh))
        counted = [change for change in changes if change.id in known]
        if counted:
            rows = [msgspec.structs.astuple(change) for change in counted]
            self._session.change("count_waits", changes=rows, **_wait_columns(counted))
        ids = [change.id for change in counted]
        return [*fresh, *(Wait(*row) for row in (self._session.rows("waits_of", ids=ids) if ids else ()))]

    def count_one(self, change: Wait) -> Wait:
        """Add to what one entry needs and has counted."""
        values = msgspec.structs.asdict(change)
        rows = self._session.rows("count_wait", **values)
        if rows:
            return Wait(*rows[0])
        if change != Wait(change.id):
            self._session.change("load_wait", **values)
        return change

    def release(self, targets: Sequence[str]) -> None:
        """Let those that are still held become due."""
        session = self._session
        seqs_by_due: dict[Micros, list[int]] = {}
        for seq, first_due in self._still_held(targets):
            seqs_by_due.setdefault(max(first_due, session.now), []).append(seq)
        for due, seqs in seqs_by_due.items():
            session.change("set_due", seqs=seqs, due=due)
            session.rings = True

    def cancel(self, reasons: Mapping[str, str], follow: Follow) -> None:
        """End those that are still held as cancelled."""
        session = self._session
        endings = Endings(session, follow)
        for seq, _ in self._still_held(sorted(reasons)):
            [row] = session.rows(session.current("live_waiting", "live_by_seq"), seq=seq)
            live = Live(*row)
            endings.end(live, "cancelled", error=reasons[live.id], ran=False)
            session.cascaded.append((live.id, live.queue, reasons[live.id]))
        endings.apply()

    def _still_held(self, targets: Sequence[str]) -> list[tuple[int, Micros]]:
        """Places and due times of those that are still held, locked; what a forgotten one needed is forgotten, too."""
        session = self._session
        places = sorted(seq for (seq,) in session.rows(session.current("places_now", "places_of"), ids=list(targets)))
        if places and session.knows("lock_places"):
            session.rows("lock_places", seqs=places)
        rows = session.rows("lock_held", seqs=places, due=HELD) if places else []
        for target in set(targets).difference(id_ for _, id_, _ in rows):
            session.change("drop_wait", id=target)
        return [(seq, first_due) for seq, _, first_due in rows]

    def _held(self, target: str) -> Live | None:
        live = live_entry(self._session, target, lock=True)
        return live if live is not None and live.claim is None and live.is_held else None


def _wait_columns(waits: Sequence[Wait]) -> dict[str, list[Any]]:
    return {
        "ids": [wait.id for wait in waits],
        "needs": [wait.needs for wait in waits],
        "done": [wait.done for wait in waits],
        "dead": [wait.dead for wait in waits],
        "cancelled": [wait.cancelled for wait in waits],
        "expired": [wait.expired for wait in waits],
    }


def take_away(session: Session, live: Live, *, error: str) -> None:
    """Void the lease of an entry; it waits again, and its attempt is spent."""
    endings = Endings(session)
    endings.record(live, "retried", error=error)
    endings.give_back(live, live.due, attempt=live.attempt)
    endings.apply()


def release_unique(session: Session, holders: list[Live]) -> None:
    """Let go of the unique ids that entries hold until they are started or done."""
    if holders:
        session.change(
            "release_unique",
            queues=[live.queue for live in holders],
            keys=[live.unique_key for live in holders],
            ids=[live.id for live in holders],
        )


def _columns(attempts: list[_Attempt]) -> dict[str, Any]:
    """What history and dead letters have in common, column by column."""
    return {
        "bodies": [attempt.live.body for attempt in attempts],
        "numbers": [attempt.live.number for attempt in attempts],
        "attempts": [attempt.attempt for attempt in attempts],
        "dues": [attempt.live.due for attempt in attempts],
        "started": [attempt.started for attempt in attempts],
        "fences": [attempt.live.fence for attempt in attempts],
        "owners": [attempt.live.owner for attempt in attempts],
        "errors": [attempt.error for attempt in attempts],
    }
