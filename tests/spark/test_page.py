"""What docs/spark.md shows works as it stands there."""

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"```py\n(.*?)```", re.DOTALL)


def test_the_page(spark: Any, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    blocks = BLOCK.findall(PAGE.read_text())
    for text in blocks:
        compile(text, str(PAGE), "exec")
    exec(blocks[0].replace("/var/lib/shop", str(tmp_path)), names)
    [importing] = [text for text in blocks if "penstock.spark.lake.ingest" in text]
    exec(importing.replace("/var/lib/shop", str(tmp_path)), names)
    assert names["spark"] is spark
    assert {row["page"]: row["count"] for row in names["pages"].collect()} == {"/p0": 34, "/p1": 33, "/p2": 33}
