"""What is seen again and again: ``top``, ``--watch``; and what a shell shows: help and completion."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import typer
from tests.cli.conftest import Run
from typer.main import get_command
from typer.testing import CliRunner

from penstock import QueueStore, Worker
from penstock.cli.app import app
from penstock.cli.observing import Observer
from penstock.cli.top import COLUMNS, View
from penstock.cli.watching import repeat
from penstock.clock import FakeClock
from penstock.opening import open_queues
from penstock.queue.protocol import DocumentWrite
from penstock.queue.worker.presence import Serving, WorkerRecord


class Terminal:
    """A command in a terminal of its own, 30 lines of 140 columns."""

    def __init__(self, url: str, *words: str) -> None:
        self._mine, theirs = pty.openpty()
        subprocess.run(["stty", "rows", "30", "cols", "140"], stdin=theirs, check=True)
        env = {**os.environ, "PENSTOCK_URL": url, "TERM": "xterm"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=env,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - ignored by what runs in the background
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str) -> None:
        os.write(self._mine, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Read until this is on the screen, counted from the last thing that was waited for."""
        deadline = time.monotonic() + 50
        while not re.search(pattern, self.seen, re.DOTALL):
            assert time.monotonic() < deadline, self.seen[-3000:]
            ready, _, _ = select.select([self._mine], [], [], 1)
            if ready:
                self.seen += os.read(self._mine, 65536).decode(errors="replace")
        self.seen = ""

    def ended(self) -> int:
        code = self._drained()
        os.close(self._mine)
        return code

    def _drained(self) -> int:
        while self.process.poll() is None:
            ready, _, _ = select.select([self._mine], [], [], 0.2)
            if ready:
                try:
                    os.read(self._mine, 65536)
                except OSError:
                    break
        return self.process.wait(30)


@pytest.fixture
def terminals(url: str) -> Iterator[Any]:
    opened: list[Terminal] = []

    def start(*words: str) -> Terminal:
        opened.append(Terminal(url, *words))
        return opened[-1]

    yield start
    for one in opened:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


# --- top ---------------------------------------------------------------------------------------------


def a_worker(store: QueueStore) -> None:
    record = WorkerRecord("web-1/7-a", "web-1", 7, "1", store.now(), False, (Serving("customer.", True, 1, 8),))
    store.driver.write([DocumentWrite("penstock.worker.web-1.7", msgspec.json.encode(record))])


def test_top_once_shows_queues_families_workers_and_circuits(run: Run, store: QueueStore) -> None:
    mails = store.queue("mails")
    mails.put_many([1, 2, 3])
    mails.put(4, delay="1h")
    store.queue("idle").lock(holder="ops", reason="lunch")
    for name in ("ann", "ben"):
        store.queue(f"customer.{name}").put(1)
    a_worker(store)
    run("breaker", "open", "crm", "--yes")
    out = run("top", "--once").out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert lines["mails"][1:3] == ["3", "1"]
    assert lines["customer.*"][1] == "2", "the queues of a family are one line"
    assert lines["customer.*"][5] == "0/8"
    assert lines["idle"][-1] == "ops"
    assert lines["web-1"][1:3] == ["7", "alive"]
    assert lines["crm"][1] == "open"
    assert "\x1b" not in out
    assert "customer.ann" in run("top", "--once", "--members").out
    assert "mails" not in run("top", "--once", "--filter", "cust").out
    assert "no column 'redy'" in run("top", "--sort", "redy", code=2).err
    shown = run("top", "--json", "--sort", "name").json()
    assert [line["name"] for line in shown["queues"]] == ["customer.*", "idle", "mails"]


def test_top_sorts_filters_and_ends_by_keys(terminals: Any, store: QueueStore) -> None:
    for name, count in (("alpha", 1), ("beta", 30), ("gamma", 5)):
        store.queue(name).put_many(range(count))
    top = terminals("top", "--every", "300ms")
    top.wait_for(r"beta.*gamma.*alpha")
    top.type("r")
    top.wait_for(r"alpha.*gamma.*beta")
    top.type("/amm")
    top.wait_for(r"/amm_")
    top.type("\r")
    top.wait_for(r"only \*amm\*")
    top.type("q")
    assert top.ended() == 0


def test_keys_of_top() -> None:
    view = View()
    seen = [view.sort]
    for _ in COLUMNS:
        view.press("s")
        seen.append(view.sort)
    assert set(seen) == set(COLUMNS)
    for key in "/ab\x7fc\r":
        view.press(key)
    assert (view.filter, view.is_typing) == ("ac", False)
    view.press("\x1b")
    assert view.filter == ""
    view.press(" ")
    assert view.is_held
    view.press("q")
    assert view.is_over


def test_rates_of_top_come_from_what_workers_did_and_what_came_in() -> None:
    clock = FakeClock()
    with open_queues("memory://top", clock=clock) as store:
        queue = store.queue("mails")
        queue.add_handler(lambda _: None)
        observer = Observer(store)
        queue.put_many(range(10))
        assert observer.look().queues[0].put_rate is None, "after one look nobody knows"
        worker = Worker(store)
        worker.drain()
        worker.write_figures()
        clock.advance("10s")
        queue.put_many(range(20))
        [line] = observer.look().queues
        assert line.put_rate == pytest.approx(2.0)
        assert line.done_rate > 0
        assert line.ready == 20


def test_top_sees_puts_in_a_store_that_has_worked_for_days() -> None:
    """What was done a day ago is not counted any more; that must not be taken for fewer puts."""
    clock = FakeClock()
    with open_queues("memory://top-for-days", clock=clock) as store:
        queue = store.queue("mails")
        queue.add_handler(lambda _: None)
        worker = Worker(store)

        def work() -> None:
            queue.put_many(range(600))
            worker.drain()
            worker.write_figures()

        work()
        clock.advance("23h")
        clock.advance("59m")
        observer = Observer(store)
        observer.look()
        for _ in range(2):
            clock.advance("1m")
            work()
            [line] = observer.look().queues
            assert line.put_rate == pytest.approx(10.0)


# --- watch -------------------------------------------------------------------------------------------


def test_watch_looks_again_until_it_is_interrupted(terminals: Any, store: QueueStore) -> None:
    store.queue("mails").put(1)
    watch = terminals("queue", "list", "--watch", "--every", "200ms")
    watch.wait_for(r"until Ctrl-C.*mails")
    store.queue("orders").put(1)
    watch.wait_for(r"orders")
    watch.process.send_signal(signal.SIGINT)
    assert watch.ended() == 130


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_watch_ends_when_python_dropped_the_interrupt() -> None:
    class Interrupted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        assert looks == 1, "looked again after Ctrl-C"
        Interrupted()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        repeat(look, pause=0)
    assert signal.getsignal(signal.SIGINT) is before


def test_watch_with_json_gives_lines_and_ends_when_nobody_reads(url: str, store: QueueStore) -> None:
    store.queue("mails").put(1)
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "queue", "list", "--json", "--watch", "--every", "100ms"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PENSTOCK_URL": url},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())[0]["queue"] == "mails"
        process.stdout.close()
        assert process.wait(50) == 0
        assert "Traceback" not in process.stderr.read()


def test_every_command_that_looks_can_watch() -> None:
    looking = {
        "queue": ["list", "show", "entry", "find"], "schedule": ["list"], "bus": ["list"], "breaker": ["list", "show"],
        "log": ["list", "lag"], "stream": ["lag", "status"],
    }  # fmt: skip
    root: Any = get_command(app)
    for group, names in looking.items():
        for name in names:
            options = {option for param in root.commands[group].commands[name].params for option in param.opts}
            assert {"--watch", "--every", "--json"} <= options, (group, name)
    assert "--watch" in {option for param in root.commands["workers"].params for option in param.opts}


# --- help and completion -----------------------------------------------------------------------------


def all_commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from all_commands(child, (*path, name))


def test_help_names_values_and_no_types(capsys: pytest.CaptureFixture[str]) -> None:
    root = get_command(app)
    for path in all_commands(root):
        root.main([*path, "--help"], prog_name="penstock", standalone_mode=False)
        said = capsys.readouterr().out
        assert "Usage" in said, path
        for odd in ("<bool>", "<str>", "range>", "<int>", "<list", "{NAME}", "]...]", "{name}"):
            assert odd not in said, (path, odd)
    usage = CliRunner().invoke(app, ["queue", "cancel", "--help"]).output
    assert "queue cancel [OPTIONS] NAME [ID]..." in usage


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(run: Run, shell: str) -> None:
    assert "_PENSTOCK_COMPLETE" in run("completion", shell).out
    assert "is not a shell" in run("completion", "tcsh", code=2).err


def complete(url: str, line: str) -> list[str]:
    env = {**os.environ, "PENSTOCK_URL": url, "_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": line,
           "COMP_CWORD": str(len(line.split(" ")) - 1)}  # fmt: skip
    code = "import sys; sys.argv[0] = 'penstock'; from penstock.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_commands_and_names_are_completed(url: str, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.completing.PATIENCE", 30)
    store.queue("mails").put(1)
    store.queue("mail-out").put(1)
    store.queue("orders").put(1)
    from penstock.cli.completing import queue_names, schedule_names

    store.queue("orders").schedule("nightly", 1, every="1h")
    context = typer.Context(get_command(app))
    monkeypatch.setenv("PENSTOCK_URL", url)
    assert queue_names(context, "mai") == ["mail-out", "mails"]
    assert schedule_names(context, "n") == ["nightly"]
    monkeypatch.setenv("PENSTOCK_URL", f"{url}.not-there")
    assert queue_names(context, "mai") == []
    assert not os.path.exists(url.removeprefix("sqlite:///") + ".not-there")
    monkeypatch.setenv("PENSTOCK_URL", "nonsense")
    assert queue_names(context, "mai") == []
    assert "cancel" in complete(url, "penstock queue ca")
