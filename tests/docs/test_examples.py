"""The examples of single concepts: short, and each runs in an empty folder without a warning."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

EXAMPLES = sorted((ROOT / "examples" / "concepts").glob("*.py"))
PRINTED = {
    "batch": "Moby-Dick: bound, 3 pages",
    "breaker": "the circuit is open",
    "bus": "reserved for order 17",
    "failures": "shipped to Mill Lane 3",
    "logs": "search read ['cart', 'home', 'home']",
    "queues": "1 mail for later",
    "results": "the sum is 10",
    "schedule": "report: sales",
    "streams": "late: ['home']",
    "transaction": "2 mails wait",
    "unit_of_work": "committed: 0 orders, 2 invoices",
    "with_await": "mail to ben@example.org",
}


def test_every_concept_has_its_example() -> None:
    assert {path.stem for path in EXAMPLES} == PRINTED.keys()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_does_what_it_says(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert PRINTED[path.stem] in ended.stdout.splitlines()
