"""The README: its quick start runs as printed, and is short."""

import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, run, steps

README = ROOT / "README.md"


def quick_start() -> str:
    return next(text for kind, _, _, text in steps(README) if kind == "python")


def test_the_quick_start_runs_as_printed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(quick_start())
    ended = subprocess.run(
        [sys.executable, "-W", "error", "shop.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "mail to ann@example.org\n"
    assert ended.stderr == ""


def test_the_quick_start_is_at_most_15_lines() -> None:
    assert len([line for line in quick_start().splitlines() if line.strip()]) <= 15


def test_the_module_without_its_last_lines_is_a_worker_application(tmp_path: Path) -> None:
    lines = quick_start().rstrip().splitlines()
    (tmp_path / "shop.py").write_text("\n".join(lines[:-3]) + "\n")
    subprocess.run(
        [sys.executable, "-c", "import shop; shop.mails.put(shop.Mail(to='ann@example.org'))"], cwd=tmp_path, check=True
    )
    ended = subprocess.run(
        [sys.executable, "-m", "penstock", "worker", "shop:store", "--drain"],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert ended.stdout == "mail to ann@example.org\n"


def test_everything_in_the_readme_runs(tmp_path: Path) -> None:
    out = run(README, tmp_path)
    assert "mail to ann@example.org" in out


def test_the_minute_rule_is_on_top_of_the_architecture() -> None:
    rule = "Done once → `queue/`. Read many times → `log/`."
    assert rule in (ROOT / "docs" / "architecture.md").read_text().split("## ")[0]


def test_the_picture_is_there() -> None:
    assert "docs/images/overview.png" in README.read_text().split("## ")[0]
    assert (ROOT / "docs" / "images" / "overview.png").exists()
