"""The lowest versions that are declared, really installed: the service, stores, logs and frameworks work with them."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Run by the environment with the old versions; it has nothing but what the service needs.
WORK = """
import sys
sys.path.insert(0, sys.argv[1])
import httpx2
from tests.serving import Served

folder, keyless = sys.argv[2], {"Origin": "https://evil.example"}
served = Served(
    "--url", f"sqlite:///{folder}/q.db", "--logs", f"file://{folder}/logs", "--routes", f"{folder}/routes.json"
)
try:
    assert served.url, served.said
    with httpx2.Client(base_url=served.url) as client:
        put = client.post("/v1/queues/q/entries", json={"value": {"a": [1]}})
        assert put.status_code == 201, put.text
        assert client.get("/v1/queues/q/entries").json()["items"][0]["value"] == {"a": [1]}
        [entry] = client.post("/v1/queues/q/claims?wait=5", json={}).json()["items"]
        outcome = {"id": entry["id"], "token": entry["token"], "outcome": "done"}
        assert client.post("/v1/queues/q/outcomes", json={"outcomes": [outcome]}).json()["items"][0]["ok"]
        assert client.put("/v1/logs/log", json={}).status_code == 200
        assert client.post("/v1/logs/log/records", json={"records": [{"value": 1}]}).status_code == 201
        assert client.get("/v1/logs/log/records").json()["items"][0]["value"] == 1
        assert client.put("/v1/queues/q/locks/ann").status_code == 200
        assert client.delete("/v1/queues/q/locks/ann").status_code == 204
        assert client.put("/crm/1", headers={"x-queue": "a"}).status_code == 202
        assert client.get("/metrics").status_code == 200
        assert client.get("/openapi.json").json()["paths"]
        assert client.post("/v1/queues/q/entries", content=b'{"value": 1}').status_code == 422, "no content type"
        assert client.post("/v1/queues/q/entries", json={"value": 1}, headers=keyless).status_code == 403
        assert client.post("/v1/queues/q/entries", json={"wrong": 1}).status_code == 422
        assert client.get("/v1/queues/none").headers["content-type"] == "application/problem+json"
finally:
    said = served.close()
assert "Traceback" not in said, said
"""


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_the_service_works_with_the_lowest_versions_it_declares(tmp_path: Path) -> None:
    (tmp_path / "routes.json").write_text(json.dumps({"/crm/(.*)": "http://127.0.0.1:9/$1"}))
    python = environment_of("service", tmp_path)
    done = subprocess.run([python, "-c", WORK, ROOT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"Python {sys.version}: {done.stdout}{done.stderr}"


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_stores_and_logs_work_with_the_lowest_versions_of_their_drivers(tmp_path: Path) -> None:
    python = environment_of("drivers", tmp_path)
    queue = [f"tests/contract/queue/{verb}" for verb in ("put", "claim", "settle", "read")]
    log = [f"tests/contract/log/test_{topic}.py" for topic in ("appending", "reading", "committing", "transactions")]
    chosen = "postgres or mysql or redis or zookeeper or kafka or file"
    check_tests(python, *queue, *log, "-k", chosen)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_frameworks_work_in_the_lowest_versions_that_are_declared(tmp_path: Path) -> None:
    python = environment_of("frameworks", tmp_path)
    plugin = "tests/integrations/test_pytest_plugin.py"  # it starts pytest with plugins of its own
    streams = "ignore:Unclosed <MemoryObject:ResourceWarning"  # the test client of that Starlette leaves them open
    check_tests(python, "tests/integrations", f"--ignore={plugin}", "-W", streams)


def environment_of(group: str, folder: Path) -> Path:
    """The interpreter of a new environment with the lowest versions of one group of requirements."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    pins = ROOT / "requirements" / f"lowest-{group}.txt"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", pins], check=True)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    (packages / "penstock.pth").write_text(str(ROOT / "src"))
    return python


def check_tests(python: Path, *arguments: str) -> None:
    """Run tests of this repository in that environment."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not faults", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
