"""House rules that no linter knows."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
from tests import store_urls
from tests.contract.log import places as log_places

import penstock
from penstock import PenstockError, errors
from penstock.opening import LOG_STORES, QUEUE_STORES

SOURCE = Path(penstock.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
BANNED_NAMES = {"utils", "common", "helpers", "core", "models", "types", "base", "manager"}


def lines(pattern: str, *, without: tuple[str, ...] = ()) -> list[str]:
    """Where a pattern occurs in the code."""
    found = []
    for path in MODULES:
        name = path.relative_to(SOURCE).as_posix()
        if name in without:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{name}:{number}: {line.strip()}")
    return found


def test_all_time_goes_through_the_clock() -> None:
    assert lines(r"\btime\.time(_ns)?\(", without=("clock.py",)) == []
    assert lines(r"utcnow|datetime\.now\(\)|datetime\.today\(|fromtimestamp\(|date\.today\(") == []


def test_nothing_runs_what_it_finds_in_a_payload() -> None:
    banned = r"^\s*(import|from)\s+(pickle|marshal|shelve|dill|cloudpickle|jsonpickle)\b|yaml\.load\(|\beval\(|\bexec\("
    assert lines(banned) == []


def test_all_randomness_is_injected() -> None:
    assert lines(r"\brandom\.(random|randint|choice|shuffle|uniform|sample)\(") == []


def test_no_environment_outside_config_and_command_line() -> None:
    found = lines(r"os\.environ|os\.getenv")
    # Spark takes its Python and its Java from there.
    assert [one for one in found if not one.startswith(("cli/", "spark/session.py", "spark/daemon.py"))] == []


def test_nothing_is_printed_outside_the_command_line() -> None:
    assert [one for one in lines(r"^\s*print\(") if not one.startswith("cli/")] == []


# One class is what users hold of a queue; its methods stay together.
LONG_CLASSES = {"queue/queue.py": 600}


def length(path: Path) -> int:
    """The lines of a module without those of docstrings below its own, which are the reference."""
    text = path.read_text()
    return len(text.splitlines()) - sum(docstring_lines(node) for node in ast.walk(ast.parse(text)))


def docstring_lines(node: ast.AST) -> int:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or ast.get_docstring(node) is None:
        return 0
    docstring = node.body[0]
    return (docstring.end_lineno or 0) - docstring.lineno + 1


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_modules_say_what_they_are_for_and_stay_small(path: Path) -> None:
    text = path.read_text()
    assert path.stem not in BANNED_NAMES
    doc = ast.get_docstring(ast.parse(text))
    assert doc, "a module's first line says what it is for"
    assert doc.splitlines()[0].endswith((".", ":", ";")), doc.splitlines()[0]
    most = LONG_CLASSES.get(path.relative_to(SOURCE).as_posix(), 500)
    assert length(path) <= most, f"a module has at most {most} lines: cut it along what it does"


# What a framework reads the parameters of: a command with its options, an interface with its routes.
LONG_FUNCTIONS = {"cli/serve.py:serve", "cli/worker.py:worker", "service/protocol.py:protocol"}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{path.relative_to(SOURCE).as_posix()}:{function.name}"
        for path in MODULES
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and (function.end_lineno or 0) - function.lineno + 1 - docstring_lines(function) > 60
    }
    assert long <= LONG_FUNCTIONS, "a function has at most 60 lines: name its steps"


def test_most_modules_are_short() -> None:
    lengths = [length(path) for path in MODULES]
    assert sum(length < 200 for length in lengths) > len(lengths) / 2


def test_there_is_always_a_store_in_memory() -> None:
    assert "memory" in QUEUE_STORES
    assert "memory" in LOG_STORES
    assert "memory" in store_urls.STORES
    assert "memory" in log_places.STORES


def test_durations_and_times_of_the_public_interface_are_not_bare_numbers() -> None:
    bare = []
    for package in ("penstock", "penstock.log", "penstock.breaker", "penstock.stream", "penstock.client"):
        module = importlib.import_module(package)
        for name, thing in ((name, getattr(module, name)) for name in module.__all__):
            members = vars(thing).items() if inspect.isclass(thing) else [(name, thing)]
            for member, function in members:
                if inspect.isfunction(function) and (member == name or not member.startswith("_")):
                    ends = ("_ms", "_millis", "_seconds", "_us")
                    bare += [f"{name}.{member}({each})" for each in inspect.signature(function).parameters
                             if each.endswith(ends)]  # fmt: skip
    assert bare == []


def test_errors_say_what_to_do_next() -> None:
    """Some have no next step that we could know."""
    tree = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PenstockError)}
    hints = [
        any(keyword.arg == "hint" for keyword in node.exc.keywords)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and getattr(node.exc.func, "id", "") in tree
    ]
    assert len(hints) > 500
    assert sum(hints) > len(hints) * 0.95


def test_sql_is_in_its_files() -> None:
    python = lines(r"[\"' (](SELECT|INSERT INTO|DELETE FROM|UPDATE [a-z{]\w+ SET) ")
    allowed = ("adopt/", "queue/drivers/sql/")  # other systems' tables; opening, checking and migrating ours
    assert [line for line in python if not line.startswith(allowed)] == []
    named = sum(path.read_text().count("-- name:") for path in SOURCE.rglob("*.sql"))
    assert named > 10 * len(python)


def test_packages_list_their_modules() -> None:
    for package in (path for path in MODULES if path.name == "__init__.py" and path.parent != SOURCE):
        doc = ast.get_docstring(ast.parse(package.read_text())) or ""
        members = {path.stem for path in package.parent.glob("*.py")} - {"__init__", "__main__"}
        members = {name for name in members if not name.startswith("_")}
        missing = {name for name in members if name not in doc}
        assert not missing, f"{package.relative_to(SOURCE)} does not name {sorted(missing)}"


def test_what_is_public_is_exported_and_there() -> None:
    assert sorted(penstock.__all__) == penstock.__all__
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None


# Words that mean in the code what they mean in English, or in Python, or that are names of databases.
ORDINARY = {
    "add", "address", "append", "arguments", "batch", "bounded", "bytes", "cancel", "change", "changes",
    "check", "config", "connection", "count", "counts", "create", "define", "delete", "encoded", "end",
    "error", "errors", "export", "extend", "find", "folder", "forget", "free", "index", "init", "json",
    "kafka", "known", "last", "list", "load", "make", "map", "memory", "moment", "mysql", "new", "options",
    "path", "pause", "plan", "policy", "prepare", "prune", "range", "reading", "refuse", "remove", "report",
    "reset", "resume", "rows", "schema", "seconds", "session", "set", "settings", "show", "sqlite", "stage",
    "status", "table", "text", "there", "unlock", "view", "watch",
}  # fmt: skip
IN_MORE_MODULES_THAN = 3


def test_words_that_carry_the_code_are_in_the_glossary() -> None:
    """Words of modules, classes and public functions; what many modules are named by, a reader has to look up."""
    modules: dict[str, set[Path]] = {}
    for path in MODULES:
        tree = ast.parse(path.read_text())
        names = [path.stem]
        names += [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        names += [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for name in names:
            if not name.startswith("_") or name == "__init__":
                for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
                    modules.setdefault(word.lower(), set()).add(path)
    glossary = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text().lower()
    many = {word for word, paths in modules.items() if len(paths) > IN_MORE_MODULES_THAN}
    missing = {word for word in many - ORDINARY if not re.search(rf"\b{word}(e?s)?\b", glossary)}
    assert not missing, f"neither in docs/glossary.md nor an ordinary word: {sorted(missing)}"


# Names that say of a value only that it is there; `record`, `partition` or `findings` say what it is.
EMPTY_NAMES = {"one", "found", "made", "told", "kept", "there"}


def test_local_names_say_what_they_hold() -> None:
    places = []
    for path in MODULES:
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Name(id=local, ctx=ast.Store()) | ast.arg(arg=local) if local in EMPTY_NAMES:
                    places.append(f"{name}:{node.lineno}: {local}")
    assert places == []


def test_what_users_hold_of_a_store_is_small() -> None:
    with penstock.open_queues("memory://") as store:
        public = {name for name in dir(store) if not name.startswith("_")}
    assert len(public) <= 23, f"the driver is the place for the rest: {sorted(public)}"


def test_importing_touches_nothing(tmp_path: Path) -> None:
    """No I/O and no driver at import."""
    import subprocess
    import sys

    drivers = {"psycopg", "redis", "kazoo", "pyspark", "fastapi", "sqlite3"}
    code = f"import sys, penstock; print(sorted(set(sys.modules) & {drivers}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
    assert list(tmp_path.iterdir()) == []
