"""``--watch``: a command that looks, run again and again until Ctrl-C."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from penstock.cli import printing
from penstock.cli.interrupts import remembered_interrupts
from penstock.cli.reading import length
from penstock.clock import SECOND
from penstock.errors import StoreReadOnly, StoreUnavailable

F = TypeVar("F", bound=Callable[..., Any])

Watch = Annotated[bool, typer.Option("--watch", help="Look again and again, until Ctrl-C; --json gives a line a time.")]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="How often --watch looks.")]

TO_THE_TOP = "\x1b[H\x1b[J"
OPTIONS: dict[str, Any] = {"watch": Watch, "every": Every}
DEFAULTS: dict[str, Any] = {"watch": False, "every": "2s"}


def watchable(look: F) -> F:
    """Add ``--watch`` to a command."""

    @functools.wraps(look)
    def command(*arguments: Any, watch: bool, every: str, **options: Any) -> None:
        pause = length(every, "every", least="100ms") / SECOND
        if watch:
            repeat(functools.partial(look, *arguments, **options), pause)
        else:
            look(*arguments, **options)

    hints = get_type_hints(look, include_extras=True)
    own = [
        parameter.replace(annotation=hints[parameter.name]) for parameter in inspect.signature(look).parameters.values()
    ]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=annotation)
        for name, annotation in OPTIONS.items()
    ]
    command.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    command.__annotations__ = {**hints, **OPTIONS}
    del command.__wrapped__  # its signature is not the command's
    return command  # type: ignore[return-value]


def repeat(look: Callable[[], Any], pause: float) -> None:
    """Run, wait, and run again. If the store is away, that is reported and tried again."""
    with remembered_interrupts() as check_for_interrupt:
        while True:
            try:
                _look_once(look)
                sys.stdout.flush()
            except BrokenPipeError:
                return  # the reader of the pipe has seen enough
            check_for_interrupt()
            time.sleep(pause)


def _look_once(look: Callable[[], Any]) -> None:
    is_terminal = sys.stdout.isatty()
    if is_terminal:
        typer.echo(f"{TO_THE_TOP}{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, until Ctrl-C\n")
    try:
        with printing.one_line_of_json():
            look()
    except typer.Exit:
        pass  # a finding that would be the exit code; it is on the screen
    except StoreUnavailable as error:
        if isinstance(error, StoreReadOnly):
            raise
        typer.echo(f"error: {error}", err=True)
