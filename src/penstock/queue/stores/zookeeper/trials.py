"""One call, one multi: a call is tried on the mirror and committed, and tried again when somebody else was first."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from penstock.clock import Micros
from penstock.errors import StoreUnavailable, UnitTooLarge
from penstock.ids import new_nonce
from penstock.queue.store import Reaped
from penstock.queue.stores.memory.claims import take_back
from penstock.queue.stores.zookeeper.bell import Bell
from penstock.queue.stores.zookeeper.commit import Commit
from penstock.queue.stores.zookeeper.journal import Journal
from penstock.queue.stores.zookeeper.layout import Layout
from penstock.queue.stores.zookeeper.mirror import Mirror
from penstock.queue.stores.zookeeper.payloads import Payloads
from penstock.queue.stores.zookeeper.session import Refused, Session
from penstock.queue.stores.zookeeper.sweeping import find_vanished

T = TypeVar("T")

_PART = 500  # entries taken back at once


class Trials:
    """Runs calls on one mirror; one at a time, which is for the store to see to."""

    def __init__(
        self,
        session: Session,
        layout: Layout,
        mirror: Mirror,
        payloads: Payloads,
        *,
        bell: Bell,
        now: Callable[[], Micros],
    ) -> None:
        """Know the mirror and where it comes from."""
        self._session = session
        self._layout = layout
        self._mirror = mirror
        self._payloads = payloads
        self._bell = bell
        self._now = now
        self._handle = new_nonce()
        self._dice = random.Random()
        self.journal = Journal(session, layout, mirror, self._handle)
        self.found_early = Reaped()  # taken back before a reaper came, and not told of yet

    def run(self, work: Callable[[], T], *, taking_back: bool = False) -> T:
        """Run a call on the mirror and commit what it changed; again, on a newer view, when somebody else was first.

        Raises ``OutcomeUnknown`` when a try was sent and nobody can tell now whether it happened.
        """
        unanswered: list[tuple[int, int]] = []  # where the log was when they were sent
        try:
            return self._try(work, unanswered, taking_back=taking_back)
        except StoreUnavailable as error:
            if not unanswered:
                raise
            raise self._session.unknown(error.message) from error

    def _try(self, work: Callable[[], T], unanswered: list[tuple[int, int]], *, taking_back: bool) -> T:
        deadline = time.monotonic() + self._session.address.patience
        mirror, refusals = self._mirror, 0
        answers: dict[str, T] = {}
        if not taking_back:
            self.journal.found.clear()
        while True:
            self.follow(deadline)
            for tried in self.journal.found.intersection(answers):
                # The reply was lost, and the log shows that it did happen.
                return answers[tried]
            if any(not self.journal.tells_since(place) for place in unanswered):
                # It may have happened, and what it would give if it were tried again says nothing of that.
                raise self._session.away("a reply was lost, and the log does not go back that far any more")
            if mirror.vanished and not taking_back:
                self._take_back_vanished()
                continue
            op = new_nonce()
            mirror.begin()
            try:
                answer = work()
                commit = Commit(mirror, self._layout, self._payloads, self._handle, op)
                if not commit.ops:
                    mirror.accept()
                    return answer
                place = self.journal.place
                said = self._session.multi(commit.ops)
            except BaseException:
                mirror.reject()
                raise
            if isinstance(said, list):
                commit.accept()
                number = int(said[-1].rpartition("-")[2])
                self.journal.accepted(op, number)
                self.journal.trim(number)
                if mirror.rang:
                    self._bell.ring()
                return answer
            mirror.reject()
            answers[op] = answer
            if isinstance(said, Refused):
                refusals += 1
                self._look_into(said, refusals, deadline)
            else:
                unanswered.append(place)

    def follow(self, deadline: float) -> None:
        """Bring the mirror up to date."""
        self._session.wait_connected(deadline)
        self.journal.sync()

    def _take_back_vanished(self) -> None:
        """Take entries back whose locks went with a session: whoever notices first. The next reap tells of them."""
        part = _PART
        while ids := sorted(self._mirror.vanished)[:part]:
            try:
                found = self.run(partial(self._take_back, ids), taking_back=True)
            except UnitTooLarge:
                if part == 1:
                    raise
                part //= 2
                continue
            self._mirror.vanished.difference_update(ids)
            self.found_early.reaped += found.reaped
            self.found_early.dead += found.dead

    def _take_back(self, ids: list[str]) -> Reaped:
        found, mirror = Reaped(), self._mirror
        with mirror.atomic():
            for id_ in ids:
                item = mirror.live.get(id_)
                if id_ in mirror.vanished and item is not None and item.lease is not None:
                    take_back(mirror, item, self._now(), found)
        return found

    def _look_into(self, refused: Refused, refusals: int, deadline: float) -> None:
        """Find out why a multi was refused, as far as following the log will not tell."""
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"{self._session.address.name} refused {refusals} tries of a call, the last time to {refused}.",
                hint="Many clients change the same queue at once; ZooKeeper is for small queues.",
            )
        path = refused.op.path
        if "/locks/lock-" in path and refused.op.verb in ("delete", "check"):
            queue = path.removeprefix(f"{self._layout.queues}/").partition("/")[0]
            find_vanished(self._mirror, self._layout, self._session, {queue})
        elif refusals % 5 == 0:
            # It may also be that the mirror is not what is stored.
            self.journal.forget()
        if refusals > 2:
            threading.Event().wait(self._dice.uniform(0, min(0.1, 0.002 * 2**refusals)))
