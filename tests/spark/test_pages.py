"""What the pages under docs/spark/ show runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "spark").glob("*.md"))
BLOCK = re.compile(r"```py\n(.*?)```", re.DOTALL)


def test_there_are_four_pages() -> None:
    assert [page.stem for page in PAGES] == ["deploy", "lake", "source-and-sink", "topologies"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, spark: Any, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # functions of a program are sent to workers by value
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for text in blocks:
        exec(compile(text.replace("/var/lib/shop", str(tmp_path)), str(page), "exec"), names)
    assert names.get("spark", spark) is spark
