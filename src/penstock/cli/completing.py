"""Completion in the shell: ``penstock completion``, and the names of queues, schedules and logs from the store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock.errors import BadInput
from penstock.location import read_url
from penstock.opening import open_logs, open_queues
from penstock.queue.queues import QueueStore
from penstock.queue.removal import listed_queues

SHELLS = ("bash", "zsh", "fish")
PATIENCE = 0.5  # seconds that a press of Tab may take
MOST_NAMES = 200


def completion(shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print what makes a shell complete commands, options and names.

    bash: eval "$(penstock completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, after compinit;
    fish: penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise BadInput(f"{shell!r} is not a shell that is known here.", hint=f"Use one of {', '.join(SHELLS)}.")
    typer.echo(get_completion_script(prog_name="penstock", complete_var="_PENSTOCK_COMPLETE", shell=shell))


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of queues that begin so."""
    return _from_queues(
        ctx, lambda store: [counts.queue for counts in listed_queues(store, prefix=incomplete, limit=MOST_NAMES)]
    )


def schedule_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of schedules that begin so."""
    return [name for name in _from_queues(ctx, lambda store: [schedule.name for schedule in store.schedules()])
            if name.startswith(incomplete)]  # fmt: skip


def log_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of logs that begin so."""
    return [name for name in _from_logs(ctx, lambda store: store.names()) if name.startswith(incomplete)]


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the groups of the log that was typed before."""
    log = str(ctx.params.get("name") or "")
    return [name for name in _from_logs(ctx, lambda store: store.groups(log)) if name.startswith(incomplete)]


def _from_queues(ctx: typer.Context, look: Callable[[QueueStore], list[str]]) -> list[str]:
    url = ctx.params.get("url") or os.environ.get("PENSTOCK_URL")
    return _in_time(lambda: _looked(open_queues, url, look))


def _from_logs(ctx: typer.Context, look: Callable[[Any], list[str]]) -> list[str]:
    url = ctx.params.get("url") or os.environ.get("PENSTOCK_LOGS_URL")
    return _in_time(lambda: _looked(open_logs, url, look))


def _looked(open_store: Callable[[str], Any], url: str | None, look: Callable[[Any], list[str]]) -> list[str]:
    from penstock.cli.opened import is_there
    from penstock.opening import QUEUE_STORES

    if not url:
        return []
    location = read_url(url)
    if location.scheme in QUEUE_STORES and open_store is open_queues and not is_there(location):
        return []  # a press of Tab must not make a store
    if location.scheme == "file" and not os.path.isdir(location.path):
        return []
    with open_store(url) as store:
        return look(store)


def _in_time(look: Callable[[], list[str]]) -> list[str]:
    """The result if it comes in time, or nothing if it fails: a line that is being typed has no place for an error."""
    names: list[str] = []

    def run() -> None:
        try:
            names.extend(look())
        except Exception:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return list(names)
