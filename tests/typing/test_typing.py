"""The public API as the type checkers see it: right uses pass, wrong ones are found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = "  # type: ignore["
FILES = {"uses.py": 15, "mistakes.py": 28}  # and how many wrong uses each has at least


def mypy(*files: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy with the project's own settings."""
    command = [sys.executable, "-m", "mypy", f"--cache-dir={cache}", "--follow-imports=silent", *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def without_marks(name: str, folder: Path) -> tuple[Path, set[int]]:
    """A file whose wrong uses are not marked any more, and their lines."""
    lines = (HERE / name).read_text().splitlines()
    bare = folder / name
    bare.write_text("\n".join(line.partition(MARK)[0] for line in lines))
    return bare, {number for number, line in enumerate(lines, 1) if MARK in line}


@pytest.mark.timeout(300)
def test_right_uses_pass_and_wrong_ones_are_found(tmp_path: Path) -> None:
    result = mypy(*(HERE / name for name in FILES), cache=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_the_wrong_uses_are_errors_without_their_marks(tmp_path: Path) -> None:
    """The marks of the other test really stand for errors: without them mypy names every one of those lines."""
    bare = {name: without_marks(name, tmp_path) for name in FILES}
    result = mypy(*(file for file, _ in bare.values()), cache=tmp_path / "cache")
    errors = [line.split(":")[:2] for line in result.stdout.splitlines() if ": error:" in line]
    for name, (file, marked) in bare.items():
        assert {int(number) for path, number in errors if Path(path).name == file.name} == marked, result.stdout
        assert len(marked) >= FILES[name]


@pytest.mark.timeout(300)
def test_pyright_finds_the_same_mistakes(tmp_path: Path) -> None:
    bare, marked = without_marks("mistakes.py", tmp_path)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(bare)]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    found = json.loads(said)["generalDiagnostics"]
    named = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert named == marked, "\n".join(f"{one['range']['start']['line'] + 1}: {one['message']}" for one in found)


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "penstock" / "py.typed").exists()
