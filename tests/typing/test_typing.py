"""The public API as the type checker sees it: right uses pass, wrong ones are found."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def mypy(*files: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy with the project's own settings."""
    command = [sys.executable, "-m", "mypy", f"--cache-dir={cache}", "--follow-imports=silent", *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(300)
def test_right_uses_pass_and_wrong_ones_are_found(tmp_path: Path) -> None:
    result = mypy(HERE / "uses.py", cache=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_the_wrong_uses_are_errors_without_their_marks(tmp_path: Path) -> None:
    """The marks of the other test really stand for errors: without them mypy names every one of those lines."""
    lines = (HERE / "uses.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# type: ignore[" in line}
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(line.partition("  # type: ignore[")[0] for line in lines))
    result = mypy(bare, cache=tmp_path / "cache")
    named = {int(line.split(":")[1]) for line in result.stdout.splitlines() if ": error:" in line}
    assert named == marked, result.stdout
    assert len(marked) > 15


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "penstock" / "py.typed").exists()
