"""``penstock doctor``: look at a store and say what is good, doubtful or bad about it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import installation, logs
from penstock.cli.opened import AsJson, OptionalUrl, open_existing
from penstock.cli.printing import add, console, count, print_json, span, table
from penstock.cli.watching import watchable
from penstock.clock import SECOND, SystemClock, from_micros
from penstock.errors import BadInput, PenstockError
from penstock.location import read_url
from penstock.log.protocol import Finding as log_finding
from penstock.log.store import LogStore
from penstock.opening import LOG_STORES, QUEUE_STORES
from penstock.queue.held import orphans
from penstock.queue.protocol import Finding
from penstock.queue.queues import QueueStore

STYLES = {"good": "green", "unknown": "cyan", "warning": "yellow", "bad": "red"}
SKEW_BEARABLE = 1 * SECOND


@watchable
def doctor(
    url: OptionalUrl = "",
    as_json: AsJson = False,
    install: Annotated[bool, typer.Option("--install", help="Look at this installation instead of a store.")] = False,
) -> None:
    """Check a store of queues or logs, or this installation; exit code 1 if any finding is bad."""
    if install:
        _tell_installation(as_json)
        return
    if not url:
        raise BadInput(
            "doctor was given no store.", hint="Name its URL, or use --install to look at what is installed."
        )
    scheme = read_url(url).scheme
    if scheme in LOG_STORES and scheme not in QUEUE_STORES:
        with logs.open_existing(url) as log_store:
            findings: list[Any] = log_store.check() or [log_finding("good", "store", "it can be opened")]
            findings += _behind(log_store)
            _tell(log_store, log_store.name, findings, as_json)
        return
    with open_existing(url) as store:
        findings = [_clock(store), *store.check(), *_work(store)]
        _tell(store, f"{store.name}, space {store.space}", findings, as_json)


def _tell_installation(as_json: bool) -> None:
    findings = installation.findings()
    if as_json:
        print_json({"findings": findings})
    else:
        _show(findings)
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(1)


def _show(findings: list[Any]) -> None:
    shown = table("level", "what", "finding")
    for finding in findings:
        add(
            shown,
            finding.level,
            finding.what,
            finding.detail,
            style=STYLES[finding.level] if finding.level != "good" else "",
        )
    console().print(shown)


def _tell(store: QueueStore | LogStore, title: str, findings: list[Any], as_json: bool) -> None:
    flags = msgspec.structs.asdict(store.capabilities)
    bad = [finding for finding in findings if finding.level == "bad"]
    if as_json:
        space = getattr(store, "space", None)
        print_json({"store": store.name, "space": space, "capabilities": flags, "findings": findings})
    else:
        typer.echo(title)
        _show(findings)
        can = (f"{'' if able else 'no '}{name.replace('_', ' ')}" for name, able in flags.items())
        typer.echo(f"capabilities: {', '.join(can)}")
        typer.echo(
            "all good" if all(finding.level == "good" for finding in findings) else count(len(bad), "bad finding")
        )
    if bad:
        raise typer.Exit(1)


def _behind(store: LogStore) -> list[Any]:
    """Report groups that have fallen behind retention."""
    findings = []
    for name in store.names():
        for group in store.groups(name):
            lag = store.lag(name, group)
            if lag.skipped:
                text = f"{lag.skipped:,} records that it had not read were removed by retention"
                findings.append(log_finding("warning", f"group {group} of {name}", text))
    return findings


def _clock(store: QueueStore) -> Finding:
    now = store.now()
    skew = now - SystemClock().micros()
    text = f"the store says {from_micros(now).isoformat(timespec='seconds')}"
    if abs(skew) <= SKEW_BEARABLE:
        return Finding("good", "clock", text)
    side = "ahead of" if skew > 0 else "behind"
    return Finding("warning", "clock", f"{text}, {span(skew)} {side} this host; due times follow the store")


def _work(store: QueueStore) -> list[Finding]:
    """Report locks and dead letters."""
    try:
        counts = store.counts()
    except PenstockError as error:
        return [Finding("bad", "queues", f"cannot be read: {error}")]
    lost = orphans(store)
    waits = f"{len(lost):,} held entries wait for nothing that could end: {', '.join(lost[:3])}"
    dead, locked = sum(queue.dead for queue in counts), [queue.queue for queue in counts if queue.locks]
    return [
        Finding("warning" if dead else "good", "dead letters", f"{dead:,} in all queues"),
        Finding("warning" if locked else "good", "locked queues", ", ".join(locked) or "none"),
        Finding("bad" if lost else "good", "held entries", waits if lost else "all wait for something that can end"),
    ]
