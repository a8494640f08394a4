"""Compares the seed checklists with the tests that claim to prove their lines.

    python tools/seed_coverage.py --report   prints the uncovered lines, exit code 0
    python tools/seed_coverage.py --strict   the same, exit code 1 when an active line is uncovered

A mark that names a line which does not exist is an error either way.
"""

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

SEEDS = Path(__file__).resolve().parent.parent / "tests" / "seeds"


def marks(source: str) -> Iterator[tuple[str, int]]:
    """Yields the checklist lines named by `pytest.mark.seed(...)`, with their line numbers."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="seed", value=ast.Attribute(attr="mark")), args=arguments):
                for argument in arguments:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        yield argument.value, argument.lineno


def main() -> int:
    """Prints what is uncovered and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--report", action="store_true", help="never fail for uncovered lines (default)")
    mode.add_argument("--strict", action="store_true", help="fail when an active line is uncovered")
    strict = parser.parse_args().strict

    sections = tomllib.loads((SEEDS / "checklists.toml").read_text("utf-8"))
    known = {line for section in sections.values() for line in section["lines"]}
    covered: set[str] = set()
    unknown = False
    for path in sorted(SEEDS.rglob("*.py")):
        for line, number in marks(path.read_text("utf-8")):
            covered.add(line)
            if line not in known:
                unknown = True
                print(f"{path.name}:{number}: no checklist has a line {line!r}")

    total = missing = 0
    for section in sections.values():
        if not section["active"]:
            continue
        uncovered = {line: text for line, text in section["lines"].items() if line not in covered}
        total += len(section["lines"])
        missing += len(uncovered)
        if uncovered:
            print(f"Not covered of {section['title']}:")
        for line, text in uncovered.items():
            print(f"  {line:<6} {text}")
    waiting = ", ".join(name for name, section in sections.items() if not section["active"])
    print(
        f"seed checklists: {total - missing} of {total} active lines covered"
        + (f" (not active yet: {waiting})" if waiting else "")
    )
    return int(unknown or (strict and missing > 0))


if __name__ == "__main__":
    sys.exit(main())
