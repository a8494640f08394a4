"""Every page of the documentation does what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, run, steps

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if steps(page))
WRITTEN = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://)(?P<file>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


def test_the_pages_with_code_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"quickstart.md", "transactions.md", "failures.md", "schedules.md", "order.md", "testing.md"} <= names


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: its headings as Python-Markdown makes ids of them, and ids written as HTML."""
    text = FENCED.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings)
    ids = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}
    return ids | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(FENCED.sub("", page.read_text())):
        target = page.parent / link["file"] if link["file"] else page
        assert target.exists(), f"{page.name} links to {link['file']}"
        if link["anchor"]:
            assert link["anchor"] in anchors(target), f"{page.name} links to {link['file']}#{link['anchor']}"


def test_headings_and_ids_are_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('# What `put` does: a [story](x.md)\n\n```sh\n# a comment\n```\n\n<a id="proof-1"></a>\n')
    assert anchors(page) == {"what-put-does-a-story", "proof-1"}


def test_the_quick_start_is_short_and_has_all_three_concepts() -> None:
    text = (ROOT / "docs" / "quickstart.md").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 60
    assert all(name in text for name in ("open_queues", "open_logs", "Topology"))


def test_the_programs_of_the_quick_start_run_each_by_itself(tmp_path: Path) -> None:
    """In one folder, one after the other, as a reader runs them from files."""
    for kind, title, _, text in steps(ROOT / "docs" / "quickstart.md"):
        if kind == "python":
            path = tmp_path / (title or "program.py")
            path.write_text(text)
            subprocess.run([sys.executable, str(path)], cwd=tmp_path, check=True, timeout=50)


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in navigation
