"""Suspects: an entry whose last worker vanished runs alone, so that a poison entry takes no innocent one with it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from penstock.queue.entry import Lease
from penstock.queue.protocol import Claimed

SUSPECT_PATIENCE = 5.0  # seconds


class Suspects:
    """Whether a suspect waits for this worker to be free, or is in hand."""

    def __init__(self) -> None:
        """No suspect is known."""
        self.is_waiting = False
        self._in_hand = ""  # the id of the suspect that is running here
        self._waiting_since: float | None = None

    def forbid_claims(self, in_hand: int) -> bool:
        """Whether nothing may be claimed now: a suspect runs here, or waits for the entries in hand to end."""
        return bool(self._in_hand) or (self.is_waiting and bool(in_hand) and not self.is_overdue())

    def leave_no_room(self, in_hand: int) -> bool:
        """Whether it is pointless to look for more work before something in hand has ended."""
        return bool(self._in_hand) or (self.is_waiting and bool(in_hand))

    def is_overdue(self) -> bool:
        """Whether a suspect has waited long enough for the others to end: then it runs beside them.

        One handler that takes long, or never ends, must not keep a whole worker from its work.
        """
        return self._waiting_since is not None and time.monotonic() - self._waiting_since > SUSPECT_PATIENCE

    def note(self, claimed: Claimed) -> None:
        """Remember what a claim said about suspects."""
        self.is_waiting = claimed.suspect_waits
        if claimed.suspect_waits:
            if self._waiting_since is None:
                self._waiting_since = time.monotonic()
        elif not claimed.suspect:
            self._waiting_since = None

    def start(self, entry_id: str) -> None:
        """A suspect runs here from now on."""
        self._in_hand = entry_id
        self._waiting_since = None

    def end(self, leases: Iterable[Lease]) -> bool:
        """Note that these leases have ended. Returns whether the suspect in hand was one of them."""
        if not self._in_hand or all(lease.entry != self._in_hand for lease in leases):
            return False
        self._in_hand = ""
        return True
