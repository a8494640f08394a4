"""Actions by hand on schedules, circuits and groups of logs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, cast

import msgspec
from starlette.exceptions import HTTPException

from penstock.clock import duration
from penstock.errors import BadInput, Conflict, EntryNotFound
from penstock.log.record import Lag, Partition
from penstock.log.store import LogStore
from penstock.queue.protocol import Schedule
from penstock.queue.schedule import pause_schedule, resume_schedule, run_schedule_now
from penstock.service.access import check_log, check_queue
from penstock.service.dashboard.actions import WHY, Done, Field, Given, Preview, action, undo_address
from penstock.service.dashboard.formatting import number, plural, short_id
from penstock.service.dashboard.frame import Visit
from penstock.service.dashboard.logs import moment_in, number_in
from penstock.service.dashboard.things import times_text

SHORTEST = timedelta(milliseconds=100)

# --- schedules ---------------------------------------------------------------------------------------


def _schedule(visiting: Visit, given: Given) -> Schedule:
    name = given.needed("schedule", "the schedule")
    for schedule in visiting.reading.schedules(visiting.key):
        if schedule.name == name:
            return schedule
    raise EntryNotFound(f"there is no schedule {name!r}.", hint="It was removed meanwhile.")


def _facts(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    return ("Puts into", schedule.queue), ("Times", times_text(schedule)), ("Next", _next_text(schedule))


def _next_text(schedule: Schedule) -> str:
    return "paused" if schedule.next is None else f"{schedule.next:%Y-%m-%d %H:%M:%S} UTC"


def _preview_pause(visiting: Visit, given: Given) -> Preview:
    schedule = _schedule(visiting, given)
    return Preview(
        title=f"Pause {schedule.name}?",
        note="It puts nothing until it is resumed; what it misses is not caught up.",
        facts=_facts(schedule),
        fields=(WHY,),
        button="Pause the schedule",
        keep="Let it go on",
        refusal="It is paused already." if schedule.is_paused else "",
    )


@action("schedule-pause", "pausing of schedule", _preview_pause)
def pause(visiting: Visit, given: Given) -> Done:
    """Let a schedule put nothing."""
    before = _schedule(visiting, given)
    pause_schedule(visiting.reading.queues, before.name)
    return Done(
        f"{before.name} is paused.",
        before.name,
        f"next: {_next_text(before)}",
        "paused",
        _undo(given, "schedule-resume", schedule=before.name),
    )


def _preview_resume(visiting: Visit, given: Given) -> Preview:
    schedule = _schedule(visiting, given)
    return Preview(
        title=f"Resume {schedule.name}?",
        note="It continues at its next time from now; missed times are not caught up.",
        facts=_facts(schedule),
        fields=(WHY,),
        button="Resume the schedule",
        keep="Leave it paused",
        refusal="" if schedule.is_paused else "It is not paused.",
    )


@action("schedule-resume", "resuming of schedule", _preview_resume)
def resume(visiting: Visit, given: Given) -> Done:
    """Resume a paused schedule."""
    name = _schedule(visiting, given).name
    after = resume_schedule(visiting.reading.queues, name)
    return Done(
        f"{name} continues.",
        name,
        "paused",
        f"next: {_next_text(after)}",
        _undo(given, "schedule-pause", schedule=name),
    )


def _preview_run(visiting: Visit, given: Given) -> Preview:
    schedule = _schedule(visiting, given)
    return Preview(
        title=f"Run {schedule.name} now?",
        note="One entry is put now, beside those at its times.",
        facts=_facts(schedule),
        fields=(WHY,),
        button="Put one entry now",
        keep="Leave it to its times",
    )


@action("schedule-run", "running of schedule", _preview_run)
def run(visiting: Visit, given: Given) -> Done:
    """Put the entry of a schedule now."""
    schedule = _schedule(visiting, given)
    id_ = run_schedule_now(visiting.reading.queues, schedule.name)
    return Done(f"Entry {short_id(id_)} is in {schedule.queue}.", schedule.name, "", f"entry {id_} in {schedule.queue}")


def _preview_remove(visiting: Visit, given: Given) -> Preview:
    schedule = _schedule(visiting, given)
    return Preview(
        title=f"Remove {schedule.name}?",
        note="It is forgotten; entries it has put stay. A program that declares it sets it again when it starts.",
        facts=_facts(schedule),
        fields=(WHY,),
        button="Remove the schedule",
        keep="Keep it",
        is_dangerous=True,
        typed=schedule.name,
    )


@action("schedule-remove", "removal of schedule", _preview_remove)
def remove(visiting: Visit, given: Given) -> Done:
    """Forget a schedule."""
    schedule = _schedule(visiting, given)
    visiting.reading.queues.remove_schedule(schedule.name)
    before = f"{times_text(schedule)} into {schedule.queue}"
    return Done(f"{schedule.name} is removed.", schedule.name, before, "removed")


def _preview_add(visiting: Visit, given: Given) -> Preview:
    return Preview(
        title="Add a schedule",
        note="It puts a value into a queue at the times of a cron line or an interval, once for all workers.",
        facts=(),
        button="Add the schedule",
        keep="Do not",
        fields=(
            Field("name", "Name", given.text("name"), "nightly-report", is_required=True),
            Field("queue", "Queue", given.text("queue"), "reports", is_required=True),
            Field("cron", "Cron line", given.text("cron"), "0 3 * * *"),
            Field("every", "or interval", given.text("every"), "30s"),
            Field("zone", "Time zone", given.text("zone", "UTC")),
            Field(
                "catch_up",
                "Missed times",
                given.text("catch_up", "one"),
                choices=(("one", "one entry for all"), ("all", "one entry for each"), ("none", "none")),
            ),
            Field("value", "Value, as JSON", given.text("value"), '{"kind": "night"}', is_required=True, kind="area"),
            WHY,
        ),
    )


@action("schedule-add", "adding of schedule", _preview_add)
def add(visiting: Visit, given: Given) -> Done:
    """Set a new schedule; one that is there is not changed."""
    store, key = visiting.reading.queues, visiting.key
    name, queue = given.needed("name", "the name"), check_queue(key, given.needed("queue", "the queue"))
    if not key.sees(name):
        raise BadInput(f"the name {name!r} is not within your reach.", hint=f"Begin it with {key.prefix!r}.")
    if any(schedule.name == name for schedule in store.schedules()):
        raise Conflict(f"there is a schedule {name!r} already.", hint="Choose another name, or remove that one first.")
    every = given.text("every")
    if every and duration(every, name="interval") < SHORTEST:
        raise BadInput(f"an interval of {every} is too short.", hint="Use 100ms or more.")
    try:
        value = msgspec.json.decode(given.needed("value", "the value"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as cause:
        raise BadInput(f"the value is not JSON: {cause}.", hint='Texts need quotes: "hello".') from cause
    catch_up = cast(Literal["one", "all", "none"], given.text("catch_up", "one"))
    store.queue(queue).schedule(
        name,
        value,
        cron=given.text("cron") or None,
        every=every or None,
        zone=given.text("zone", "UTC") or "UTC",
        catch_up=catch_up,
        on_conflict="raise",
    )
    times = given.text("cron") or f"every {every}"
    return Done(f"{name} is set.", name, "", f"{times} into {queue}", _undo(given, "schedule-remove", schedule=name))


# --- circuits ----------------------------------------------------------------------------------------


def _circuit(visiting: Visit, given: Given) -> Any:
    if visiting.key.prefix:
        raise HTTPException(403, "Circuits concern all queues; this key has a prefix.")
    return visiting.request.app.state.breaker.circuit(given.needed("circuit", "the circuit"))


def _preview_open(visiting: Visit, given: Given) -> Preview:
    circuit = _circuit(visiting, given)
    is_on = visiting.request.app.state.breaker.config.circuit_check_enabled
    return Preview(
        title=f"Open circuit {circuit.circuit}?",
        note="Entries for this far side are kept back at once, without spending attempts.",
        facts=(
            ("State", circuit.state.replace("_", " ")),
            ("Failed recently", f"{circuit.ratio} % of {number(circuit.successes + circuit.failures)}"),
            ("Queues locked now", number(circuit.locked)),
        ),
        fields=(Field("why", "Why (shown to all users)", placeholder="maintenance until ten"),),
        button="Open the circuit",
        keep="Leave it as it is",
        is_dangerous=True,
        refusal="" if is_on else "The breaker is off: an open circuit would keep nothing back.",
    )


@action("circuit-open", "opening of circuit", _preview_open)
def open_circuit(visiting: Visit, given: Given) -> Done:
    """Keep entries back."""
    return _move(visiting, given, "open")


def _preview_close(visiting: Visit, given: Given) -> Preview:
    circuit = _circuit(visiting, given)
    return Preview(
        title=f"Close circuit {circuit.circuit}?",
        note="Its queues are unlocked one after the other, and what waits in them is handled.",
        facts=(("State", circuit.state.replace("_", " ")), ("Queues that are unlocked", number(circuit.locked))),
        fields=(WHY,),
        button="Close the circuit",
        keep="Leave it as it is",
    )


@action("circuit-close", "closing of circuit", _preview_close)
def close_circuit(visiting: Visit, given: Given) -> Done:
    """Let entries continue."""
    return _move(visiting, given, "close")


def _move(visiting: Visit, given: Given, to: str) -> Done:
    before = _circuit(visiting, given)
    breaker = visiting.request.app.state.breaker
    move = {"open": breaker.open, "close": breaker.close}[to]
    after = move(before.circuit, by=visiting.key.name, why=given.text("why")[:500] or "by hand")
    word = after.state.replace("_", " ")
    inverse = {"open": "circuit-close", "close": "circuit-open"}[to]
    undo = _undo(given, inverse, circuit=after.circuit)
    return Done(f"Circuit {after.circuit} is {word}.", after.circuit, before.state.replace("_", " "), word, undo)


def _undo(given: Given, name: str, **parameters: str) -> str:
    return undo_address(name, **parameters, back=given.text("back"))


# --- groups of logs ----------------------------------------------------------------------------------


def _logs(visiting: Visit, given: Given) -> tuple[LogStore, str, str]:
    from penstock.service.logs import logs_of

    store = logs_of(visiting.request)
    log, group = check_log(visiting.key, given.needed("log", "the log")), given.needed("group", "the group")
    if group not in store.groups(log):
        raise EntryNotFound(f"log {log!r} has no group {group!r}.", hint="It was forgotten meanwhile.")
    return store, log, group


SHOWN = "shown"  # the field with the place for which the offsets were shown


def _targets(store: LogStore, log: str, given: Given) -> dict[Partition, int]:
    """The new offsets of the group, by partition."""
    to, value = given.text("to", "start"), given.text("value")
    bounds, places = store.bounds(log), store.partitions(log)
    if to == "end":
        return {place: bound.end for place, bound in zip(places, bounds, strict=True)}
    if to in ("time", "offset") and not value:
        raise BadInput(f"which {to} is not said.", hint="Fill in the field below, and look again.")
    if to == "time":
        return {place: store.offset_at(place, moment_in(value)).value for place in places}
    if to == "offset":
        return {
            place: max(bound.start, number_in(value, bound.end)) for place, bound in zip(places, bounds, strict=True)
        }
    return {place: bound.start for place, bound in zip(places, bounds, strict=True)}


def _preview_reset(visiting: Visit, given: Given) -> Preview:
    store, log, group = _logs(visiting, given)
    to, value = given.text("to", "start"), given.text("value")
    targets, lags = _targets(store, log, given), store.lags(log, group)
    again = skipped = 0
    rows = []
    for (place, target), lag in zip(targets.items(), lags, strict=True):
        again, skipped = again + max(0, lag.lower - target), skipped + max(0, target - lag.lower)
        after = Lag(target, lag.upper, max(0, lag.upper - target))
        rows.append(
            (
                str(place.index),
                f"{lag.lower:,}",
                f"{target:,}",
                f"{target - lag.lower:+,}",
                f"{lag.lag:,}",
                f"{after.lag:,}",
            )
        )
    return Preview(
        title=f"Reset offsets of {group}",
        note=f"The next tailer of the group in {log} begins at the new offsets. It is refused while one reads.",
        facts=(),
        head=("Partition", "Offset now", "Offset after", "Change", "Lag now", "Lag after"),
        rows=tuple(rows),
        warning=f"{number(again)} records will be read again, {number(skipped)} skipped."
        + (" What they caused can happen twice." if again else ""),
        fields=(
            Field(
                "to",
                "Go to",
                to,
                choices=(("start", "the start"), ("end", "the end"), ("time", "a time (UTC)"), ("offset", "an offset")),
            ),
            Field("value", "Time or offset", value, "2026-11-16 14:00 or 1200"),
            WHY,
        ),
        typed=group,
        button=f"Reset {plural(len(rows), 'offset')}",
        keep="Keep the offsets",
        is_dangerous=True,
        shown=((SHOWN, f"{to} {value}"),),
    )


@action("group-reset", "reset of group", _preview_reset)
def reset(visiting: Visit, given: Given) -> Done:
    """Move a group to other offsets."""
    store, log, group = _logs(visiting, given)
    to, value = given.text("to", "start"), given.text("value")
    if given.text(SHOWN, f"{to} {value}") != f"{to} {value}".strip():
        raise BadInput(
            "the preview was for another place.",
            hint='Press "Show what that means", then reset.',
        )
    before = [lag.lower for lag in store.lags(log, group)]
    targets = _targets(store, log, given)
    store.reset(group, targets)
    return Done(
        f"{group} of {log} continues from its new offsets.",
        log,
        f"{group} at {before}",
        f"{group} at {list(targets.values())}",
    )


def _preview_forget(visiting: Visit, given: Given) -> Preview:
    store, log, group = _logs(visiting, given)
    return Preview(
        title=f"Forget group {group} of {log}?",
        note="Its offsets are removed; a tailer of this name begins as a new group does, at the oldest record.",
        facts=(("Lag now", f"{store.lag(log, group).lag:,}"),),
        fields=(WHY,),
        typed=group,
        is_dangerous=True,
        button="Forget the group",
        keep="Keep its offsets",
    )


@action("group-forget", "forgetting of group", _preview_forget)
def forget(visiting: Visit, given: Given) -> Done:
    """Remove a group's offsets."""
    store, log, group = _logs(visiting, given)
    before = [lag.lower for lag in store.lags(log, group)]
    store.forget(group, log)
    return Done(f"Group {group} of {log} is forgotten.", log, f"{group} at {before}", "forgotten")
