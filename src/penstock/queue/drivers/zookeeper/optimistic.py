"""One call, one multi: a call is drafted on the mirror and sent, and drafted again when somebody else was first.

Where the answer cannot be wrong if the multi goes through, the draft is made on the mirror as it stands, and the log is
read only if the multi is refused. Otherwise the log is read first.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from penstock.clock import Micros
from penstock.errors import PenstockError, StoreUnavailable, UnitTooLarge
from penstock.ids import new_nonce
from penstock.queue.drivers.zookeeper.changelog import Changelog
from penstock.queue.drivers.zookeeper.commit import Commit
from penstock.queue.drivers.zookeeper.connection import Connection, Refused, Unanswered
from penstock.queue.drivers.zookeeper.layout import Layout
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.payloads import Payloads
from penstock.queue.protocol import Reaped
from penstock.queue.rules.reap import take_back
from penstock.queue.rules.rows import ClaimKey

T = TypeVar("T")

_PART = 500  # entries taken back at once
WARY = 20  # calls that read the log first after somebody else was first


class _Tries(Generic[T]):
    """The tries of one call."""

    def __init__(
        self, work: Callable[[], T], certain: Callable[[T], bool] | None = None, *, cleans_up: bool = False
    ) -> None:
        self.work = work
        self.certain = certain
        self.cleans_up = cleans_up  # takes back what vanished sessions held, on behalf of another call
        self.answers: dict[str, T] = {}  # by try
        self.unanswered: list[tuple[int, int]] = []  # where the log was when they were sent
        self.refusals = 0


class Optimistic:
    """Runs calls on one mirror. The driver makes sure that they run one at a time."""

    def __init__(self, connection: Connection, layout: Layout, now: Callable[[], Micros]) -> None:
        """Start with an empty mirror. ``now`` gives the time of entries that are taken back."""
        self._connection = connection
        self._layout = layout
        self._now = now
        self._handle = new_nonce()
        self._numbers = itertools.count()  # of tries; the log's records name the handle, too
        self._dice = random.Random()
        self._wary = 0
        self._bound_when: int | None = None  # how many sessions were lost when ours was registered
        self.payloads = Payloads(connection, layout)
        self.mirror = Mirror(self.payloads.remember)
        self.changelog = Changelog(connection, layout, self.mirror, self._handle)
        self.taken_back = Reaped([], [], [], [], [])  # before a reaper came, and not reported yet

    def bind(self) -> str:
        """Register the session that claims made here are bound to, unless it is registered. Returns its name."""
        if self._bound_when != self._connection.lost:
            lost = self._connection.lost
            self.mirror.state.session = self._connection.register(self._layout.handles)
            self._bound_when = lost
        return self.mirror.state.session

    def run(
        self, work: Callable[[], T], *, certain: Callable[[T], bool] | None = None, binds: bool = False
    ) -> tuple[T, bool]:
        """Run a call on the mirror and commit what it changed. Returns its answer, and whether the bell was rung.

        ``certain`` says whether an answer is right if its multi succeeds, however old the mirror is. ``binds``
        is for calls that claim. Raises ``OutcomeUnknown`` when a try was sent and nobody can tell whether it happened.
        """
        tries = _Tries(work, certain)
        try:
            return self._try(tries, binds=binds)
        except StoreUnavailable as error:
            if not tries.unanswered:
                raise
            raise self._connection.unknown(error.message) from error

    def follow(self, deadline: float) -> None:
        """Bring the mirror up to date."""
        self._connection.wait_connected(deadline)
        self.changelog.sync()

    def _try(self, tries: _Tries[T], *, binds: bool) -> tuple[T, bool]:
        deadline = time.monotonic() + self._connection.address.patience
        if not tries.cleans_up:
            self.changelog.happened.clear()
        is_current = False
        while True:
            # 1. A connection, a session, and a mirror as current as the call needs it.
            self._connection.wait_connected(deadline)
            if binds:
                self.bind()
            if not is_current and self._reads_first(tries):
                self.follow(deadline)
                is_current = True
                answer = self._answer_of_lost(tries)
                if answer is not None:
                    return answer
            if self.mirror.vanished and not tries.cleans_up:
                self._take_back_vanished(deadline)
                is_current = False
                continue
            # 2. The draft.
            draft = self._draft(tries, is_current=is_current)
            if draft is None:
                tries.certain = None
                continue
            answer_drafted, commit, op = draft
            if not commit.ops:
                self.mirror.accept()
                return answer_drafted, False
            # 3. The multi.
            place = self.changelog.place
            reply = self._send(commit)
            if isinstance(reply, list):
                return answer_drafted, self._accept(commit, op, reply)
            # 4. It did not happen, or nobody knows: the log is read before the next try.
            tries.answers[op] = answer_drafted
            is_current, tries.certain = False, None
            if isinstance(reply, Unanswered):
                tries.unanswered.append(place)
            else:
                tries.refusals += 1
                self._wary = WARY
                self._look_into(reply, tries.refusals, deadline)

    def _reads_first(self, tries: _Tries[T]) -> bool:
        """Whether the log is read before a draft is made."""
        if tries.certain is None or self.changelog.is_far_behind:
            return True
        if self._wary:
            self._wary -= 1
            return True
        return False

    def _answer_of_lost(self, tries: _Tries[T]) -> tuple[T, bool] | None:
        """The answer of a try whose reply was lost, if the log shows that it did happen."""
        for op in self.changelog.happened.intersection(tries.answers):
            return tries.answers[op], True
        if any(not self.changelog.tells_since(place) for place in tries.unanswered):
            # The first try may have been applied; another one would not tell.
            raise self._connection.away("a reply was lost, and the log does not go back that far any more")
        return None

    def _draft(self, tries: _Tries[T], *, is_current: bool) -> tuple[T, Commit, str] | None:
        """Run the call on the mirror. Returns None if what it says has to be checked against the log first."""
        mirror, op = self.mirror, str(next(self._numbers))
        mirror.begin()
        try:
            answer = tries.work()
            mirror.finish_draft()
            commit = Commit(mirror, self._layout, self.payloads, self._handle, op)
        except PenstockError:
            mirror.reject()
            if is_current or tries.certain is None:
                raise
            return None
        except BaseException:
            mirror.reject()
            raise
        if not is_current and not (commit.ops and tries.certain is not None and tries.certain(answer)):
            mirror.reject()
            return None
        return answer, commit, op

    def _send(self, commit: Commit) -> list[str] | Refused | Unanswered:
        try:
            reply = self._connection.multi(commit.ops)
        except BaseException:
            self.mirror.reject()
            raise
        if not isinstance(reply, list):
            self.mirror.reject()
        return reply

    def _accept(self, commit: Commit, op: str, results: list[str]) -> bool:
        rang = self.mirror.state.rang
        commit.accept()
        number = int(results[-1].rpartition("-")[2])
        self.changelog.accepted(op, number)
        self.changelog.trim(number)
        return rang

    # --- sessions that are gone --------------------------------------------------------------------------

    def find_vanished(self) -> None:
        """Find sessions that are gone. What they hold is theirs no longer."""
        sessions = {claim.session for claim in self.mirror.state.claims.values()}
        if sessions:
            [names] = self._connection.list_many([self._layout.handles])
            self.mirror.vanished |= sessions - set(names or ())

    def _take_back_vanished(self, deadline: float) -> None:
        """Take back entries whose owners' sessions are gone, if nobody has yet. The next reap reports them."""
        self.follow(deadline)
        part = _PART
        while claims := self._vanished_claims(part):
            try:
                reaped, _ = self._try(_Tries(partial(self._take_back, claims), cleans_up=True), binds=False)
            except UnitTooLarge:
                if part == 1:
                    raise
                part //= 2
                continue
            self.taken_back.reaped += reaped.reaped
            self.taken_back.dead += reaped.dead
        self.mirror.vanished.clear()

    def _vanished_claims(self, limit: int) -> list[tuple[ClaimKey, list[str]]]:
        claims: list[tuple[ClaimKey, list[str]]] = []
        for key, claim in self.mirror.state.claims.items():
            if limit <= 0:
                break
            if claim.session in self.mirror.vanished:
                claims.append((key, list(claim.held)[:limit]))
                limit -= len(claims[-1][1])
        return claims

    def _take_back(self, claims: list[tuple[ClaimKey, list[str]]]) -> Reaped:
        reaped, state = Reaped([], [], [], [], []), self.mirror.state
        with state.atomic():
            for key, ids in claims:
                claim = state.claims.get(key)
                if claim is not None:
                    take_back(state, key, [id_ for id_ in ids if id_ in claim.held], self._now(), reaped)
        return reaped

    def _look_into(self, refused: Refused, refusals: int, deadline: float) -> None:
        """Find out why a multi was refused, as far as following the log will not tell."""
        if time.monotonic() > deadline:
            raise StoreUnavailable(
                f"{self._connection.address.name} refused {refusals} tries of a call, the last time to {refused}.",
                hint="Many clients change the same queue at once; ZooKeeper is for small queues.",
            )
        folder, _, name = refused.op.path.rpartition("/")
        if folder == self._layout.handles:
            self.mirror.vanished.add(name)
            if name == self.mirror.state.session:
                self._bound_when = None
        elif refusals % 5 == 0:
            # It may also be that the mirror is not what is stored.
            self.changelog.forget()
        if refusals > 2:
            threading.Event().wait(self._dice.uniform(0, min(0.1, 0.002 * 2**refusals)))
