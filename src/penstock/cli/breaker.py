"""``penstock breaker``: circuits, their configuration, and advice on it."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from penstock.breaker.advice import advise
from penstock.breaker.breaker import Breaker
from penstock.breaker.circuit import CircuitView
from penstock.breaker.settings import BreakerConfig, read_config
from penstock.cli.help import App
from penstock.cli.opened import AsJson, Url, Yes, open_existing
from penstock.cli.printing import add, console, iso, needs_yes, print_json, table, when
from penstock.cli.recording import record
from penstock.cli.watching import watchable
from penstock.errors import BadInput
from penstock.queue.queues import QueueStore

app = App(help="Circuits: what is kept back while a far side is down.")

Circuit = Annotated[str, typer.Argument(help="The circuit, by its name or its hash.")]
Name = Annotated[str, typer.Option("--breaker", help="The breaker's name in the store.")]
Why = Annotated[str, typer.Option("--why", help="Kept with the transition.")]


def _breaker(store: QueueStore, name: str) -> Breaker:
    return Breaker(store, BreakerConfig(), name=name)


@app.command("list")
@watchable
def list_(url: Url, as_json: AsJson = False, breaker: Name = "breaker") -> None:
    """All circuits: state, recent failures, locked queues."""
    with open_existing(url) as store:
        circuits, now = _breaker(store, breaker).circuits(), store.now()
        if as_json:
            print_json([_shown(circuit) for circuit in circuits])
            return
        if not circuits:
            typer.echo("There is no circuit.")
            return
        numbers = ("failed %", "samples", "locked", "probes")
        shown = table("circuit", "state", "since", *numbers, "hash", numbers=numbers)
        for circuit in circuits:
            samples = circuit.successes + circuit.failures
            add(
                shown, circuit.circuit, circuit.state, when(circuit.since_us, now) if circuit.since_us else "-",
                circuit.ratio, samples, circuit.locked, circuit.probes, circuit.hash,
            )  # fmt: skip
        console().print(shown)


@app.command()
@watchable
def show(circuit: Circuit, url: Url, as_json: AsJson = False, breaker: Name = "breaker") -> None:
    """One circuit, the queues it holds, and how it came to its state."""
    with open_existing(url) as store:
        circuit_breaker, now = _breaker(store, breaker), store.now()
        view = circuit_breaker.circuit(circuit)
        locks = circuit_breaker.locked_queues().get(view.hash, [])
        if as_json:
            print_json({**_shown(view), "queues": [lock.queue for lock in locks]})
            return
        typer.echo(f"{view.circuit} ({view.hash}) is {view.state}")
        typer.echo(f"{view.failures} of {view.failures + view.successes} requests failed recently: {view.ratio} %")
        for transition in view.transitions:
            typer.echo(f"{iso(transition.at_us)}  {transition.state:<9}  {transition.why} (by {transition.by})")
        for lock in locks[:20]:
            typer.echo(f"locked since {when(lock.since_us, now)}: {lock.queue}")
        if len(locks) > 20:
            typer.echo(f"and {len(locks) - 20} more")


@app.command("open")
def open_(circuit: Circuit, url: Url, why: Why = "opened by hand", yes: Yes = False, breaker: Name = "breaker") -> None:
    """Keep everything of a circuit back until it is closed again, or half opened by its schedule."""
    with open_existing(url) as store:
        _agreed(yes, f"would open the circuit {circuit}: its queues are locked")
        circuit_breaker = _breaker(store, breaker)
        before = next(
            (known.state for known in circuit_breaker.circuits() if circuit in (known.circuit, known.hash)), "not known"
        )
        view = circuit_breaker.open(circuit, by=getpass.getuser(), why=why)
        record(store, "opening of circuit", view.circuit, before, view.state, why=why)
        typer.echo(f"{view.circuit} is {view.state}")
        if not circuit_breaker.is_configured:
            typer.echo("no configuration is stored: only programs that switched the breaker on mind it.", err=True)


@app.command()
def close(
    url: Url,
    *,
    circuit: Annotated[str | None, typer.Argument(help="The circuit, by its name or its hash.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every circuit that is not closed.")] = False,
    why: Why = "closed by hand",
    yes: Yes = False,
    breaker: Name = "breaker",
) -> None:
    """Close a circuit; its queues are unlocked one by one by the workers."""
    if (circuit is None) != all_:
        raise BadInput("close needs one circuit or --all.", hint="For example: penstock breaker close crm --yes")
    with open_existing(url) as store:
        circuit_breaker = _breaker(store, breaker)
        if circuit is not None:
            view = circuit_breaker.circuit(circuit)
            _agreed(
                yes, f"would close the circuit {view.circuit}, which is {view.state}; {view.locked} queues are locked"
            )
            circuit_breaker.close(circuit, by=getpass.getuser(), why=why)
            record(store, "closing of circuit", view.circuit, view.state, "closed", why=why)
            typer.echo(f"{view.circuit} is closed")
            return
        open_ones = [known.circuit for known in circuit_breaker.circuits() if known.state != "closed"]
        _agreed(yes, f"would close {len(open_ones)} circuits: {', '.join(open_ones) or 'none is open'}")
        closed = circuit_breaker.close_all(by=getpass.getuser(), why=why)
        record(store, "closing of circuits", ", ".join(open_ones) or "none", "not closed", f"{closed} closed", why=why)
        typer.echo(f"closed {closed} circuits")


@app.command()
def config(
    url: Url,
    *,
    file: Annotated[Path | None, typer.Option("--set", help="A JSON file with all nine properties.")] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Remove what is stored; the defaults hold again.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="Who changed it last, and how.")] = False,
    yes: Yes = False,
    breaker: Name = "breaker",
) -> None:
    """The configuration resource: print it, replace it, reset it, or see who changed it."""
    with open_existing(url) as store:
        circuit_breaker = _breaker(store, breaker)
        if file is not None:
            try:
                text = file.read_bytes()
            except OSError as error:
                raise BadInput(f"{file} cannot be read: {error.strerror}.", hint="Name a JSON file.") from error
            read_config(text)  # a dry run refuses what the run would
            _agreed(yes, f"would store {file} as the configuration of {breaker}")
            before = circuit_breaker.config.resource()
            circuit_breaker.configure(text, by=getpass.getuser())
            _record_configuration(store, breaker, before, circuit_breaker.config.resource())
        elif reset:
            _agreed(yes, f"would remove the stored configuration of {breaker}")
            before = circuit_breaker.config.resource()
            circuit_breaker.reset(by=getpass.getuser())
            _record_configuration(store, breaker, before, circuit_breaker.config.resource())
        if changes:
            print_json(
                [{**msgspec.to_builtins(change), "at": iso(change.at_us)} for change in circuit_breaker.changes()]
            )
            return
        if not circuit_breaker.is_configured:
            typer.echo("Nothing is stored: every process uses what its program says; these are defaults.", err=True)
        print_json(circuit_breaker.config.resource())


@app.command("advise")
def advise_(
    *,
    capacity: Annotated[int, typer.Option(help="Active queues that the system bears.")],
    load: Annotated[int, typer.Option(help="Active queues there usually are.")],
    per_minute: Annotated[float, typer.Option(help="Requests per minute to the backend.")],
    threshold: Annotated[int, typer.Option(help="Percent of failures that open a circuit.")] = 80,
    recovery: Annotated[float | None, typer.Option(help="Minutes until the last queue is back.")] = None,
    as_json: AsJson = False,
) -> None:
    """Configuration values from capacity, load and requests per minute, with the reasoning."""
    advice = advise(capacity=capacity, load=load, per_minute=per_minute, threshold=threshold, recovery_minutes=recovery)
    print_json(advice.resource())
    if not as_json:
        for name, why in advice.why.items():
            typer.echo(f"{name}: {why}", err=True)


def _record_configuration(store: QueueStore, breaker: str, before: Any, after: Any) -> None:
    texts = [msgspec.json.encode(resource).decode() for resource in (before, after)]
    record(store, "configuration of breaker", breaker, *texts)


def _agreed(yes: bool, what: str) -> None:
    if not yes:
        typer.echo(what)
        needs_yes()


def _shown(view: CircuitView) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(view)
    return {**shown, "since": iso(view.since_us) if view.since_us else None}
