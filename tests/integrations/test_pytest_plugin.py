"""The pytest plugin: found by pytest itself, prefixed, and free for who does not use it."""

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

CLASHING = """
import pytest

@pytest.fixture
def clock():
    return "mine"

@pytest.fixture
def queues():
    return "mine"

def test_names_of_the_program_stay_its_own(clock, queues, penstock_queues):
    assert clock == queues == "mine"
    assert penstock_queues.counts() == []
"""
UNDER_ANYIO = """
import pytest

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_async_fixtures_work_in_any_loop(anyio_backend, penstock_aio_queues, penstock_aio_logs):
    mails = await penstock_aio_queues.queue("mails", str)
    await mails.put("x")
    await penstock_aio_logs.create("visits")
    assert await penstock_aio_logs.exists("visits")
"""


def pytest_in(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_the_examples_tests_pass_without_a_word_in_a_conftest(tmp_path: Path) -> None:
    example = ROOT / "examples" / "integrations" / "test_shop.py"
    (tmp_path / "test_shop.py").write_text(example.read_text())
    (tmp_path / "test_clash.py").write_text(CLASHING)
    (tmp_path / "test_anyio.py").write_text(UNDER_ANYIO)
    said = pytest_in(tmp_path)
    assert "5 passed" in said, said


def test_the_plugin_imports_no_store() -> None:
    code = """
import sys
import pytest
import penstock.integrations.pytest_plugin
print(sorted(name for name in sys.modules if name.startswith("penstock.") or name in ("msgspec", "anyio", "sqlite3")))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    allowed = ["errors", "importing", "integrations", "integrations.pytest_plugin", "version"]
    assert said.strip() == str([f"penstock.{name}" for name in allowed])
