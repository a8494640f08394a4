"""Counts the places that spell out the fields of an entry: functions, classes, SQL statements and Lua functions.

    python -m tools.fields            how many, and which

A place that names most of an entry's fields has to be changed when a field is added. Names are counted as words, so
that ``due_us``, ``due`` and ``%(due)s`` are one field.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "penstock" / "queue"
FIELDS = (
    "id", "queue", "payload", "codec", "type", "seq", "priority", "created", "due", "first_due", "attempt",
    "generation", "labels", "headers", "unique", "expires", "node", "error",
)  # fmt: skip
MOST = 9  # of them make a place: half


def fields_in(text: str) -> set[str]:
    """The fields that a text names."""
    words = {word.removesuffix("_us").removesuffix("s") for word in re.findall(r"[a-z_]+", text.lower())}
    return {field for field in FIELDS if field in words or field.removesuffix("s") in words}


def places(path: Path) -> Iterator[tuple[str, str]]:
    """The parts of a file, by name."""
    text = path.read_text()
    if path.suffix == ".py":
        lines = text.splitlines()
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, "\n".join(lines[node.lineno - 1 : node.end_lineno])
            elif isinstance(node, ast.ClassDef):
                own = [inner for inner in node.body if isinstance(inner, ast.AnnAssign)]
                yield node.name, "\n".join(ast.unparse(inner) for inner in own)
    elif path.suffix == ".sql":
        parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
        yield from zip(parts[1::2], parts[2::2], strict=True)
    else:
        parts = re.split(r"^(?:local )?function ([\w.:]+)", text, flags=re.MULTILINE)
        yield from zip(parts[1::2], parts[2::2], strict=True)


def main() -> None:
    """Print every place."""
    total = 0
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql"), *SOURCE.rglob("*.lua")]):
        for name, text in places(path):
            named = fields_in(text)
            if len(named) >= MOST:
                total += 1
                print(f"{len(named):3}  {path.relative_to(SOURCE)}: {name}")
    print(f"{total} places")


if __name__ == "__main__":
    main()
