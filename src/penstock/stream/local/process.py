"""One process of a ProcessRunner: requests and answers as lines of JSON, on both sides of its pipes."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from typing import IO, Any

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.errors import BadInput, StoreUnavailable
from penstock.stream.engine.permanent import is_permanent
from penstock.stream.local.runner import LocalRunner
from penstock.stream.runner import Status
from penstock.stream.topology import Topology

logger = logging.getLogger("penstock.stream")

START_SECONDS = 60.0  # in which a new process has to answer
ANSWER_SECONDS = 10.0  # a process that is well answers at once


@prepared
class Message(msgspec.Struct):
    """A request to a process, or its answer."""

    do: str = ""
    node: str = ""
    number: float = 0
    final: bool = False
    good: bool = True
    error: str = ""
    is_permanent: bool = False  # starting the process again would end in the same error
    statuses: list[Status] = []
    lows: dict[str, list[Micros]] = {}
    waits: dict[str, bool] = {}

    @property
    def patience(self) -> float:
        """How long the work may take, in seconds, besides answering."""
        return self.number if self.do in ("stop", "freeze", "finish") else 0.0


class StartRequest(msgspec.Struct):
    """The first line a process gets."""

    topology: str
    url: str
    options: dict[str, Any]
    path: list[str]
    leave_out: list[str] = []  # computations that have ended
    prepare: str = ""  # MODULE:FUNCTION that is called first


def load_topology(name: str) -> Topology:
    """What ``MODULE:TOPOLOGY`` names: a topology, or a function without arguments that gives one."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise BadInput(f"{name!r} names no topology.", hint="Write it as MODULE:TOPOLOGY, such as shop.flows:clicks.")
    try:
        named: Any = importlib.import_module(module)
    except ImportError as cause:
        raise BadInput(f"cannot import {module!r}: {cause}.", hint="Run where the module can be imported.") from cause
    for part in path.split("."):
        if not hasattr(named, part):
            raise BadInput(f"{module!r} has no {path!r}.", hint="Name its topology, or a function that returns one.")
        named = getattr(named, part)
    if callable(named):
        named = named()
    if not isinstance(named, Topology):
        raise BadInput(f"{name} is a {type(named).__name__}, no topology.", hint="Name a Topology.")
    return named


class Process:
    """One process, as its parent sees it."""

    def __init__(self, number: int, beginning: StartRequest) -> None:
        """Start it; it answers when it runs."""
        self.number = number
        self.left_out = frozenset(beginning.leave_out)
        self.began = time.monotonic()
        self._lock = threading.Lock()
        # Not with -m: the package has imported this module by then, and it would be run a second time.
        self._child = subprocess.Popen(
            [sys.executable, "-c", "from penstock.stream.local.process import run; run()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            self._send(beginning)
            self._receive(START_SECONDS)
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child.poll() is None

    def ask(self, message: Message) -> Message:
        """Send a request and wait for the answer. Raises if the process is dead; kills one that does not answer."""
        with self._lock:
            self._send(message)
            return self._receive(ANSWER_SECONDS + message.patience)

    def end(self, seconds: float) -> bool:
        """Wait for its end, then kill it."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(10)
            return False
        finally:
            if self._child.stdout is not None:
                with self._lock:  # a caller may wait for an answer; the end is one
                    self._child.stdout.close()
        return True

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()
        self.end(10)

    def _send(self, what: Any) -> None:
        assert self._child.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._child.stdin.write(msgspec.json.encode(what) + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as cause:
            raise self._dead() from cause

    def _receive(self, seconds: float) -> Message:
        assert self._child.stdout is not None  # noqa: S101 - it is a pipe
        try:
            poll = select.poll()  # select() cannot wait for descriptors above 1023
            poll.register(self._child.stdout, select.POLLIN)
            if not poll.poll(seconds * 1000):
                # Frozen or stuck; an answer that came later would be taken for that to another question.
                logger.error("process %d says nothing for %.0f s; it is ended", self.number, seconds)
                self._child.kill()
                raise self._dead()
            line = self._child.stdout.readline()
        except (OSError, ValueError) as cause:  # closed meanwhile
            raise self._dead() from cause
        if not line.endswith(b"\n"):
            raise self._dead()
        answer = msgspec.json.decode(line, type=Message)
        if answer.error:
            text = f"process {self.number} cannot run: {answer.error}"
            raise BadInput(text) if answer.is_permanent else StoreUnavailable(text, hint="It is started again.")
        return answer

    def _dead(self) -> StoreUnavailable:
        return StoreUnavailable(f"process {self.number} of the runner has ended.", hint="It is started again.")


# --- in the process ----------------------------------------------------------------------------------------


def run() -> None:
    """The entry point of the process."""
    # What computations print must not come between the answers.
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(sys.stdin.buffer, own)


def main(lines: IO[bytes], answers: IO[bytes]) -> None:
    """Run until asked to stop, or until the parent is gone."""
    # By name: this process is a program of its own, above the layers that the runner lives in.
    open_logs = importlib.import_module("penstock.opening").open_logs

    def answer(message: Message) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    first = lines.readline()
    if not first:
        return
    beginning = msgspec.json.decode(first, type=StartRequest)
    sys.path[:] = list(dict.fromkeys([*beginning.path, *sys.path]))
    try:
        if beginning.prepare:
            module, _, function = beginning.prepare.partition(":")
            getattr(importlib.import_module(module), function)()
        store = open_logs(beginning.url)
        options = {**beginning.options, "leave_out": tuple(beginning.leave_out)}
        runner = LocalRunner(load_topology(beginning.topology), store, **options).start()
    except Exception as error:
        answer(Message(error=f"{type(error).__name__}: {error}", is_permanent=is_permanent(error)))
        return
    answer(Message())
    with store:
        for line in lines:
            message = msgspec.json.decode(line, type=Message)
            answer(obey(runner, message))
            if message.do == "stop":
                return
        runner.stop()  # the parent is gone


def obey(runner: LocalRunner, message: Message) -> Message:
    """Do what the parent asks."""
    node = runner.topology.nodes.get(message.node)
    if message.do == "stop":
        return Message(good=runner.stop(f"{message.number:g}s"))
    if message.do == "status" or node is None:
        if message.do == "progress":
            lows, waits = runner.progress(int(message.number))
            return Message(lows=lows, waits=waits)
        return Message(statuses=runner.status())
    if message.do == "hurry":
        runner.hurry(node)
    elif message.do == "quiet":
        return Message(good=runner.is_quiet(node))
    elif message.do == "freeze":
        return Message(good=runner.freeze(node, message.final, message.number))
    elif message.do == "finish":
        return Message(good=runner.finish_holding(node, message.final, message.number))
    elif message.do == "release":
        runner.release(node)
    return Message()
