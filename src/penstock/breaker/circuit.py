"""Circuit: its three states, what the store keeps of it, and the rules by which it changes.

The rules are plain functions from one record to the next, so that whoever loses a race for a circuit reads it again and
applies them once more.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock.clock import SECOND, Micros, from_micros
from penstock.codec import prepared
from penstock.ids import new_nonce

CircuitState = Literal["closed", "open", "half_open"]
STATES: tuple[CircuitState, ...] = ("closed", "open", "half_open")
KEPT_TRANSITIONS = 50


class Transition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of state: when, to what, why, by whom, and the figures it was decided on."""

    at_us: Micros
    state: CircuitState
    why: str
    by: str
    ratio: int = 0
    samples: int = 0

    @property
    def at(self) -> datetime:
        """When, in store time."""
        return from_micros(self.at_us)


@prepared
class CircuitRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the store keeps of a circuit. Statistics of an earlier ``epoch`` do not count any more."""

    circuit: str
    state: CircuitState = "closed"
    epoch: int = 0
    since_us: Micros = 0
    ratio: int = 0  # when it last changed
    permits: dict[str, Micros] = {}  # probes under way, and when they count as lost
    successes: int = 0  # of probes since it became half open
    transitions: list[Transition] = []  # the oldest first
    by: str = ""  # who wrote it and a nonce, so that no two writes are equal

    def moved(
        self, state: CircuitState, now: Micros, *, why: str, by: str, ratio: int = 0, samples: int = 0
    ) -> CircuitRecord:
        """The record after a change of state."""
        passed = [*self.transitions, Transition(now, state, why, by, ratio, samples)][-KEPT_TRANSITIONS:]
        return msgspec.structs.replace(
            self,
            state=state,
            since_us=now,
            ratio=0 if state == "closed" else ratio,
            epoch=self.epoch + (state == "closed"),
            permits={},
            successes=0,
            transitions=passed,
            by=signed(by),
        )


class CircuitView(msgspec.Struct, frozen=True):
    """A circuit as shown: state, figures as of now, the queues it holds locked, probes under way, its transitions."""

    hash: str
    circuit: str
    state: CircuitState
    since_us: Micros
    ratio: int
    successes: int
    failures: int
    locked: int
    probes: int
    transitions: tuple[Transition, ...]

    @property
    def since(self) -> datetime:
        """Since when it is in this state."""
        return from_micros(self.since_us)

    @property
    def level(self) -> int:
        """The state as a gauge: 0 closed, 1 half open, 2 open."""
        return {"closed": 0, "half_open": 1, "open": 2}[self.state]

    def information(self, metric_name: str | None = None) -> dict[str, Any]:
        """gateleen's JSON for one circuit: status and ``info``."""
        return {"status": self.state, "info": self._info(metric_name)}

    def listed(self, metric_name: str | None = None) -> dict[str, Any]:
        """gateleen's JSON for one among all circuits, where it says ``infos``."""
        return {"status": self.state, "infos": self._info(metric_name)}

    def _info(self, metric_name: str | None) -> dict[str, Any]:
        info: dict[str, Any] = {"failRatio": self.ratio, "circuit": self.circuit}
        return info if metric_name is None else {**info, "metricName": metric_name}


def signed(by: str) -> str:
    """A writer's name that no other write has."""
    return f"{by} {new_nonce()}"


def with_permit(
    record: CircuitRecord, key: str, now: Micros, *, until: Micros, most: int, by: str
) -> CircuitRecord | None:
    """The record with one more probe under way, or None if it is not half open or has no permit left."""
    if record.state != "half_open":
        return None
    # One that ends later than a new one would was written by a clock that was set back since.
    running = {holder: ends for holder, ends in record.permits.items() if now < ends <= until + SECOND}
    if key not in running and len(running) >= most:
        return None
    return msgspec.structs.replace(record, permits={**running, key: until}, by=signed(by))


def after_probe(
    record: CircuitRecord, permit: str, ok: bool | None, now: Micros, *, needed: int, by: str
) -> CircuitRecord:
    """The record after a probe has ended well, badly or (None) without an answer; its permit is back in any case."""
    left = {key: ends for key, ends in record.permits.items() if key != permit}
    if record.state == "half_open" and ok is not None:
        if not ok:
            reopened: CircuitRecord = record.moved("open", now, why="a probe failed", by=by, ratio=record.ratio)
            return reopened
        if record.successes + 1 >= needed:
            closed: CircuitRecord = record.moved("closed", now, why="probes succeeded", by=by)
            return closed
        return msgspec.structs.replace(record, permits=left, successes=record.successes + 1, by=signed(by))
    return record if len(left) == len(record.permits) else msgspec.structs.replace(record, permits=left, by=signed(by))
