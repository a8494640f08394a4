"""The matrix of guarantees says what was recorded of tests that are there, and counts nothing else as proven."""

import ast
import json
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tools import guarantees
from tools.guarantees import Fault, Proof

REPORT = """<testsuites><testsuite timestamp="2026-03-02T08:00:00">
<testcase classname="{module}" name="{name}[sqlite-1]"/>
<testcase classname="{module}" name="{name}[redis-1]"><failure message="lost"/></testcase>
<testcase classname="{module}" name="{name}[mysql-1]"><skipped message="not installed"/></testcase>
<testcase classname="tests.unit.test_clock" name="test_that_proves_nothing_here"/>
</testsuite></testsuites>"""


def names_of(path: Path) -> set[str]:
    """The tests of a file as pytest names them."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


def test_the_page_is_up_to_date() -> None:
    assert guarantees.page() == guarantees.PAGE.read_text(), "run: python -m tools.guarantees"


@pytest.mark.parametrize("test", guarantees.tests())
def test_a_test_that_is_named_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in names_of(ROOT / path)


def test_only_tests_that_are_named_are_recorded() -> None:
    assert set(json.loads(guarantees.RESULTS.read_text())) <= set(guarantees.tests())


def test_operations_and_stores_are_those_of_their_matrix() -> None:
    for matrix in guarantees.matrices():
        for fault in matrix.faults:
            assert set(fault.absent) <= set(matrix.stores)
            assert set(fault.operations) <= set(matrix.operations)
            for proof in fault.proofs:
                assert set(proof.operations) <= set(matrix.operations), proof
                assert set(proof.stores) <= set(matrix.stores), proof


def test_what_passed_is_proven_and_nothing_else(tmp_path: Path) -> None:
    test = guarantees.tests()[0]
    path, _, name = test.partition("::")
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(module=path.removesuffix(".py").replace("/", "."), name=name))
    results = guarantees.record([report], {"tests/gone.py::test_gone": {"date": "2025-01-01", "cases": {"": "passed"}}})
    assert results == {
        test: {"date": "2026-03-02", "cases": {"sqlite-1": "passed", "redis-1": "failed", "mysql-1": "skipped"}}
    }
    fault = Fault("a fault", (Proof(("put",), test, "", ()),), {"zookeeper": "no reason"})
    cells = {
        store: guarantees.cell(fault, "put", store, results, {test: 7})
        for store in ("sqlite", "redis", "mysql", "postgres", "zookeeper")
    }
    assert cells == {
        "sqlite": "[7](#proof-7)",
        "redis": "**failed**",
        "mysql": "not run",
        "postgres": "not tested",
        "zookeeper": "–",
    }
    assert guarantees.cell(fault, "reap", "sqlite", results, {test: 7}) == "not tested"
    assert guarantees.cell(fault, "put", "sqlite", {}, {test: 7}) == "not run"


def test_a_proof_by_one_case_says_nothing_of_another() -> None:
    results = {"t": {"date": "", "cases": {"redis-cut_replies": "passed", "redis-cut_requests": "failed"}}}
    fault = Fault("a fault", (Proof(("put",), "t", "cut_replies", ()),), {})
    assert guarantees.cell(fault, "put", "redis", results, {"t": 1}) == "[1](#proof-1)"
