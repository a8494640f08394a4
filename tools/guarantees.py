"""Draws the matrix of docs/guarantees.md: store, operation, fault, and the tests that prove each cell.

    python -m tools.guarantees                          write the page from what is recorded
    python -m tools.guarantees --record a.xml b.xml     record what pytest reported (--junit-xml), then write the page

Which test proves what is in tests/guarantees.toml; what these tests did when they ran last is in tests/guarantees.json.
A cell names its tests if all their cases passed. Nothing else counts as proven.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
PROOFS = ROOT / "tests" / "guarantees.toml"
RESULTS = ROOT / "tests" / "guarantees.json"
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"

Results = dict[str, dict[str, Any]]  # test → {"date": …, "cases": {id: "passed", "failed" or "skipped"}}


class Proof(NamedTuple):
    """A test, and the operations and stores that it speaks of."""

    operations: tuple[str, ...]
    test: str
    cases: str
    stores: tuple[str, ...]

    def outcomes(self, store: str, results: Results) -> list[str]:
        """What became of the cases that are about one store."""
        recorded = results.get(self.test, {"cases": {}})["cases"]
        matching = {case: outcome for case, outcome in recorded.items() if re.search(self.cases, case)}
        if self.stores:
            return list(matching.values()) if store in self.stores else []
        return [outcome for case, outcome in matching.items() if store in case.split("-")]


class Fault(NamedTuple):
    """What goes wrong, what proves that Penstock survives it, and which operations and stores it can happen to."""

    name: str
    proofs: tuple[Proof, ...]
    absent: dict[str, str]  # stores that it cannot happen to, with the reason
    operations: tuple[str, ...] = ()  # those that it can meet, if not all


class Matrix(NamedTuple):
    """The faults of queues, of logs or of streams."""

    title: str
    stores: dict[str, str]
    operations: tuple[str, ...]
    faults: tuple[Fault, ...]


def matrices() -> list[Matrix]:
    """What tests/guarantees.toml says."""
    tables = tomllib.loads(PROOFS.read_text())["matrix"].values()
    return [
        Matrix(
            table["title"],
            table["stores"],
            tuple(table["operations"]),
            tuple(_fault(fault) for fault in table["fault"]),
        )
        for table in tables
    ]


def _fault(table: dict[str, Any]) -> Fault:
    proofs = tuple(
        Proof(tuple(proof["operations"]), proof["test"], proof.get("cases", ""), tuple(proof.get("stores", ())))
        for proof in table["proofs"]
    )
    return Fault(table["name"], proofs, table.get("absent", {}), tuple(table.get("operations", ())))


def tests() -> list[str]:
    """Every test that is named, in the order of the file, once."""
    return list(dict.fromkeys(proof.test for matrix in matrices() for fault in matrix.faults for proof in fault.proofs))


def record(reports: Sequence[Path], results: Results) -> Results:
    """The results with those of pytest's reports in place of older ones; other tests than the named are left out."""
    wanted = set(tests())
    fresh: Results = {}
    for report in reports:
        for suite in ElementTree.parse(report).iter("testsuite"):
            for case in suite.iter("testcase"):
                name, _, parameters = (case.get("name") or "").partition("[")
                test = _test_id(case.get("classname") or "", name)
                if test in wanted:
                    date = (suite.get("timestamp") or "")[:10]
                    cases = fresh.setdefault(test, {"date": date, "cases": {}})["cases"]
                    cases[parameters.removesuffix("]")] = _outcome(case)
    return dict(sorted({**{test: results[test] for test in results if test in wanted}, **fresh}.items()))


def _test_id(classname: str, name: str) -> str:
    """The id that pytest shows, from the dotted name that its report has."""
    parts = classname.split(".")
    classes = [part for part in parts if part.startswith("Test")]
    return "::".join(["/".join(parts[: len(parts) - len(classes)]) + ".py", *classes, name])


def _outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def cell(fault: Fault, operation: str, store: str, results: Results, numbers: dict[str, int]) -> str:
    """What is known of an operation on a store under a fault."""
    if store in fault.absent:
        return "–"
    proven, bad = [], set()
    for proof in (proof for proof in fault.proofs if operation in proof.operations):
        outcomes = proof.outcomes(store, results)
        if proof.test not in results and store in (proof.stores or {store}):
            outcomes = ["never recorded"]
        if outcomes and set(outcomes) == {"passed"}:
            proven.append(numbers[proof.test])
        bad |= set(outcomes) - {"passed"}
    if "failed" in bad:
        return "**failed**"
    if proven:
        return " ".join(f"[{number}](#proof-{number})" for number in dict.fromkeys(proven))
    return "not run" if bad else "not tested"


def table(matrix: Matrix, results: Results, numbers: dict[str, int]) -> Iterator[str]:
    """A matrix as Markdown; operations of a fault that share all their cells share a row."""
    yield "| fault | operation | " + " | ".join(matrix.stores.values()) + " |"
    yield "|---|---|" + "---|" * len(matrix.stores)
    for fault in matrix.faults:
        rows: dict[tuple[str, ...], list[str]] = {}
        for operation in fault.operations or matrix.operations:
            cells = tuple(cell(fault, operation, store, results, numbers) for store in matrix.stores)
            rows.setdefault(cells, []).append(operation)
        name = fault.name
        for cells, operations in rows.items():
            yield f"| {name} | {', '.join(operations)} | " + " | ".join(cells) + " |"
            name = ""


def absences(matrix: Matrix) -> str:
    """Why some cells are empty."""
    reasons: dict[str, list[str]] = {}
    for fault in matrix.faults:
        for store, reason in fault.absent.items():
            reasons.setdefault(matrix.stores[store], []).append(reason)
    return "; ".join(f"{store}: {', '.join(dict.fromkeys(why))}" for store, why in reasons.items())


def listing(results: Results, numbers: dict[str, int]) -> Iterator[str]:
    """The tests by number."""
    yield "| | test | cases | last recorded |"
    yield "|---|---|---|---|"
    for test, number in numbers.items():
        recorded = results.get(test, {"date": "never", "cases": {}})
        outcomes = list(recorded["cases"].values())
        counts = ", ".join(
            f"{outcomes.count(kind)} {kind}" for kind in ("passed", "failed", "skipped") if kind in outcomes
        )
        path, _, name = test.partition("::")
        yield f'| <a id="proof-{number}"></a>{number} | `{path}` `{name}` | {counts or "none"} | {recorded["date"]} |'


def page(results: Results | None = None) -> str:
    """The page with a fresh matrix in it."""
    if results is None:
        results = json.loads(RESULTS.read_text())
    numbers = {test: number for number, test in enumerate(tests(), 1)}
    parts: list[str] = []
    for matrix in matrices():
        parts += ["", f"### {matrix.title}", "", *table(matrix, results, numbers)]
        if reasons := absences(matrix):
            parts += ["", f"–: the fault cannot happen there ({reasons})."]
    parts += ["", "### The tests", "", *listing(results, numbers), ""]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n" + "\n".join(parts) + f"\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    """Record if asked to, and write the page."""
    if arguments[:1] == ["--record"]:
        known: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results = record([Path(name) for name in arguments[1:]], known)
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
