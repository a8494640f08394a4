"""Wheel and sdist: built from the sources, complete, and at work in an environment that has nothing else."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
# Run where only the wheel and its requirements are.
WORK = """
import pathlib, sys
import penstock
from penstock import Worker

assert pathlib.Path(penstock.__file__).is_relative_to(sys.prefix), penstock.__file__
with penstock.open_queues(f"sqlite:///{sys.argv[1]}/shop.db") as store:
    mails, sent = store.queue("mails", str), []
    mails.add_handler(sent.append)
    mails.put("dear ann")
    assert Worker(store).drain() == 1
    assert sent == ["dear ann"]
with penstock.open_logs(f"file://{sys.argv[1]}/logs") as logs:
    logs.create("visits")
    logs.log("visits", str).append("ann")
    assert logs.tailer("visits", "readers", str).read()[0].value == "ann"
try:
    penstock.open_queues("redis://127.0.0.1")
except penstock.errors.MissingExtra as missing:
    print(missing)
"""


def build(where: Path, *kinds: str, source: Path = ROOT) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(where)]
    for kind in kinds:
        command += ["-t", kind]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    [made] = list(where.iterdir())
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("sdist"), "sdist")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    names = set(contents(wheel))
    for path in SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert f"penstock/{path.relative_to(SOURCE).as_posix()}" in names
    assert {"penstock/py.typed", "pyspark_penstock.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "examples/", "tools/"))]


def test_the_wheel_names_its_command_plugin_and_extras(wheel: Path) -> None:
    files = contents(wheel)
    points = next(text for name, text in files.items() if name.endswith("entry_points.txt")).decode()
    assert "penstock = penstock.cli:main" in points
    assert "[pytest11]\npenstock = penstock.integrations.pytest_plugin" in points
    metadata = next(text for name, text in files.items() if name.endswith("METADATA")).decode()
    assert "Requires-Python: >=3.11" in metadata
    assert "Provides-Extra: django" in metadata


def test_a_wheel_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    [folder] = (tmp_path / "sources").iterdir()
    again = build(tmp_path / "again", "wheel", source=folder)
    assert contents(again) == contents(wheel)


@pytest.mark.timeout(300)
def test_the_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    check_installed(sys.executable, wheel, tmp_path)


def others() -> list[str]:
    """Interpreters of this machine that Penstock is made for, besides the one that runs the tests."""
    found: dict[str, str] = {}
    for minor in range(11, 16):
        name = f"3.{minor}"
        paths = [shutil.which(f"python{name}"), *sorted(Path.home().glob(f".pyenv/versions/{name}.*/bin/python"))]
        for path in filter(None, paths):
            if minor != sys.version_info[1]:
                found[name] = str(path)
    return list(found.values())


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", others())
def test_the_wheel_works_with_every_python_that_is_here(python: str, wheel: Path, tmp_path: Path) -> None:
    check_installed(python, wheel, tmp_path)


def check_installed(python: str, wheel: Path, folder: Path) -> None:
    """Install the wheel and its pinned requirements, and nothing else; then work with it."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    own = folder / "venv" / "bin"
    pip = [own / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--require-hashes", "-r", ROOT / "requirements" / "cli.txt"], check=True)
    subprocess.run([*pip, "install", "--no-deps", wheel], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert 'pip install "penstock[redis]"' in run(own / "python", "-c", WORK, folder)
    assert "No broken requirements" in run(own / "python", "-m", "pip", "check")
    assert "mails" in run(own / "penstock", "queue", "list", "--url", f"sqlite:///{folder}/shop.db")
    said = run(own / "penstock", "doctor", "--install", "--json")
    assert '"extra cli"' in said
    assert "not installed (redis is missing)" in said
