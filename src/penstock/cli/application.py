"""From ``MODULE:APP`` to a store with handlers; every failure is one line that says where."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import typer

from penstock.declared import Queues
from penstock.errors import BadInput, PenstockError
from penstock.location import read_url
from penstock.queue.queues import QueueStore

HINT = "Run the command where the module can be imported."


def import_from_here() -> None:
    """Let modules of the current folder be imported, as ``python -m`` does; the installed command does not."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def load(name: str, *, url: str | None = None, is_url_asked: bool = False, verbose: bool = False) -> QueueStore:
    """The store that ``MODULE:APP`` names, with its handlers; ``verbose`` also prints where its own code failed.

    Queues that are declared and not open yet are opened at ``url``. Where the module has opened its store itself, a
    ``url`` of another store is refused if the user asked for it (``is_url_asked``).
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise BadInput(
            f"{name!r} does not name an application.", hint="Write it as MODULE:APP, such as shop.app:store."
        )
    import_from_here()
    target = _imported(module_name, verbose)
    for part in path.split("."):
        if not hasattr(target, part):
            raise BadInput(f"{module_name!r} has no {path!r}.", hint="Name its store, or a function that returns one.")
        target = getattr(target, part)
    if callable(target) and not isinstance(target, QueueStore):
        target = _called(target, name, verbose)
    if isinstance(target, Queues):
        target = _opened(target, name, url)
    if not isinstance(target, QueueStore):
        raise BadInput(
            f"{name} is a {type(target).__name__}, not a queue store.",
            hint="Name what penstock.open_queues() gave, penstock.Queues(), or a function that returns one of them.",
        )
    if is_url_asked and url is not None and not _is_at(target, url):
        target.close()
        raise BadInput(
            f"{name} has opened {target.name} itself, so --url would change nothing.",
            hint="Leave --url out, or declare the queues with penstock.Queues() and name that: --url opens them.",
        )
    if not target.handlers:
        raise BadInput(f"{name} has no handlers.", hint="Register them with @queue.handler in that module.")
    return target


def load_type(name: str) -> Any:
    """The payload type that ``MODULE:TYPE`` names."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise BadInput(f"{name!r} does not name a type.", hint="Write it as MODULE:TYPE, such as shop.events:Click.")
    import_from_here()
    target = _imported(module_name, verbose=False)
    for part in path.split("."):
        if not hasattr(target, part):
            raise BadInput(f"{module_name!r} has no {path!r}.", hint="Name a type of that module.")
        target = getattr(target, part)
    return target


def _opened(queues: Queues, name: str, url: str | None) -> QueueStore:
    if queues.is_open:
        return queues.store
    if url is None:
        raise BadInput(f"{name} is declared, but not open.", hint="Say where its queues are: --url, or PENSTOCK_URL.")
    return queues.open(url)


def _is_at(store: QueueStore, url: str) -> bool:
    """Whether a URL names this store, whatever options it has."""
    asked, opened = read_url(url), read_url(store.name)
    if asked.space != store.space:
        return False
    if asked.scheme == opened.scheme == "sqlite":
        return asked.file.resolve() == opened.file.resolve()
    return asked.masked.partition("?")[0] == opened.masked.partition("?")[0]


def _imported(module: str, verbose: bool) -> Any:
    try:
        return importlib.import_module(module)
    except PenstockError:
        raise  # already says what is wrong, such as a store that cannot be opened
    except ModuleNotFoundError as cause:
        if module == cause.name or module.startswith(f"{cause.name}."):
            raise BadInput(
                f"there is no module {cause.name!r} (looked for {module!r} from {os.getcwd()}).", hint=HINT
            ) from cause
        raise _failed(f"cannot import {module}", cause, verbose) from cause
    except (Exception, SystemExit) as cause:
        raise _failed(f"cannot import {module}", cause, verbose) from cause


def _called(function: Any, name: str, verbose: bool) -> Any:
    try:
        inspect.signature(function).bind()
    except TypeError as cause:
        raise BadInput(
            f"{name} needs arguments ({cause}).", hint="Name a store, or a function without arguments that returns one."
        ) from cause
    except ValueError:
        pass  # built in, without a signature to look at
    try:
        return function()
    except PenstockError:
        raise
    except (Exception, SystemExit) as cause:
        raise _failed(f"{name}() failed", cause, verbose) from cause


def _failed(what: str, cause: BaseException, verbose: bool) -> BadInput:
    frames = _own_frames(cause.__traceback__)
    if verbose:
        shown = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
        typer.echo("".join([*shown, *traceback.format_exception_only(cause)]).rstrip(), err=True)
    if isinstance(cause, SyntaxError) and cause.filename:
        where = f" ({_short(cause.filename)} line {cause.lineno})"
        said = cause.msg
    else:
        where = f" ({_short(frames[-1].filename)} line {frames[-1].lineno})" if frames else ""
        said = str(cause)
    hint = "" if verbose else "With --verbose you see the way there."
    return BadInput(f"{what}: {type(cause).__name__}: {' '.join(said.split())}{where}.", hint=hint)


def _own_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of the application: from the first that is neither ours nor the importer's, without the importer's."""
    here = str(Path(__file__).parent)
    return [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith((here, "<frozen importlib", importlib.__file__ or here))
    ]


def _short(path: str) -> str:
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
