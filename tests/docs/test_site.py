"""The site: it builds strictly, its links and anchors lead somewhere, and no page asks another host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="mkdocs is not installed here: make docs")

ROOT = Path(__file__).parent.parent.parent


class Page(HTMLParser):
    """What a page refers to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, links and what is loaded."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("img", "script", "iframe", "source") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") != "canonical" and "href" in given:
            self.loads.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning of the build is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_of_the_documentation_is_in_it(site: Path, pages: dict[Path, Page]) -> None:
    for source in (ROOT / "docs").rglob("*.md"):
        name = source.relative_to(ROOT / "docs").with_suffix("")
        target = site / (name.parent if name.name == "index" else name) / "index.html"
        assert target in pages, source


def test_links_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if parts.path.startswith("/"):
                there = site / unquote(parts.path).lstrip("/")
            if there.is_dir():
                there /= "index.html"
            if not there.exists():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                broken.append(f"{path.relative_to(site)}: {link} has no such anchor")
    assert broken == []


def test_nothing_is_asked_of_other_hosts(site: Path, pages: dict[Path, Page]) -> None:
    foreign = [
        f"{path.relative_to(site)}: {load}"
        for path, page in pages.items()
        for load in page.loads
        if urlsplit(load).netloc
    ]
    assert foreign == []
