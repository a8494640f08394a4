"""Links: what one entry's end means for the entries that wait for it, the same on every store that runs Python.

An entry that waits for others is *held*. Each of the others has a link to it, and the step in which one of them ends
consumes that link: the held entry needs one less, and its tally counts how the other ended. At zero it is released.

- ``done`` always consumes; ``dead`` only a link with ``on="ended"``: dead means not yet, for a replay continues.
- ``cancelled`` and ``expired`` always consume; with ``on="done"`` the held entry is then cancelled, too, and so on
  downwards: they mean never.

A step's net change is made first and the test for zero comes last, so a member that adds members while it ends keeps
its batch held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import Literal, Protocol

import msgspec

from penstock.errors import BadInput
from penstock.queue import refusals
from penstock.queue.protocol import Link, NewEntry, PutResult, Wait

PURGED = "purged"  # a dead letter that is gone for good
SourceState = Literal["live", "done", "dead", "cancelled", "expired"]


class LinkStore(Protocol):
    """What a store does for links, inside the step that is under way."""

    def links_from(self, sources: Sequence[str]) -> list[Link]:
        """The links of these entries that are not consumed."""

    def take_links(self, ends: Mapping[str, str]) -> list[Link]:
        """Forget the links that these ends consume, state by id, and say which they were."""

    def add_links(self, links: Sequence[Link]) -> None:
        """Keep new links, whose sources live."""

    def mark_source(self, id_: str) -> SourceState | None:
        """Mark a live entry as having links. Returns its state, which may be an end, or None if it is unknown."""

    def hold(self, targets: Sequence[str]) -> None:
        """Hold entries that this step put. Raises where a queue cannot hold them."""

    def lock_held(self, target: str) -> bool:
        """Whether an entry is held, which it stays until the step ends."""

    def count(self, changes: Sequence[Wait]) -> list[Wait]:
        """Add to what entries need and have counted. Returns the sums. Other writers wait until the step ends."""

    def release(self, targets: Sequence[str]) -> None:
        """Let those of these entries that are still held become due."""

    def cancel(self, reasons: Mapping[str, str], follow: Follow) -> None:
        """End those of these entries that are still held as cancelled, for a reason, and let follow what does."""


class Postponing(Protocol):
    """For stores whose steps are small: what a step cannot consume is kept, and consumed by later steps."""

    room: int  # links that the step may still consume

    def postpone(self, links: Sequence[Link], state: str) -> None:
        """Keep links whose source has ended like this, apart from those it may get when it is replayed."""


class Follow:
    """What follows from the ends and the new links of one step."""

    def __init__(self, tables: LinkStore, postponing: Postponing | None = None) -> None:
        """Begin with nothing. Without ``postponing`` a step consumes all links, however many there are."""
        self._tables = tables
        self._postponing = postponing
        self._changes: dict[str, Wait] = {}
        self._doomed: dict[str, str] = {}  # by target: why it can never be released

    def ended(self, ends: Mapping[str, str]) -> None:
        """Consume the links of entries that ended: state by id, or ``purged`` for a dead letter that is gone."""
        consumed = self._tables.take_links(ends)
        if self._postponing is None:
            self._consume_all(consumed, ends)
            return
        for source, links in groupby(consumed, key=lambda link: link.source):
            self._consume(list(links), ends[source])

    def _consume_all(self, links: Sequence[Link], ends: Mapping[str, str]) -> None:
        """Count the links of a target together: the members of a batch end by the hundred."""
        counts: Counter[tuple[str, str | None]] = Counter()
        for link in links:
            state = ends[link.source]
            counts[link.target, _tallied(link, state)] += 1
            if is_fatal(link, state):
                self._doomed.setdefault(link.target, reason_of(link, state))
        for (target, tallied), count in counts.items():
            self._change(target, -count, tallied, count)

    def resume(self, links: Sequence[Link], state: str) -> None:
        """Consume links that a step before postponed, at least one of them."""
        self._consume(links, state, has_to=True)

    def _consume(self, links: Sequence[Link], state: str, *, has_to: bool = False) -> None:
        postponed = []
        for link in links:
            if not self._has_room(link, state) and not has_to:
                postponed.append(link)
                continue
            has_to = False
            self._change(link.target, -1, _tallied(link, state))
            if is_fatal(link, state):
                self._doomed.setdefault(link.target, reason_of(link, state))
        if postponed and self._postponing is not None:
            self._postponing.postpone(postponed, state)

    def _has_room(self, link: Link, state: str) -> bool:
        """Whether the step can take the link, and the links of a target that is cancelled with it."""
        if self._postponing is None:
            return True
        links = 1 + (len(self._tables.links_from([link.target])) if is_fatal(link, state) else 0)
        if links > self._postponing.room:
            return False
        self._postponing.room -= links
        return True

    def linked(
        self, links: Sequence[Link], puts: Sequence[NewEntry], results: Sequence[PutResult], known: set[str]
    ) -> None:
        """Make the links of a step whose entries are put; ``known`` are those that were there before."""
        ids = {put.id: result.id for put, result in zip(puts, results, strict=True)}
        # A unique id may stand for another entry, which is then one that was there before.
        fresh = {put.id for put in puts if ids[put.id] == put.id and put.id not in known}
        pairs: dict[tuple[str, str], Link] = {}
        for link in links:
            if ids.get(link.target, link.target) != link.target:
                raise refusals.not_held(ids[link.target])
            source = ids.get(link.source, link.source)
            pairs.setdefault((source, link.target), msgspec.structs.replace(link, source=source))
        new = [link for link in pairs.values() if not self._is_repeated(link, fresh, known)]
        self._check_cycles(new, fresh)
        self._tables.hold([target for target in dict.fromkeys(link.target for link in new) if target in fresh])
        self._check_held(new, fresh)
        self._add(new, fresh)

    def _is_repeated(self, link: Link, fresh: set[str], known: set[str]) -> bool:
        """Whether a put that is repeated made this link the first time, and it may be consumed since."""
        if link.source not in known or link.target in fresh:
            return False
        return not (self._tables.lock_held(link.target) and self._tables.mark_source(link.source) == "live")

    def _check_held(self, links: Sequence[Link], fresh: set[str]) -> None:
        for target in sorted({link.target for link in links} - fresh):
            if not self._tables.lock_held(target):
                raise refusals.not_held(target)

    def _add(self, links: Sequence[Link], fresh: set[str]) -> None:
        states: dict[str, SourceState | None] = dict.fromkeys(fresh, "live")
        for source in sorted({link.source for link in links} - fresh):
            states[source] = self._tables.mark_source(source)
        old = [source for source, state in states.items() if source not in fresh and state == "live"]
        existing = {(link.source, link.target) for link in self._tables.links_from(old)} if old else set()
        lasting = []
        for link in links:
            state = states[link.source]
            if (link.source, link.target) in existing:
                continue  # it waits for that one already
            if state is None:
                raise refusals.unknown_source(link.source)
            if state == "live":
                lasting.append(link)
                self._change(link.target, 1, None)
            elif state == "done" or link.on == "ended":
                self._change(link.target, 0, state)
            else:
                raise refusals.source_ended(link.source, state)
        self._tables.add_links(lasting)

    def _check_cycles(self, links: Sequence[Link], fresh: set[str]) -> None:
        """Refuse a new entry that waits for one which, over links that are there, waits for it."""
        sources = {link.source for link in links} - fresh
        reached = {link.target for link in links} - fresh
        if not sources or not reached:
            return
        seen: set[str] = set()
        while reached:
            if reached & sources:
                raise refusals.cycle(sorted(reached & sources))
            seen |= reached
            reached = {link.target for link in self._tables.links_from(sorted(reached))} - seen

    def finish(self) -> None:
        """Make the net change; release what needs nothing any more, cancel what can never be released."""
        while self._changes:
            changes, self._changes = self._changes, {}
            doomed, self._doomed = self._doomed, {}
            waits = self._tables.count([changes[target] for target in sorted(changes)])
            if doomed:
                self._tables.cancel(doomed, self)
            released = [wait.id for wait in waits if wait.needs == 0 and wait.id not in doomed]
            if released:
                self._tables.release(released)

    def _change(self, target: str, needs: int, state: str | None, ends: int = 1) -> None:
        before = self._changes.get(target) or Wait(target)
        fields = {"needs": before.needs + needs}
        if state is not None:
            fields[state] = getattr(before, state) + ends
        self._changes[target] = msgspec.structs.replace(before, **fields)


def is_consumed(link: Link, state: str) -> bool:
    """Whether an end like this uses the link up."""
    return state != "dead" or link.on == "ended"


def is_fatal(link: Link, state: str) -> bool:
    """Whether after an end like this the target can never be released."""
    if link.on == "open":
        return state == "expired"
    return link.on == "done" and state in ("cancelled", "expired", PURGED)


def _tallied(link: Link, state: str) -> str | None:
    """Where the target's tally counts an end, if it does: a link that only keeps a batch open is not counted."""
    return None if link.on == "open" else counted_as(state)


def counted_as(state: str) -> str:
    """Where a tally counts an end: nobody can replay a purged dead letter, which is the same as cancelled."""
    return "cancelled" if state == PURGED else state


def reason_of(link: Link, state: str) -> str:
    """Why the target of a link is cancelled."""
    if link.on == "open":
        return f"cancelled because its batch was not complete when {link.source} expired"
    return f"cancelled because {link.source} {'expired' if state == 'expired' else 'was ' + state}"


def total(before: Wait | None, change: Wait) -> Wait:
    """What an entry needs and has counted after a change."""
    if before is None:
        return change
    return Wait(
        before.id, before.needs + change.needs, before.done + change.done, before.dead + change.dead,
        before.cancelled + change.cancelled, before.expired + change.expired,
    )  # fmt: skip


def check_links(links: Sequence[Link], puts: Iterable[NewEntry]) -> None:
    """Refuse links that no step can make: in a circle, or without an end in the step."""
    ids = {put.id for put in puts}
    graph: dict[str, set[str]] = {}
    for link in links:
        if link.source not in ids and link.target not in ids:
            raise BadInput(
                f"neither {link.source!r} nor {link.target!r} is put in this step.", hint="Link new entries only."
            )
        graph.setdefault(link.target, set()).add(link.source)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise refusals.cycle(error.args[1][1:]) from None
