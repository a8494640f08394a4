"""``penstock log``: look into logs, append, read, move groups, copy, back up and repair."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from penstock.cli.application import load_type
from penstock.cli.completing import group_names, log_names
from penstock.cli.help import App
from penstock.cli.opened import AsJson, Yes
from penstock.cli.printing import add, console, count, needs_yes, print_json, span, table
from penstock.cli.record_lines import check_json, check_typed, lines_of_input, print_record, read_line, read_time
from penstock.cli.recording import record_for_logs
from penstock.cli.watching import watchable
from penstock.clock import duration_micros, from_micros
from penstock.codec import BYTES, codec_for
from penstock.errors import BadInput, CannotOpen
from penstock.location import read_url
from penstock.log.maintenance.copy import LogCopy
from penstock.log.record import Partition, Record
from penstock.log.settings import Retention
from penstock.log.store import LogStore
from penstock.names import did_you_mean
from penstock.opening import open_logs

app = App(help="Look into logs and change them.")

Url = Annotated[
    str, typer.Option("--url", envvar="PENSTOCK_LOGS_URL", metavar="URL", help='The store, such as "file://logs".')
]
Name = Annotated[str, typer.Argument(metavar="LOG", help="The log.", autocompletion=log_names)]
Group = Annotated[str, typer.Option(help="The group.", autocompletion=group_names)]


def open_existing(url: str) -> LogStore:
    """Open an existing log store: a typo in a URL must not create a new one."""
    location = read_url(url)
    if location.scheme == "memory":
        raise BadInput(
            "a memory:// store lives inside one process; no command can see it.", hint="Use file:// or kafka://."
        )
    if location.scheme == "file" and not Path(location.path).is_dir():
        raise CannotOpen(
            f"there is no folder {location.path} (seen from {Path.cwd()}).",
            hint="Check the path; `penstock log create` makes one.",
        )
    return open_logs(url)


def known(store: LogStore, name: str) -> str:
    """Check that a log exists. The error for a misspelt name suggests a similar one."""
    if not store.exists(name):
        raise BadInput(
            f"there is no log {name!r} in {store.name}.",
            hint=f"{did_you_mean(name, store.names())}`penstock log list` shows what there is.",
        )
    return name


# --- looking -------------------------------------------------------------------------------------------


@app.command("list")
@watchable
def list_(url: Url, as_json: AsJson = False) -> None:
    """All logs: partitions, records, bytes, and the groups that read them."""
    with open_existing(url) as store:
        rows: list[dict[str, Any]] = []
        for name in store.names():
            bounds = store.bounds(name)
            rows.append(
                {
                    "log": name,
                    "partitions": len(bounds),
                    "records": sum(partition.end - partition.start for partition in bounds),
                    "bytes": sum(partition.size for partition in bounds),
                    "groups": store.groups(name),
                }
            )
        if as_json:
            print_json(rows)
            return
        if not rows:
            typer.echo("There is no log yet.")
            return
        shown = table("log", "partitions", "records", "bytes", "groups", numbers=("partitions", "records", "bytes"))
        for row in rows:
            add(shown, row["log"], row["partitions"], row["records"], row["bytes"] or "", ", ".join(row["groups"]))
        console().print(shown)


@app.command()
@watchable
def lag(
    name: Name, url: Url, group: Annotated[str, typer.Option(help="Only this group.")] = "", as_json: AsJson = False
) -> None:
    """How far each group is behind, per partition, and how old its last committed record is."""
    with open_existing(url) as store:
        known(store, name)
        rows: list[dict[str, Any]] = []
        for group_name in [group] if group else store.groups(name):
            latencies = store.latencies(name, group_name)
            for index, (behind, latency) in enumerate(zip(store.lags(name, group_name), latencies, strict=True)):
                rows.append(
                    {
                        "group": group_name, "partition": index, "committed": behind.lower, "end": behind.upper,
                        "lag": behind.lag, "latency_s": latency.latency.total_seconds(), "key": latency.key,
                    }
                )  # fmt: skip
        if as_json:
            print_json(rows)
            return
        if not rows:
            typer.echo(f"No group has committed in {name}.")
            return
        shown = table(
            "group", "partition", "committed", "end", "lag", "latency", "last key",
            numbers=("partition", "committed", "end", "lag", "latency"),
        )  # fmt: skip
        for row in rows:
            late = span(int(row["latency_s"] * 1_000_000)) if row["lag"] else ""
            add(shown, row["group"], row["partition"], row["committed"], row["end"], row["lag"], late, row["key"] or "")
        console().print(shown)


@app.command()
def cat(  # noqa: PLR0917 - typer reads options from the arguments
    name: Name,
    url: Url,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    start: Annotated[int | None, typer.Option(help="From this offset on.")] = None,
    since: Annotated[str, typer.Option(help='From this long ago on, such as "1h".')] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many records.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print records, oldest first, partition by partition; no group is involved."""
    with open_existing(url) as store:
        known(store, name)
        chosen = store.partitions(name) if partition is None else [Partition(name, partition)]
        left = limit
        for place in chosen:
            first = start
            if since:
                first = store.offset_at(place, from_micros(store.now() - duration_micros(since, name="since"))).value
            for record in _records(store, place, first):
                if left == 0:
                    return
                left -= 1
                print_record(record, as_json)


def _records(store: LogStore, place: Partition, start: int | None) -> Iterator[Record[Any]]:
    for batch in store.batches(place, start):
        yield from batch.records()


@app.command()
def tail(  # noqa: PLR0917 - typer reads options from the arguments
    name: Name,
    url: Url,
    group: Annotated[str, typer.Option(help="Read for this group and commit; without, only look.")] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with so many records that are there.")] = 10,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for more, until Ctrl-C.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the last records, then what comes."""
    with open_existing(url) as store:
        known(store, name)
        if group:
            with store.tailer(name, group, bytes) as reader:
                while records := reader.read(1000, timeout="1h" if follow else "200ms"):
                    for record in records:
                        print_record(record, as_json)
                    reader.commit()
            return
        positions = {}
        for place, bounds in zip(store.partitions(name), store.bounds(name), strict=True):
            positions[place] = max(bounds.start, bounds.end - lines)
        pause = threading.Event()
        while True:
            for place, bounds in zip(list(positions), store.bounds(name), strict=True):
                if bounds.end > positions[place]:
                    for record in _records(store, place, max(bounds.start, positions[place])):
                        print_record(record, as_json)
                    positions[place] = bounds.end
            if not follow:
                return
            pause.wait(0.1)


# --- changing --------------------------------------------------------------------------------------------


@app.command()
def create(  # noqa: PLR0917 - typer reads options from the arguments
    name: Name,
    url: Url,
    partitions: Annotated[int, typer.Option(min=1, help="How many; fixed forever.")] = 1,
    partitioner: Annotated[str, typer.Option(help="crc32, java or murmur2.")] = "crc32",
    age: Annotated[str, typer.Option(help='How long records are kept, such as "4d"; "" forever.')] = "4d",
    size: Annotated[int, typer.Option(help="Bytes per partition that are kept; 0 for all.")] = 0,
) -> None:
    """Create a log."""
    with open_logs(url) as store:
        is_new = store.create(
            name, partitions, partitioner=partitioner, retention=Retention(age=age or None, size=size or None)
        )
        partition_count = f"{count(len(store.partitions(name)), 'partition')}"
        if is_new:
            record_for_logs("creation of log", name, "", partition_count)
        typer.echo(
            f"{name} was created with {partition_count}."
            if is_new
            else f"{name} is there already, with {partition_count}."
        )


@app.command()
def append(  # noqa: PLR0917 - typer reads options from the arguments
    name: Name,
    url: Url,
    values: Annotated[list[str] | None, typer.Argument(help="Records as JSON; none: lines of the input.")] = None,
    key: Annotated[str, typer.Option(help="The key of all of them.")] = "",
    partition: Annotated[int | None, typer.Option(help="The partition of all of them.")] = None,
    from_json: Annotated[bool, typer.Option("--from-json", help="Lines as `cat --json` prints them.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Take any text as it is, for readers of bytes.")] = False,
    type_: Annotated[
        str, typer.Option("--type", metavar="MODULE:TYPE", help="Take only what readers of this type can read.")
    ] = "",
) -> None:
    """Append records: JSON, as typed readers expect it."""
    if raw and type_:
        raise BadInput("--raw takes any text, and --type takes only one type.", hint="Use one of the two.")
    codec = codec_for(load_type(type_)) if type_ else None
    with open_existing(url) as store:
        known(store, name)
        any_text = raw or store.settings(name).codec == BYTES
        if values and not any_text and not from_json:
            for number, value in enumerate(
                values, 1
            ):  # check all of them first, so that a refused one leaves nothing behind
                check_json(value, f"record {number}")
                check_typed(os.fsencode(value), codec, f"record {number}")
        number = 0
        with store.appender(name, bytes) as out:
            for line in values or lines_of_input():
                what = f"record {number + 1} (those before it were appended)" if number else "record 1"
                if from_json:
                    row = read_line(line, what)
                    if not any_text:
                        row.check(what)
                    check_typed(row.payload(what), codec, what)
                    out.append(
                        row.payload(what), key=row.key, headers=row.headers or None, timestamp=read_time(row.time),
                        partition=partition if partition is not None else row.partition,
                    )  # fmt: skip
                else:
                    if not any_text:
                        check_json(line, what)
                    check_typed(os.fsencode(line), codec, what)
                    out.append(os.fsencode(line), key=key or None, partition=partition)
                number += 1
        if number:
            record_for_logs("append by hand", name, "", count(number, "record"))
        typer.echo(f"Appended {count(number, 'record')} to {name}.")


@app.command()
def reset(  # noqa: PLR0917 - typer reads options from the arguments
    name: Name,
    url: Url,
    group: Group,
    to: Annotated[str, typer.Option(help='start, end, an offset, or a time ago such as "1h".')],
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    yes: Yes = False,
) -> None:
    """Move a group: what it reads next."""
    with open_existing(url) as store:
        known(store, name)
        places = store.partitions(name) if partition is None else [Partition(name, partition)]
        offsets = {place: _target(store, place, to) for place in places}
        shown = table("partition", "from", "to", numbers=("partition", "from", "to"))
        committed = store.committed(name, group)
        for place, offset in offsets.items():
            add(shown, place.index, committed[place.index] if committed[place.index] is not None else "", offset)
        console().print(shown)
        groups = store.groups(name)
        is_new = group not in groups
        if is_new:
            typer.echo(f"{group} is a new group of {name}. {did_you_mean(group, groups)}".rstrip())
        if not yes:
            needs_yes()
        store.reset(group, offsets)
        record_for_logs("reset of group", name, f"{group} at {committed}", f"{group} at {list(offsets.values())}")
        typer.echo(f"Group {group} {'is made and begins' if is_new else 'reads on'} there.")


def _target(store: LogStore, place: Partition, to: str) -> int:
    bounds = store.bounds_of(place)
    if to == "start":
        return bounds.start
    if to == "end":
        return bounds.end
    if to.isdecimal():
        return int(to)
    return store.offset_at(place, from_micros(store.now() - duration_micros(to, name="--to"))).value


@app.command()
def delete(name: Name, url: Url, yes: Yes = False) -> None:
    """Remove a log with all its records and its groups' offsets."""
    with open_existing(url) as store:
        known(store, name)
        records = sum(partition.end - partition.start for partition in store.bounds(name))
        typer.echo(f"{name} has {count(records, 'record')} and {count(len(store.groups(name)), 'group')}.")
        if not yes:
            needs_yes()
        store.delete(name)
        record_for_logs("deletion of log", name, count(records, "record"), "deleted")
        typer.echo("Removed.")


@app.command()
def copy(  # noqa: PLR0917 - typer reads options from the arguments
    name: Name,
    source_url: Annotated[str, typer.Argument(metavar="SRC_URL", help="The store to copy from.")],
    target_url: Annotated[str, typer.Argument(metavar="DST_URL", help="The store to copy to.")],
    to: Annotated[str, typer.Option(help="The name there; the same by default.")] = "",
    groups: Annotated[bool, typer.Option("--groups/--no-groups", help="Carry the groups' offsets.")] = True,
    as_json: AsJson = False,
) -> None:
    """Copy a log to another store: partitions, order, keys, timestamps, headers, offsets. Resumes if interrupted."""
    with open_existing(source_url) as source, open_logs(target_url) as target:
        known(source, name)
        columns = (TextColumn(name), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=console(), disable=as_json) as bar:
            task = bar.add_task(name, total=None)
            work = LogCopy(
                source, target, name, to=to or None, groups=groups,
                report=lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
            copied = work.run()
        if copied.carried:
            record_for_logs("copy of log", to or name, "", f"{count(copied.carried, 'record')} carried from {name}")
        if as_json:
            print_json(msgspec.to_builtins(copied))
            return
        typer.echo(
            f"{count(sum(copied.records), 'record')} in {count(len(copied.records), 'partition')} are the same on both "
            f"sides ({copied.carried:,} carried now); groups: {', '.join(copied.groups) or 'none'}."
        )


# --- looking after it --------------------------------------------------------------------------------------


@app.command()
def backup(url: Url, target: Annotated[str, typer.Argument(help="An empty folder.")], yes: Yes = False) -> None:
    """Copy everything as it is at one moment, while appends continue."""
    with open_existing(url) as store:
        _findings(store.backup(target, dry_run=not yes))
        if not yes:
            needs_yes("written")


@app.command()
def verify(url: Url, name: Annotated[str, typer.Argument(metavar="LOG", help="Only this log.")] = "") -> None:
    """Look at every byte; exit code 1 if something is damaged."""
    with open_existing(url) as store:
        if not _findings(store.verify(known(store, name) if name else None)):
            raise typer.Exit(1)


@app.command()
def repair(name: Name, url: Url, yes: Yes = False) -> None:
    """Put damaged records aside so that readers can continue after them."""
    with open_existing(url) as store:
        findings = store.repair(known(store, name), dry_run=not yes)
        _findings(findings)
        if not yes:
            needs_yes()
        before = "damaged" if findings else ""
        record_for_logs(
            "repair of log", name, before, "; ".join(f"{finding.what}: {finding.detail}" for finding in findings)
        )


@app.command("enforce-retention")
def enforce_retention(
    url: Url, name: Annotated[str, typer.Argument(metavar="LOG", help="Only this log.")] = "", yes: Yes = False
) -> None:
    """Remove now the records that retention no longer keeps."""
    with open_existing(url) as store:
        removed = store.enforce_retention(known(store, name) if name else None, dry_run=not yes)
        said = "removed " if yes else "would remove "
        for removal in removed:
            records = count(removal.count, "record")
            typer.echo(f"{removal.partition}: {said}{records}, {removal.size:,} bytes, because of {removal.reason}")
        if not removed:
            typer.echo("There is nothing to remove.")
        elif not yes:
            needs_yes("removed")
        else:
            gone = count(sum(removal.count for removal in removed), "record")
            record_for_logs("retention of logs", name or "(all logs)", gone, "removed")


def _findings(findings: list[Any]) -> bool:
    """Print findings. Returns whether all is well."""
    colours = {"good": "green", "warning": "yellow", "bad": "red"}
    for finding in findings:
        console().print(
            f"[{colours.get(finding.level, 'white')}]{finding.level:>8}[/]  {finding.what}: {finding.detail}",
            highlight=False,
        )
    return not any(finding.level == "bad" for finding in findings)
