"""Calls for those who look after it: schedules, workers, logs and groups, circuits and breaker, topologies, health."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock.client import answers
from penstock.client.call import Call, get_call, json_reader, log_path, nothing, path_part
from penstock.client.content import NewEntry, content_of, duration_text, time_text
from penstock.clock import Duration

Json = dict[str, Any]


# --- schedules, workers, figures -------------------------------------------------------------------


def schedules() -> Call[answers.Items[answers.Schedule]]:
    """All schedules, by name."""
    return get_call("/v1/schedules", answers.Items[answers.Schedule])


def set_schedule(
    name: str,
    queue: str,
    value: Any = None,
    *,
    cron: str | None = None,
    every: Duration | None = None,
    zone: str = "UTC",
    version: int = 1,
    catch_up: Literal["one", "all", "none"] = "one",
    labels: dict[str, str] | None = None,
    priority: int = 0,
) -> Call[answers.Schedule]:
    """Set a schedule; another definition under the same version is a conflict."""
    body: Json = {
        "queue": queue, "value": content_of(NewEntry(value=value))["value"], "zone": zone, "version": version,
        "catch_up": catch_up, "labels": labels or {}, "priority": priority,
    }  # fmt: skip
    body |= {} if cron is None else {"cron": cron}
    body |= {} if every is None else {"every": duration_text(every)}
    return Call("PUT", _schedule(name), json_reader(answers.Schedule), body=body, repeatable=True)


def pause_schedule(name: str) -> Call[answers.Schedule]:
    """Let a schedule put nothing until it is resumed."""
    return Call("POST", f"{_schedule(name)}/pause", json_reader(answers.Schedule), repeatable=True)


def resume_schedule(name: str) -> Call[answers.Schedule]:
    """Resume a paused schedule, from its next time on."""
    return Call("POST", f"{_schedule(name)}/resume", json_reader(answers.Schedule), repeatable=True)


def run_schedule(name: str) -> Call[answers.Put]:
    """Put the entry of a schedule now; its times stay as they are."""
    return Call("POST", f"{_schedule(name)}/run", json_reader(answers.Put))


def remove_schedule(name: str) -> Call[None]:
    """Forget a schedule; entries it has put stay."""
    return Call("DELETE", _schedule(name), nothing)


def changes(*, target: str | None = None, limit: int = 100) -> Call[answers.Items[answers.Change]]:
    """Who changed what by hand in the last 30 days, the newest first.

    Args:
        target: only the changes of this queue, log, schedule or circuit
        limit: at most so many
    """
    return get_call("/v1/changes", answers.Items[answers.Change], {"target": target, "limit": limit})


def workers() -> Call[answers.Items[answers.Worker]]:
    """The workers that live, and those that were lost within a day."""
    return get_call("/v1/workers", answers.Items[answers.Worker])


def figures(*, minutes: int = 60, queue: str | None = None) -> Call[answers.Figures]:
    """What all workers did, minute by minute."""
    return get_call("/v1/figures", answers.Figures, {"minutes": minutes, "queue": queue})


def scale(*, queues: Sequence[str] = (), families: Sequence[str] = ()) -> Call[answers.Scale]:
    """How much work there is in these queues and families, or in all: what autoscalers ask for."""
    return get_call("/v1/scale", answers.Scale, {"queue": list(queues) or None, "family": list(families) or None})


# --- logs and groups -------------------------------------------------------------------------------


def log(name: str) -> Call[answers.Log]:
    """What a log holds."""
    return get_call(log_path(name), answers.Log)


def delete_log(name: str) -> Call[None]:
    """Remove a log with its records and every group's offsets in it."""
    return Call("DELETE", log_path(name), nothing)


def groups(log: str) -> Call[answers.Items[str]]:
    """The groups that have committed in a log."""
    return get_call(f"{log_path(log)}/groups", answers.Items[str])


def reset_group(
    log: str, group: str, *, offsets: dict[int, int] | None = None, time: datetime | None = None
) -> Call[answers.GroupLag]:
    """Set where a group continues: offsets by partition, or a time for all partitions."""
    body: Json = {} if offsets is None else {"offsets": {str(index): offset for index, offset in offsets.items()}}
    body |= {} if time is None else {"time": time_text(time)}
    path = f"{log_path(log)}/groups/{path_part(group)}"
    return Call("PUT", path, json_reader(answers.GroupLag), body=body, repeatable=True)


def forget_group(log: str, group: str) -> Call[None]:
    """Remove a group's offsets in a log."""
    return Call("DELETE", f"{log_path(log)}/groups/{path_part(group)}", nothing)


# --- circuits and breaker --------------------------------------------------------------------------


def circuit(circuit: str) -> Call[answers.Circuit]:
    """One circuit, by its name or its hash."""
    return get_call(f"/v1/circuits/{path_part(circuit)}", answers.Circuit)


def remove_circuit(circuit: str) -> Call[None]:
    """Close a circuit and forget it."""
    return Call("DELETE", f"/v1/circuits/{path_part(circuit)}", nothing)


def breaker_config() -> Call[Json]:
    """The nine properties of the breaker's configuration."""
    return get_call("/v1/breaker/config", Json)


def set_breaker_config(config: Json) -> Call[Json]:
    """Set all nine; from then on they hold on every node."""
    return Call("PUT", "/v1/breaker/config", json_reader(Json), body=config, repeatable=True)


def reset_breaker_config() -> Call[Json]:
    """Back to the defaults, on every node."""
    return Call("DELETE", "/v1/breaker/config", json_reader(Json), repeatable=True)


def breaker_settings() -> Call[Json]:
    """Ramp-up, probes, overrides per circuit."""
    return get_call("/v1/breaker/settings", Json)


def set_breaker_settings(settings: Json) -> Call[Json]:
    """Set them; from then on they hold on every node."""
    return Call("PUT", "/v1/breaker/settings", json_reader(Json), body=settings, repeatable=True)


def breaker_changes() -> Call[answers.Items[answers.BreakerChange]]:
    """Who changed the breaker's configuration, and how."""
    return get_call("/v1/breaker/changes", answers.Items[answers.BreakerChange])


# --- topologies and health -------------------------------------------------------------------------


def topologies() -> Call[answers.Items[str]]:
    """The topologies that the service knows."""
    return get_call("/v1/topologies", answers.Items[str])


def topology(name: str) -> Call[answers.Topology]:
    """The computations of a topology in their order, and how far each is behind."""
    return get_call(f"/v1/topologies/{path_part(name)}", answers.Topology)


def picture(name: str, *, form: Literal["mermaid", "plantuml", "text"] = "mermaid") -> Call[str]:
    """A picture of a topology, as text."""
    return Call("GET", f"/v1/topologies/{path_part(name)}/picture", _text, query={"form": form}, repeatable=True)


def live() -> Call[None]:
    """Return if the service is alive."""
    return Call("GET", "/live", nothing, repeatable=True)


def ready() -> Call[None]:
    """Return if the stores answer; raises ``StoreUnavailable`` if they do not."""
    return Call("GET", "/ready", nothing)


def metrics() -> Call[str]:
    """The figures for Prometheus, as text."""
    return Call("GET", "/metrics", _text, repeatable=True)


def _schedule(name: str) -> str:
    return f"/v1/schedules/{path_part(name)}"


def _text(content: bytes, headers: Mapping[str, str]) -> str:
    return content.decode()


def read_signal(event: str, data: str) -> answers.Signal | None:
    """A signal of the service's stream, or None for what only keeps the connection alive."""
    if not data or event == "missed":
        return answers.Signal(kind="missed", data={"count": int(data)}) if data else None
    fields = msgspec.json.decode(data)
    fields.pop("kind", None)
    known = {name: fields.pop(name, None) for name in ("queue", "ids", "at")}
    return msgspec.convert({**known, "kind": event, "data": fields}, answers.Signal)
