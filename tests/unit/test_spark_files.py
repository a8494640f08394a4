"""The files of an import, as far as they can be seen without Spark."""

import bz2
import json
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.spark.lake.ingest_files import gone, look, visible


def test_what_is_hidden_from_spark_is_hidden_here(tmp_path: Path) -> None:
    names = ["a.csv", "b.CSV.csv", "_c.csv", ".d.csv", "_e=1/f.csv", "_g/h.csv", "i/j.csv", "k.csv._COPYING_", "l.txt"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n")
    found = look(str(tmp_path), None)
    assert (found.form, found.header) == ("csv", ("x",))
    seen = [str(one.relative_to(tmp_path)) for one in visible(tmp_path, found.names)]
    assert sorted(seen) == ["_e=1/f.csv", "a.csv", "b.CSV.csv", "i/j.csv"]
    assert len(list(visible(tmp_path))) == 5, "and l.txt, if nobody said which"


def test_a_packed_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.bz2"
    path.write_bytes(bz2.compress(b'\xef\xbb\xbf"two\nlines",b\n1,2\n'))
    assert look(str(path), None).header == ("two\nlines", "b")
    path.write_bytes(b"not packed")
    with pytest.raises(BadInput, match=r"a\.csv\.bz2 cannot be read"):
        look(str(path), None)


def test_an_address_means_itself(tmp_path: Path) -> None:
    path = tmp_path / "a[1]{x,y}*?\\ #%"
    path.mkdir()
    assert look(str(path), "json").address == f"file://{tmp_path}/a\\[1\\]\\{{x\\,y\\}}\\*\\?\\\\ #%"


def checkpoint(folder: Path, batches: list[list[str]], *, ended: int, compact: bool = False) -> Path:
    """As Spark leaves it: what every batch was to read, and which ones have ended."""
    for kind in ("offsets", "commits", "sources/0"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    for number, paths in enumerate(batches):
        (folder / "offsets" / str(number)).write_text(f'v1\n{{"conf":{{}}}}\n{{"logOffset":{number}}}')
        own = [json.dumps({"path": f"file://{one}", "timestamp": 1, "batchId": number}) for one in paths]
        lines += own
        last = compact and number == len(batches) - 1
        name = f"{number}.compact" if last else str(number)
        (folder / "sources" / "0" / name).write_text("\n".join(["v1", *(lines if last else own)]))
        if number < ended:
            (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


@pytest.mark.parametrize("compact", [False, True])
def test_files_that_are_gone(tmp_path: Path, compact: bool) -> None:
    there = tmp_path / "th#re"
    there.touch()
    batches = [["/gone/before"], [str(there).replace("#", "%23"), "/gone/a%20b"]]
    assert gone(tmp_path / "none") is None
    found = gone(checkpoint(tmp_path / "check", batches, ended=1, compact=compact))
    assert found is not None
    assert (found.batch, found.paths) == (1, ("/gone/a b",)), "what was taken before may be gone"
    assert gone(checkpoint(tmp_path / "check", batches, ended=2, compact=compact)) is None
