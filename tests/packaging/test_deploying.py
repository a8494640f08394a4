"""The files for deployment, linted: neither Docker nor Kubernetes is run here."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = [
    manifest
    for name in ("penstock.yaml", "topology.yaml")
    for manifest in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    if manifest
]
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
UNIT = DEPLOY / "systemd" / "penstock-worker@.service"


def pods() -> list[tuple[str, dict[str, Any]]]:
    workloads = [one for one in MANIFESTS if "template" in one.get("spec", {})]
    return [(one["metadata"]["name"], one["spec"]["template"]["spec"]) for one in workloads]


def seconds(arguments: list[str]) -> int:
    """The grace time that a command line gives."""
    return int(arguments[arguments.index("--grace") + 1].rstrip("s"))


def commands() -> list[tuple[str, list[str]]]:
    found = [(name, [str(one) for one in pod["containers"][0]["args"]]) for name, pod in pods()]
    ours = {name: one for name, one in COMPOSE["services"].items() if "penstock" in one["image"]}
    return found + [(name, [str(word) for word in one["command"]]) for name, one in ours.items()]


@pytest.mark.parametrize(("name", "command"), commands())
def test_the_commands_have_the_options_they_are_given(name: str, command: list[str], capsys: Any) -> None:
    from typer.main import get_command

    from penstock.cli.app import app

    found: Any = get_command(app)
    words = [word for word in command if not word.startswith("-")]
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    known = {option for parameter in found.params for option in parameter.opts}
    assert {word for word in command if word.startswith("--")} <= known


@pytest.mark.parametrize(("name", "pod"), pods())
def test_pods_run_without_rights(name: str, pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_deployments_have_probes_on_a_port_of_theirs_and_time_to_end() -> None:
    for manifest in (one for one in MANIFESTS if one["kind"] == "Deployment"):
        pod = manifest["spec"]["template"]["spec"]
        [container] = pod["containers"]
        ports = {port["name"] for port in container["ports"]}
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert {probe["port"] for probe in probes.values()} <= ports
        assert [probes[name]["path"] for name in ("startup", "liveness", "readiness")] == ["/live", "/live", "/ready"]
        if "--grace" in container["args"]:
            assert pod["terminationGracePeriodSeconds"] >= seconds(container["args"]) + 10
        elif "lifecycle" in container:
            assert pod["terminationGracePeriodSeconds"] > container["lifecycle"]["preStop"]["sleep"]["seconds"] + 20


def test_selectors_find_their_pods_and_secrets_their_keys() -> None:
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in MANIFESTS if one["kind"] == "Deployment"]
    for one in MANIFESTS:
        selector = one.get("spec", {}).get("selector")
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= label.items() for label in labels), one["metadata"]["name"]
    secrets = {one["metadata"]["name"]: one["stringData"] for one in MANIFESTS if one["kind"] == "Secret"}
    for _, pod in pods():
        for variable in pod["containers"][0]["env"]:
            reference = variable["valueFrom"]["secretKeyRef"]
            assert reference["key"] in secrets[reference["name"]]


def test_the_image_is_small_and_not_roots() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert "slim" in last.splitlines()[0]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert 'ENTRYPOINT ["tini", "--", "penstock"]' in last
    assert "rm -rf /var/lib/apt/lists" in last
    assert "COPY . " not in DOCKERFILE
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE))
    for name in (word for line in copied for word in line.split()):
        assert (ROOT / name).exists()
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()


def test_compose_mounts_what_is_there_and_gives_workers_their_time() -> None:
    for name, service in COMPOSE["services"].items():
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / "docker" / source).exists(), mount
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
        for other in service.get("depends_on", ()):
            assert other in COMPOSE["services"]
    worker = COMPOSE["services"]["worker"]
    assert int(worker["stop_grace_period"].rstrip("s")) >= seconds(worker["command"]) + 10
    assert worker["read_only"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine declares no systemd-analyze")
def test_the_unit_is_one_and_is_hardened(tmp_path: Path) -> None:
    unit = tmp_path / "penstock-worker@.service"
    unit.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", "/bin/true"))
    named = tmp_path / "penstock-worker@shop.service"
    done = subprocess.run(["systemd-analyze", "verify", named], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rated = ["systemd-analyze", "security", "--offline=true", "--threshold=30", unit]
    done = subprocess.run(rated, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-300:]
    text = UNIT.read_text()
    timeout = re.search(r"TimeoutStopSec=(\d+)", text)
    grace = re.search(r"--grace (\d+)s", text)
    assert timeout is not None
    assert grace is not None
    assert int(timeout[1]) > int(grace[1]) + 10
