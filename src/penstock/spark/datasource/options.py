"""The options of ``format("penstock")``: read once, on the driver, so that a typo is an error of one line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from penstock.clock import from_micros, to_micros
from penstock.errors import BadInput
from penstock.location import read_url
from penstock.names import check_name, did_you_mean

Kind = Literal["history", "live", "dead"]
KINDS: tuple[Kind, ...] = ("history", "live", "dead")

# Spark hands these to every source and sink.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "path", "outputmode", "triggerinterval"})


# The names of Spark's Kafka connector, and of Delta for a write that may be repeated, mean the same here.
FAMILIAR = {
    "startingoffsets": "start", "endingoffsets": "stop", "startingtimestamp": "start", "endingtimestamp": "stop",
    "maxoffsetspertrigger": "limit", "minpartitions": "tasks", "failondataloss": "lost", "subscribe": "log",
    "txnappid": "producer", "txnversion": "sequence",
}  # fmt: skip
_EARLIEST, _LATEST = -2, -1  # Kafka's, among offsets


# The uses of the source, and their options besides url, log and queue.
Use = Literal[
    "a batch read of a log", "a stream of a log", "a batch read of queues", "a stream of queues",
    "a write into logs", "a write into queues",
]  # fmt: skip
_READ = ("columns", "start", "tasks", "type", "schema")
USES: dict[Use, tuple[str, ...]] = {
    "a batch read of a log": (*_READ, "stop", "partitions", "lost"),
    "a stream of a log": (*_READ, "partitions", "lost", "limit", "group"),
    "a batch read of queues": (*_READ, "stop", "kind"),
    "a stream of queues": (*_READ, "limit", "kind"),
    "a write into logs": ("producer", "sequence"),
    "a write into queues": ("producer", "sequence", "type"),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options; docs/spark/source-and-sink.md has the table."""

    url: str = ""
    log: str | None = None
    queue: str | None = None
    kind: Kind | None = None
    start: str | None = None
    stop: str | None = None
    partitions: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    lost: Literal["fail", "skip"] = "fail"
    tasks: int | None = None
    group: str | None = None
    type: str | None = None
    schema: str | None = None
    producer: str | None = None
    sequence: int | None = None

    @property
    def place(self) -> str:
        """Masked URL, for messages."""
        return read_url(self.url).masked

    def check_for(self, use: Use) -> None:
        """Raise for an option that has no effect here: its user expects one."""
        known = USES[use]
        for name in Options.__struct_fields__:
            if name in ("url", "log", "queue", *known) or getattr(self, name) == getattr(Options(), name):
                continue
            places = " and ".join(other for other, names in USES.items() if name in names)
            raise BadInput(
                f"option {name!r} means nothing for {use}; it is for {places}.",
                hint=f"Leave it out. Known here: {', '.join(known)}.",
            )

    def needs_log(self) -> str:
        """The log that is read."""
        if self.log is None:
            raise BadInput("a log is needed here.", hint='Add .option("log", NAME).')
        return self.log


def read_options(given: Mapping[str, str]) -> Options:
    """Check everything that can be checked without opening a store."""
    options = _named_as_ours(given)
    url = options.get("url") or given.get("path")
    if not url:
        raise BadInput("no store was named.", hint='Add .option("url", "file:///var/lib/shop/logs").')
    for name in ("log", "queue"):
        if name in options:
            check_name(options[name], kind=name)
    if "log" in options and "queue" in options:
        raise BadInput("both a log and a queue were named.", hint="Give one of the options log and queue.")
    kind = _choice(options, "kind", KINDS, None)
    if "log" in options and kind is not None:
        raise BadInput(f"kind={kind} is for queues, but a log was named.", hint="Leave kind out, or name a queue.")
    if "type" in options and "schema" in options:
        raise BadInput("both type and schema say how payloads are read.", hint="Give one of them.")
    if ("producer" in options) != ("sequence" in options):
        raise BadInput("a repeatable write needs producer and sequence.", hint="Give both or none.")
    partitions = _list(options, "partitions")
    if partitions is not None and (not partitions or not all(text.isdecimal() for text in partitions)):
        raise BadInput(f"partitions {options['partitions']!r} is not a list of numbers.", hint='Write "0,3".')
    _check_places(options, of_log="log" in options)
    return Options(
        url=absolute(url),
        log=options.get("log"),
        queue=options.get("queue"),
        kind=kind,  # type: ignore[arg-type]
        start=options.get("start"),
        stop=options.get("stop"),
        partitions=None if partitions is None else tuple(sorted({int(text) for text in partitions})),
        columns=_list(options, "columns"),
        limit=_number(options, "limit"),
        lost=_choice(options, "lost", ("fail", "skip"), "fail"),  # type: ignore[arg-type]
        tasks=_number(options, "tasks"),
        group=None if "group" not in options else check_name(options["group"], kind="group"),
        type=options.get("type"),
        schema=options.get("schema"),
        producer=None if "producer" not in options else check_name(options["producer"], kind="producer"),
        sequence=_number(options, "sequence", least=0),
    )


def _named_as_ours(given: Mapping[str, str]) -> dict[str, str]:
    """The options under our names. Raises for an unknown name, and for two names of one option."""
    names = Options.__struct_fields__
    options: dict[str, str] = {}
    for name, value in given.items():
        plain = FAMILIAR.get(name.lower(), name.lower())
        if plain in options:
            raise BadInput(f"option {name!r} says the same as another one.", hint=f"Give {plain!r} only once.")
        if plain in names:
            options[plain] = _translated(name, value, given)
        elif plain not in SPARKS_OWN:
            meant = did_you_mean(plain, names)
            raise BadInput(f"option {name!r} is unknown to penstock.", hint=f"{meant}Known: {', '.join(names)}.")
    return options


def _translated(name: str, value: str, given: Mapping[str, str]) -> str:
    """Translate the value of an option with a name of Kafka's or Delta's."""
    plain = name.lower()
    if plain == "failondataloss":
        if value.lower() not in ("true", "false"):
            raise BadInput(f"{name}={value!r} is neither true nor false.", hint=f'Write .option("{name}", "false").')
        return "fail" if value.lower() == "true" else "skip"
    if plain.endswith("timestamp") and value.isdecimal():  # Kafka's: milliseconds since 1970
        return from_micros(int(value) * 1000).isoformat()
    if plain.endswith("offsets"):
        return _of_one_log(value, {key.lower(): text for key, text in given.items()})
    return value


def _of_one_log(value: str, given: Mapping[str, str]) -> str:
    """Read offsets as Kafka's connector writes them, by topic and partition. Returns those of the log that is read."""
    try:
        offsets = msgspec.json.decode(value, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return value
    log = given.get("log") or given.get("subscribe") or ""
    if list(offsets) != [log]:
        raise BadInput(
            f"offsets of {', '.join(offsets)} were given, but {log} is read.", hint="Read one log at a time."
        )
    places = set(offsets[log].values())
    if places & {_EARLIEST, _LATEST}:
        if len(places) > 1:
            raise BadInput(
                f"{value} mixes offsets with the beginning or the end.", hint='Write "earliest" or "latest".'
            )
        return "earliest" if places == {_EARLIEST} else "latest"
    return msgspec.json.encode(offsets[log]).decode()


def absolute(url: str) -> str:
    """The URL with a full path: executors have another working directory than the driver."""
    location = read_url(url)
    if location.scheme == "memory":
        raise BadInput(
            "memory:// is in one process, and Spark has several.",
            hint="Use file:// or kafka:// for logs, sqlite:// or a server for queues.",
        )
    head, query = re.match(r"[^?]*", url), url.partition("?")[2]
    assert head is not None  # noqa: S101 - matches anything
    if location.scheme == "file":
        plain = f"file://{Path(os.path.abspath(location.path)).as_posix()}"
    elif location.scheme == "sqlite":
        plain = f"sqlite:///{Path(os.path.abspath(location.file)).as_posix()}"
    else:
        plain = head.group()
    return f"{plain}?{query}" if query else plain


def _check_places(options: Mapping[str, str], *, of_log: bool) -> None:
    """Check that start and stop are valid, and in this order where that can be seen."""
    places: list[dict[int, int]] = []
    kinds = set()
    for name in ("start", "stop"):
        text = options.get(name)
        if text is None or text in ("earliest", "latest"):
            continue
        offsets = read_offsets(text, name) if of_log else None
        if offsets is not None:
            places.append(offsets)
            kinds.add("offsets")
        elif not of_log and text.isdecimal():
            places.append({0: int(text)})
            kinds.add("seq")
        elif (moment := read_moment(text)) is not None:
            places.append({0: to_micros(moment)})
            kinds.add("time")
        elif of_log:
            raise BadInput(
                f"{name}={text!r} is not a place in a log.",
                hint='Write "earliest", "latest", a time with its zone, or offsets by partition: {"0": 17}.',
            )
        else:
            raise BadInput(
                f"{name}={text!r} is not a place in a queue.",
                hint='Write "earliest", "latest", a number of the column seq, or a time with its zone.',
            )
    if len(places) == 2 and len(kinds) == 1:
        start, stop = places
        if any(start[partition] > stop[partition] for partition in start.keys() & stop.keys()):
            raise BadInput(
                f"start={options['start']} is after stop={options['stop']}.",
                hint="Begin before the end, or swap them.",
            )


def read_moment(text: str) -> datetime | None:
    """A time as people write it, with its zone, or None if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        raise BadInput(f"the time {text!r} has no zone.", hint=f'Write "{text}+00:00".')
    return moment


def read_offsets(text: str, what: str) -> dict[int, int] | None:
    """Offsets by partition from JSON, or None if it is something else."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        offsets = msgspec.json.decode(text, type=dict[str, Annotated[int, msgspec.Meta(ge=0)]])
    except msgspec.MsgspecError as cause:
        raise BadInput(f"{what} {text!r} is not JSON of offsets: {cause}.", hint='Write {"0": 17, "1": 4}.') from cause
    for index in offsets:
        if not index.isdecimal():
            raise BadInput(f"{what} names partition {index!r}, which is not a number.", hint='Write {"0": 17, "1": 4}.')
    return {int(index): offset for index, offset in offsets.items()}


def _choice(options: Mapping[str, str], name: str, known: tuple[str, ...], default: str | None) -> str | None:
    value = options.get(name, default)
    if value is not None and value not in known:
        meant = did_you_mean(value, known)
        raise BadInput(f"{name}={value!r} is unknown.", hint=f"{meant}Known: {', '.join(known)}.")
    return value


def _list(options: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    if name not in options:
        return None
    return tuple(item.strip() for item in options[name].split(",") if item.strip())


def _number(options: Mapping[str, str], name: str, least: int = 1) -> int | None:
    if name not in options:
        return None
    text = options[name].replace("_", "")
    if not text.isdecimal() or int(text) < least:
        raise BadInput(
            f"{name}={options[name]!r} is not a number from {least}.", hint=f'Write .option("{name}", 1000).'
        )
    return int(text)
