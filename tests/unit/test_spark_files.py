"""The files of an import, as far as they can be seen without Spark."""

import bz2
import json
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.spark.lake.ingest_files import Files, Form, gone, look
from penstock.spark.lake.ingest_source import LocalSource, is_elsewhere, path_of_url, source_at


def seen_at(path: Path, form: Form | None = None) -> Files:
    return look(LocalSource(path), form)


def test_where_a_source_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one for one in ("/a", "a/b", "file:///a", "FILE:/a", "hdfs://n/a", "s3a://b") if is_elsewhere(one)] == [
        "hdfs://n/a", "s3a://b",
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c:" / "d").mkdir(parents=True)
    assert source_at("c:/d", None).shown == f"{tmp_path}/c:/d", "a folder that is there is a folder"
    assert source_at(f"file://{tmp_path}", None).shown == str(tmp_path)
    with pytest.raises(BadInput, match="only be seen with a session"):
        source_at("hdfs://n/a", None)
    with pytest.raises(BadInput, match="there is no nowhere"):
        source_at("nowhere", None)
    assert path_of_url("file:///a/b%20c") == "/a/b c"
    assert path_of_url("hdfs://n/a/b%20c") == "hdfs://n/a/b c"


def test_what_is_hidden_from_spark_is_hidden_here(tmp_path: Path) -> None:
    names = ["a.csv", "b.CSV.csv", "_c.csv", ".d.csv", "_e=1/f.csv", "_g/h.csv", "i/j.csv", "k.csv._COPYING_", "l.txt"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n")
    found = seen_at(tmp_path)
    assert (found.form, found.header) == ("csv", ("x",))
    assert found.names == "*{.csv,.csv.gz,.csv.bz2}"
    source = LocalSource(tmp_path)
    assert sorted(source.visible(found.endings)) == ["_e=1/f.csv", "a.csv", "b.CSV.csv", "i/j.csv"]
    assert len(list(source.visible())) == 5, "and l.txt, if nobody said which"


def test_a_packed_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.bz2"
    path.write_bytes(bz2.compress(b'\xef\xbb\xbf"two\nlines",b\n1,2\n'))
    assert seen_at(path).header == ("two\nlines", "b")
    path.write_bytes(b"not packed")
    with pytest.raises(BadInput, match=r"a\.csv\.bz2 cannot be read"):
        seen_at(path)


def test_an_address_means_itself(tmp_path: Path) -> None:
    path = tmp_path / "a[1]{x,y}*?\\ #%"
    path.mkdir()
    assert seen_at(path, "json").address == f"file://{tmp_path}/a\\[1\\]\\{{x\\,y\\}}\\*\\?\\\\ #%"


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
