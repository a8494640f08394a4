"""The tests that need no server, and those of the frameworks, with every other Python that is on this machine."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.packaging.test_build import others

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("postgres", "mysql", "redis", "zookeeper", "kafka", "pgbouncer")
FOLDERS = ("tests/unit", "tests/contract", "tests/cli", "tests/integrations")


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("python", others())
def test_the_tests_pass_with_every_python_that_is_here(python: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    environment["PYTHON"] = python
    subprocess.run([ROOT / "tools/setup.sh", tmp_path / "venv", "dev"], check=True, env=environment, cwd=ROOT)
    without = " and ".join(f"not {name}" for name in SERVERS)
    command = [
        tmp_path / "venv/bin/python", "-m", "pytest", *FOLDERS, "-q", "-n", "2", "-m", "not faults", "-k", without,
        "-p", "no:cacheprovider",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
