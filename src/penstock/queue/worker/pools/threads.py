"""ThreadPool: runs a sync handler in threads of its own, the slots."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.clock import Micros
from penstock.queue.entry import Entry
from penstock.queue.handling.handler import Handler
from penstock.queue.worker.pool import HandlerPool, Shared

BRIEF = 0.001  # seconds; a handler that takes less is done with what is prepared before a round trip is
# Seconds after which a slot counts as held up although its handler is brief by experience. Less would take a thread
# that waits for a core, or for the reply to its round trip, for one whose handler hangs.
PATIENCE = 0.01
FETCH_STEP = 10  # after so many entries a slot of a brief handler asks whether to fetch ahead, if many are prepared


class ThreadPool(HandlerPool):
    """A sync handler in threads of its own (slots), up to its concurrency.

    While the handler is brief, one slot does all the work: waking others would cost more than they could do. One of the
    idle slots is the *lookout*: it looks every few milliseconds whether the work continues, and helps if it does not.
    A handler that takes longer has as many slots as there are entries.
    """

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Start without threads."""
        super().__init__(handler, shared)
        self._prepared: deque[Entry[Any]] = deque()
        self._change = threading.Condition()
        self._slots: set[threading.Thread] = set()
        self._idle = 0
        self._begun: dict[threading.Thread, float] = {}  # when each busy slot last began something
        self._has_lookout = False
        self._first_takes_long = False  # the first attempt has not ended yet, and is not brief
        self._closed = False
        # What is limited is not claimed before there is a slot for it: others may have one.
        self._may_fetch_ahead = self._may_prefetch and not handler.queue.definition.is_limited

    def prepared(self) -> int:
        """What waits for a slot."""
        return len(self._prepared)

    def longest_running(self, now: Callable[[], Micros]) -> float:
        """By when each slot began what it is at."""
        begun = list(self._begun.values())
        return max(0.0, time.perf_counter() - min(begun)) if begun else 0.0

    def _seconds_since_start(self) -> float:
        begun = list(self._begun.values())
        return time.perf_counter() - max(begun) if begun else 0.0

    def is_brief(self) -> bool:
        """Whether the handler takes so little time that one slot does best, as far as is known."""
        return not self._first_takes_long if self.mean_seconds is None else self.mean_seconds <= BRIEF

    def runs_low(self) -> bool:
        """Whether it is time for a round trip; several slots must not run dry while it is under way."""
        return len(self._prepared) < (1 if self.is_brief() else self.handler.concurrency)

    def accept(self, entries: list[Entry[Any]]) -> None:
        """Prepare entries and see that slots come for them."""
        self._hold(entries)
        this = threading.current_thread()
        with self._change:
            self._prepared.extend(entries)
            # A slot that made the round trip itself takes the first entry, so no other slot wakes for that one.
            here = this in self._slots
            if here:
                self._begun[this] = time.perf_counter()
            wanted = len(self._prepared) - here
            if self.is_brief():
                first = 0 if here or self._is_brisk() else 1
                lookout = wanted > first and not self._has_lookout
                wanted = first + lookout
            self._call(wanted)

    def take_back(self) -> list[Entry[Any]]:
        """What has not started."""
        back = []
        with contextlib.suppress(IndexError):
            while True:
                entry = self._prepared.popleft()
                if self._in_hand.get(entry.id) is entry:
                    del self._in_hand[entry.id]
                    back.append(entry)
        return back

    def wake(self) -> None:
        """Let idle slots look again."""
        with self._change:
            self._change.notify_all()

    def close(self) -> None:
        """End the slots as they become idle."""
        self._closed = True
        self.wake()

    # --- in the slots ------------------------------------------------------------------------------

    def _slot(self) -> None:
        this = threading.current_thread()
        try:
            while (entry := self._next(this)) is not None:
                self._begun[this] = time.perf_counter()  # never a new key: others may be reading
                if self._in_hand.get(entry.id) is not entry:
                    continue  # it was taken away while it waited here, and claimed again or given up
                attempt = self._attempt(entry)
                attempt.run_surely()
                self._conclude(entry, attempt, hurry=False)
                self._go_on(this)
        finally:
            with self._change:
                self._slots.discard(this)
                self._begun.pop(this, None)

    def _go_on(self, this: threading.Thread) -> None:
        """After an attempt: see to it that the slots do not run dry."""
        prepared = len(self._prepared)
        if self.is_brief():
            if not prepared:
                self._begun[this] = time.perf_counter()
                self._reports.slot_runs_low(self)
            elif self._may_fetch_ahead and self._asks_for_more(prepared):
                self._reports.half_is_done()
            return
        if self._idle and prepared:
            with self._change:
                self._call(prepared)  # those who slept while the handler seemed brief
        if self.runs_low() or prepared <= self.prefetch() // 2:
            self._reports.slot_runs_low(self)

    def _asks_for_more(self, prepared: int) -> bool:
        """Whether it is time to fetch ahead, if that is worth while; asking costs, so not after every entry."""
        half = self.prefetch() // 2
        return prepared <= half and (half < 2 * FETCH_STEP or not prepared % FETCH_STEP)

    def _next(self, this: threading.Thread) -> Entry[Any] | None:
        """The next entry for this slot, or None when there will be none."""
        if len(self._slots) - self._idle <= 1 or not self.is_brief():
            try:
                return self._prepared.popleft()
            except IndexError:
                pass
        with self._change:
            self._begun.pop(this, None)
            while (entry := self._take()) is None:
                if self._closed and not self._prepared:
                    return None
                self._idle += 1
                if self._prepared and not self._has_lookout:
                    self._look_out()
                else:
                    self._change.wait()
                self._idle -= 1
            self._begun[this] = time.perf_counter()
            if self._prepared and not self._has_lookout:
                self._call(1)  # one who looks out from now on
            return entry

    def _take(self) -> Entry[Any] | None:
        """What is prepared, unless a slot at work comes to it in a moment.

        Such a slot takes without the lock, so it may also be quicker between the look and the pop.
        """
        if not (self._prepared and self.is_brief() and self._is_brisk()):
            with contextlib.suppress(IndexError):
                return self._prepared.popleft()
        return None

    def _look_out(self) -> None:
        """Sleep until the work does not continue by itself: nothing that a slot is at is brief. Needs the lock."""
        self._has_lookout = True
        while not self._change.wait(self._patience()) and self._is_brisk():
            pass
        self._has_lookout = False
        if not self._begun or self._is_brisk():
            return
        self._reports.slots_are_held_up()
        if self._prepared and self.mean_seconds is None:
            self._first_takes_long = True
            self._call(len(self._prepared))

    def _is_brisk(self) -> bool:
        """Whether a slot is at work and began what it is at a moment ago. Needs the lock."""
        recently = time.perf_counter() - self._patience()
        return any(begun > recently for begun in self._begun.values())

    def _patience(self) -> float:
        """How long a slot may be at one thing before another one helps."""
        return BRIEF if self.mean_seconds is None else PATIENCE

    def _call(self, wanted: int) -> None:
        """Wake as many idle slots, or start them. Needs the lock."""
        if wanted < 1:
            return
        self._change.notify(wanted)
        for _ in range(min(wanted - self._idle, self.handler.concurrency - len(self._slots))):
            slot = threading.Thread(target=self._slot, name=f"penstock-{self.name}", daemon=True)
            self._slots.add(slot)
            self._begun[slot] = time.perf_counter()
            slot.start()
