"""The walks of the architecture page are those that real calls take, and what it names is there."""

import re
from pathlib import Path

import pytest
from tests.docs.pages import ROOT
from tools import walk

PAGE = (ROOT / "docs" / "architecture.md").read_text()
SOURCE = ROOT / "src" / "penstock"
STEP = re.compile(
    r"^\|(?: \*\*\w+\*\*)? +\| `(?P<function>[\w.]+)` \| (?:`(?P<module>[\w/]+\.py)`|[\w ]+) \|", re.MULTILINE
)


def steps(title: str) -> list[tuple[str, str | None]]:
    """Function and module of each step of a walk."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [(step["function"], step["module"]) for step in STEP.finditer(section)]


@pytest.mark.parametrize(
    ("title", "make", "url", "least"),
    [
        ("The life of an entry", walk.work, "sqlite:///{}/walk.db", 20),
        ("The life of a record in a stream", walk.record, "file://{}/logs?durability=fast", 12),
    ],
)
def test_a_walk_is_the_one_that_is_taken(title: str, make: walk.Walk, url: str, least: int, tmp_path: Path) -> None:
    taken = walk.traced(url.format(tmp_path), make).by_file()
    anywhere = {name for names in taken.values() for name in names}
    written = steps(title)
    assert len(written) > least
    for function, module in written:
        assert function in (anywhere if module is None else taken.get(module, ())), f"{function} in {module}"


def test_the_files_and_functions_of_the_verbs_are_there() -> None:
    table = PAGE.partition("## Where a verb is\n")[2].partition("\n\nSQL")[0]
    named = re.findall(r"`([\w/]+\.(?:py|lua))`(?:: `(\w+)`)?", table)
    assert len(named) == 21
    for path, function in named:
        text = (SOURCE / path).read_text()
        assert not function or re.search(rf"^(def|local function) {function}\(", text, re.MULTILINE), path
