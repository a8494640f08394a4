"""Schedules: cron lines and intervals that put an entry at their times, once per cluster."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError

from penstock.clock import Duration, Micros, duration_micros, from_micros, to_micros
from penstock.errors import BadInput, Conflict, EntryNotFound, ScheduleChanged
from penstock.ids import derived_id, new_id
from penstock.queue.protocol import PAUSED, NewEntry, Schedule

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

CatchUp = Literal["one", "all", "none"]
CATCH_UP = get_args(CatchUp)
# A worker that comes back after a year must not loop over half a million missed minutes.
MOST_MISSED = 10_000
BAD_SCHEDULE_PAUSE: Micros = 60_000_000

logger = logging.getLogger("penstock.queue.schedule")


class ScheduleSpec(msgspec.Struct, frozen=True):
    """A schedule's text: ``cron:<line>`` or ``every:<microseconds>``, its zone and what missed fires mean."""

    text: str
    zone: str
    catch_up: str

    @classmethod
    def read(cls, *, cron: str | None, every: Duration | None, zone: str, catch_up: str) -> ScheduleSpec:
        """Check everything where it is defined, so that no worker ever meets a schedule it cannot compute."""
        if (cron is None) == (every is None):
            raise BadInput("a schedule needs a cron line or an interval.", hint="Give exactly one of cron and every.")
        if catch_up not in CATCH_UP:
            raise BadInput(f"catch_up={catch_up!r} is unknown.", hint=f"Use one of {', '.join(CATCH_UP)}.")
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as cause:
            raise BadInput(f"time zone {zone!r} is unknown.", hint='Use a name such as "Europe/Zurich".') from cause
        if every is not None:
            period = duration_micros(every, name="every")
            if period < 1000:
                raise BadInput(f"an interval of {every} is too short.", hint="Use at least 1ms.")
            return cls(f"every:{period}", zone, catch_up)
        try:
            CronSim(str(cron), datetime(2026, 1, 1, tzinfo=UTC))
        except CronSimError as cause:
            raise BadInput(f"cron line {cron!r} is wrong: {cause}.", hint='For example "0 8 * * MON-FRI".') from cause
        return cls(f"cron:{cron}", zone, catch_up)

    def after(self, moment: Micros, *, base: Micros | None = None) -> Micros:
        """The first time strictly after ``moment``; intervals count from ``base``."""
        kind, _, rest = self.text.partition(":")
        if kind == "every":
            period = int(rest)
            start = moment if base is None else base
            return start + ((moment - start) // period + 1) * period
        local = from_micros(moment).astimezone(ZoneInfo(self.zone))
        # Cron knows whole minutes or seconds; a moment inside one belongs to it.
        return to_micros(next(CronSim(rest, local)).astimezone(UTC))

    def stored(self, name: str, version: int, sample: NewEntry, now: Micros) -> Schedule:
        """The schedule as a store keeps it, first firing after now."""
        return Schedule(
            name, sample.queue, self.text, self.zone, version, self.after(now), sample.payload, sample.codec,
            sample.type, self.catch_up, sample.labels, sample.headers, sample.priority,
        )  # fmt: skip


def fire_due(store: QueueStore) -> Micros | None:
    """Fire every schedule whose time has come. Returns when the next one does, or None without schedules.

    Any number of workers may do this at once: moving a schedule on and putting its entry is one step, and only one
    worker wins it.
    """
    soonest: Micros | None = None
    for schedule in store.schedules():
        now = store.now()
        try:
            following = schedule.next_us if schedule.next_us > now else _fire(store, schedule, now)
        except BadInput as error:
            # One that can never fire (its queue became FIFO, say) must not keep the others from it.
            logger.error("schedule %r cannot fire: %s", schedule.name, error)
            store.signals.tell("store_error", schedule.queue, (), now, step="schedule", error=error)
            following = now + BAD_SCHEDULE_PAUSE
        soonest = following if soonest is None else min(soonest, following)
    return soonest


def _fire(store: QueueStore, schedule: Schedule, now: Micros) -> Micros:
    spec = ScheduleSpec(schedule.spec, schedule.zone, schedule.catch_up)
    if schedule.catch_up == "all" and (second := spec.after(schedule.next_us, base=schedule.next_us)) <= now:
        # One at a time, so that a crash in between loses none and repeats none.
        store.driver.fire(schedule, second, entry_for(schedule, schedule.next_us))
        return second
    times = [schedule.next_us]
    while (upcoming := spec.after(times[-1], base=schedule.next_us)) <= now and len(times) < MOST_MISSED:
        times.append(upcoming)
    upcoming = spec.after(max(now, times[-1]), base=schedule.next_us)
    # The latest missed time stands for all of them; with "none" only a fire that is on time counts.
    skipped = schedule.catch_up == "none" and len(times) > 1
    entry = None if skipped else entry_for(schedule, times[-1])
    store.driver.fire(schedule, upcoming, entry, missed=len(times) - (0 if skipped else 1))
    return upcoming


def entry_for(schedule: Schedule, moment: Micros) -> NewEntry:
    """The entry of one fire. Its id comes from schedule and time, so that a repeated fire has one effect."""
    headers: dict[str, Any] = {**schedule.headers, "penstock-schedule": schedule.name}
    return NewEntry(
        derived_id("schedule", schedule.name, str(schedule.version), str(moment)), schedule.queue, schedule.payload,
        schedule.codec, schedule.type, schedule.priority, due_us=moment, labels=schedule.labels, headers=headers,
        repeat=True,
    )  # fmt: skip


def pause_schedule(store: QueueStore, name: str) -> Schedule:
    """Pause a schedule until it is resumed. Defining a higher version does not resume it."""
    return _move(store, name, lambda schedule: PAUSED)


def resume_schedule(store: QueueStore, name: str) -> Schedule:
    """Resume a paused schedule, without catching up what it missed. Returns it as it is then."""

    def following(schedule: Schedule) -> Micros:
        if not schedule.is_paused:
            return schedule.next_us
        return ScheduleSpec(schedule.spec, schedule.zone, schedule.catch_up).after(store.now())

    return _move(store, name, following)


def run_schedule_now(store: QueueStore, name: str) -> str:
    """Put the entry of a schedule now, even if it is paused. Its times do not change. Returns the entry's id."""
    schedule = stored_schedule(store, name)
    entry = msgspec.structs.replace(entry_for(schedule, store.now()), id=new_id(), due_us=None, repeat=False)
    store.driver.put((entry,))
    return entry.id


def stored_schedule(store: QueueStore, name: str) -> Schedule:
    """The schedule of this name; raises ``EntryNotFound`` if there is none."""
    for schedule in store.schedules():
        if schedule.name == name:
            return schedule
    raise EntryNotFound(f"there is no schedule {name!r}.", hint="It was removed, or never set.")


def _move(store: QueueStore, name: str, following: Callable[[Schedule], Micros]) -> Schedule:
    for _ in range(5):
        schedule = stored_schedule(store, name)
        next_us = following(schedule)
        # Moving on without an entry is the same compare-and-set by which schedules fire.
        if next_us == schedule.next_us or store.driver.fire(schedule, next_us, None):
            return msgspec.structs.replace(schedule, next_us=next_us)
    raise Conflict(f"schedule {name!r} fires too often to be changed now.", hint="Try again.")


def another_definition(store: QueueStore, wanted: Schedule) -> str | None:
    """How a stored schedule of the same name and version is defined differently, in words, or None if it is not.

    Otherwise two programs that define one version differently would overwrite each other at every start.
    """
    for stored in store.schedules():
        if (stored.name, stored.version) != (wanted.name, wanted.version):
            continue
        if msgspec.structs.replace(wanted, next_us=stored.next_us) != stored:
            return (
                f"schedule {wanted.name!r} version {wanted.version} is stored as {_in_words(stored)}; "
                f"this is {_in_words(wanted)}."
            )
    return None


TO_CHANGE = "To change it, raise version=; to go back, remove it first: store.remove_schedule(name)."


def report_changed(difference: str) -> None:
    """Report that the stored definition holds: to the log for operators, as a warning for programs and tests."""
    text = f"{difference} What is stored holds. {TO_CHANGE}"
    logger.warning("%s", text)
    warnings.warn(text, ScheduleChanged, stacklevel=3)


def _in_words(schedule: Schedule) -> str:
    """A schedule's definition, for messages."""
    kind, _, rest = schedule.spec.partition(":")
    when = f"every {timedelta(microseconds=int(rest))}" if kind == "every" else f"cron {rest!r} in {schedule.zone}"
    more = f", catch_up={schedule.catch_up}, labels={schedule.labels}, priority={schedule.priority}"
    return f"{when} into {schedule.queue!r} with {schedule.payload[:60]!r}{more}"
