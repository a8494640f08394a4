"""Runs the test groups one after the other and adds up what they say.

    python tools/test.py                 every group
    python tools/test.py unit contract   only these

Every group is one pytest process. A group whose folders do not exist yet is left out; one that has test
files and runs none of them fails. JOBS sets the number of processes of the parallel groups (0: none; by default two
for each core and at most 8, because tests of servers and clocks mostly wait). PYTEST_ADDOPTS reaches pytest as usual.
A test that fails has failed: nothing is run a second time. "busy" is how much of the cores was in use meanwhile: where
it is low, the tests waited. The last line is "N passed, N failed".
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.kafka import QUICK_ABORTS, SHARED, Kafka  # noqa: E402 - found by the line above
from tools.servers import Missing  # noqa: E402

from penstock.queue.worker.free_core import idle_seconds_of_all_cores  # noqa: E402 - found by the line above


@dataclass(frozen=True)
class Group:
    """Folders of tests/ that run in one pytest process."""

    name: str
    folders: tuple[str, ...]
    parallel: bool = False
    select: str = ""  # as pytest's -k
    broker: bool = False  # its processes share one
    most: int = 8  # processes

    def paths(self) -> list[str]:
        """The folders of the group that have test files."""
        return [f"tests/{folder}" for folder in self.folders if has_tests(ROOT / "tests" / folder)]


# The order is the order of running: the quick and the telling first.
GROUPS = (
    Group("unit", ("unit",), parallel=True),
    Group("contract", ("contract",), parallel=True, select="not kafka"),
    Group("stores", ("stores",), parallel=True, select="not kafka"),
    Group("seeds", ("seeds", "adopt"), parallel=True, select="not kafka"),
    Group("surface", ("cli", "docs", "typing", "integrations", "packaging"), parallel=True),
    Group("service", ("service",), parallel=True),
    Group("browser", ("browser",), parallel=True),
    Group("crash", ("crash",), parallel=True, select="not kafka"),
    # One broker is enough, and two would keep both cores busy with themselves; its clients mostly wait.
    Group("kafka", ("contract", "stores", "seeds", "crash"), parallel=True, select="kafka", broker=True),
    # Each process has a Spark session for all of its tests, and each session a JVM.
    Group("spark", ("spark",), parallel=True, most=2),
)
# Folders with a command of their own (`make faults`, which also runs the tests marked so in other folders).
ELSEWHERE = {"faults"}

NO_TESTS = 5  # exit code of pytest: it found nothing to run


@dataclass
class Result:
    """What one group came to."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    busy: float | None = None  # share of all cores, whoever used them
    note: str = ""


class Watch:
    """What time passes, and how much of the cores is in use meanwhile."""

    def __init__(self) -> None:
        self._began, self._idle = time.monotonic(), idle_seconds_of_all_cores()

    def tell(self, result: Result) -> None:
        """Write it down."""
        result.seconds, idle = time.monotonic() - self._began, idle_seconds_of_all_cores()
        if self._idle is not None and idle is not None:
            result.busy = 1 - (idle - self._idle) / (result.seconds * (os.cpu_count() or 1))


def has_tests(folder: Path) -> bool:
    """Whether a folder holds at least one test file."""
    return any(folder.rglob("test_*.py"))


def homeless() -> list[str]:
    """Folders of tests that belong to no group."""
    known = ELSEWHERE.union(*(group.folders for group in GROUPS))
    return sorted(
        folder.name
        for folder in (ROOT / "tests").glob("*")
        if folder.is_dir() and folder.name not in known and has_tests(folder)
    )


@contextlib.contextmanager
def shared(group: Group) -> Iterator[dict[str, str]]:
    """The environment of a group: with a broker for all of its processes, if it asks for one."""
    if not group.broker:
        yield dict(os.environ)
        return
    try:
        broker = Kafka(**QUICK_ABORTS)
    except Missing:
        yield dict(os.environ)  # the tests say so themselves
        return
    try:
        yield {**os.environ, SHARED: str(broker.start().port)}
    finally:
        broker.close()


def run(group: Group, paths: list[str], report: Path) -> Result:
    """Runs one group and reads its report."""
    with shared(group) as environment:
        return _run(group, paths, report, environment)


def _run(group: Group, paths: list[str], report: Path, environment: dict[str, str]) -> Result:
    command = [sys.executable, "-m", "pytest", *paths, "-m", "not faults", f"--junit-xml={report}"]
    jobs = min(int(os.environ.get("JOBS") or 2 * (os.cpu_count() or 1)), group.most)
    if group.parallel and jobs:
        command += ["-n", str(jobs)]
    if group.select:
        command += ["-k", group.select]
    watch, result = Watch(), Result(group.name)
    code = subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode
    read(report, result)
    watch.tell(result)
    if code == NO_TESTS:
        result.note = "no tests were run"
    elif code not in (0, 1):
        result.note = f"pytest ended with {code}"
    if code != 0:
        result.failed = max(result.failed, 1)
    return result


def read(report: Path, result: Result) -> None:
    """Add up what a run says of itself."""
    if report.exists():
        for suite in ElementTree.parse(report).iter("testsuite"):
            count = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
            result.failed += count["failures"] + count["errors"]
            result.skipped += count["skipped"]
            result.passed += count["tests"] - count["failures"] - count["errors"] - count["skipped"]


def check() -> Result:
    """Runs `make check`; a failure counts as one failed test."""
    watch = Watch()
    code = subprocess.run(["make", "--no-print-directory", "check"], cwd=ROOT, check=False).returncode
    result = Result("check", failed=int(code != 0))
    watch.tell(result)
    return result


def main(names: list[str]) -> int:
    """Runs the named groups, or all of them with the checks before."""
    known = {"check", *(group.name for group in GROUPS)}
    if unknown := [name for name in names if name not in known]:
        print(f"no such group: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        return 2

    results = [check()] if not names or "check" in names else []
    with tempfile.TemporaryDirectory(prefix="penstock-test-") as folder:
        for group in GROUPS:
            paths = group.paths()
            if (names and group.name not in names) or not paths:
                continue
            print(f"\n=== {group.name}: {' '.join(paths)}", flush=True)
            results.append(run(group, paths, Path(folder) / f"{group.name}.xml"))
    if not names:
        results += [Result(name, failed=1, note="in no group of tools/test.py") for name in homeless()]

    print("\ngroup        passed failed skipped  seconds   busy")
    for result in results:
        print(
            f"{result.name:<12} {result.passed:>6} {result.failed:>6} {result.skipped:>7} "
            f"{result.seconds:>8.1f} {'' if result.busy is None else f'{result.busy:.0%}':>6}  {result.note}".rstrip()
        )
    passed = sum(result.passed for result in results)
    failed = sum(result.failed for result in results)
    print(f"\n{passed} passed, {failed} failed", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
