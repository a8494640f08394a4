"""Every page of the documentation does what it says."""

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, run, steps

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if steps(page))
LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path)


def test_the_pages_with_code_are_found() -> None:
    names = {page.name for page in PAGES}
    assert {"quickstart.md", "transactions.md", "failures.md", "schedules.md", "order.md", "testing.md"} <= names


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in navigation
