"""The files of an import, as far as they can be seen without Spark."""

import bz2
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import BadInput
from penstock.spark.lake.ingest_batches import FileBatch, ImportState
from penstock.spark.lake.ingest_files import Files, Form, look
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


def numbers(state: ImportState, folder: Path, files_at_once: int = 2) -> Iterator[FileBatch]:
    """Batches of the JSON lines in a folder, each ended before the next one begins."""
    for batch in state.batches(source_at(str(folder), None), (".jsonl",), files_at_once):
        yield batch
        state.end(batch.number, len(batch.files), len(batch.missing))


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    for name in ("a.jsonl", "day=1/b.jsonl", "c.jsonl", "_hidden.jsonl", "other.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path / "in"


def test_every_file_is_in_one_batch(inbox: Path, tmp_path: Path) -> None:
    state = ImportState(tmp_path / "state")
    batches = [(batch.number, batch.files) for batch in numbers(state, inbox)]
    assert batches == [(0, ("a.jsonl", "c.jsonl")), (1, ("day=1/b.jsonl",))]
    assert list(numbers(state, inbox)) == []
    (inbox / "0.jsonl").touch()
    later = ImportState(tmp_path / "state")
    assert [(batch.number, batch.files) for batch in numbers(later, inbox)] == [(2, ("0.jsonl",))]
    assert later.sums() == (4, 0)


def test_a_batch_that_was_broken_off_comes_first_with_its_files(inbox: Path, tmp_path: Path) -> None:
    state = ImportState(tmp_path / "state")
    next(iter(numbers(state, inbox)))  # planned, and never ended
    (inbox / "0.jsonl").touch()
    (inbox / "c.jsonl").unlink()
    assert state.sums() == (0, 0)
    again = list(numbers(ImportState(tmp_path / "state"), inbox))
    assert again == [FileBatch(0, ("a.jsonl",), ("c.jsonl",)), FileBatch(1, ("0.jsonl", "day=1/b.jsonl"))]
    assert list(numbers(state, inbox)) == []
    assert state.sums() == (3, 1)
