"""Where the files of an import are: on a disk of this host, or on any other file system that Spark knows."""

from __future__ import annotations

import bz2
import gzip
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote

from penstock.errors import BadInput
from penstock.spark.lake.filesystem import FileSystem, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKED: dict[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open}
MEANS_SOMETHING = re.compile(r"([\\{}\[\]*?,^])")  # to Spark, in a path
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_TAIL = 256  # bytes of the end of a file


class Source(ABC):
    """A file, or a folder of files, by names below it; the name of a single file is empty."""

    shown: str
    address: str  # for Spark, with pattern characters escaped
    is_file: bool
    is_local = False

    @abstractmethod
    def names(self) -> Iterator[str]:
        """All files below it, in order."""

    @abstractmethod
    def open(self, name: str) -> IO[bytes]:
        """The bytes of a file."""

    def path(self, name: str) -> str:
        """The path of a file, for messages."""
        return f"{self.shown}/{name}" if name else self.shown

    def address_of(self, name: str) -> str:
        """A file as Spark knows it."""
        return f"{self.address}/{_as_itself(name)}" if name else self.address

    def visible(self, endings: tuple[str, ...] | None = None) -> Iterator[str]:
        """The files that Spark reads: below a folder all but those that are hidden, or in a hidden folder."""
        for name in self.names():
            if name and any(is_hidden(part) for part in name.split("/")):
                continue
            if not name or endings is None or name.endswith(endings):
                yield name

    @contextmanager
    def unpacked(self, name: str) -> Iterator[IO[bytes]]:
        """The bytes of a file, or of what is packed in it."""
        opened = PACKED.get(PurePosixPath(self.path(name)).suffix)
        with self.open(name) as plain:
            if opened is None:
                yield plain
                return
            with opened(plain, "rb") as file:
                yield file


class LocalSource(Source):
    """Files on a disk of this host."""

    is_local = True

    def __init__(self, path: Path) -> None:
        """Raises if it does not exist."""
        if not path.exists():
            raise BadInput(f"there is no {path} (seen from {Path.cwd()}).", hint="Name a file or a folder.")
        self._path = path.absolute()
        self.shown = str(self._path)
        self.address = "file://" + _as_itself(self.shown)
        self.is_file = self._path.is_file()

    def names(self) -> Iterator[str]:
        """All files below it, in order."""
        if self.is_file:
            yield ""
            return
        for path in sorted(self._path.rglob("*")):
            if path.is_file():
                yield path.relative_to(self._path).as_posix()

    def open(self, name: str) -> IO[bytes]:
        """The bytes of a file."""
        return (self._path / name if name else self._path).open("rb")


class HadoopSource(Source):
    """Files on a file system that Hadoop knows."""

    def __init__(self, files: FileSystem) -> None:
        """Raises if it does not exist."""
        self._files = files
        self.shown = files.url
        scheme, host, path = _parts(files.url)
        self.address = scheme + host + _as_itself(path)
        if not files.exists(""):
            raise BadInput(f"there is no {files.url}.", hint="Name a file or a folder.")
        self.is_file = files.is_file("")

    def names(self) -> Iterator[str]:
        """All files below it, in order."""
        if self.is_file:
            yield ""
            return
        for file in self._files.files("", ""):
            yield file.path

    def open(self, name: str) -> IO[bytes]:
        """The bytes of a file."""
        return self._files.open(name)


def is_elsewhere(source: str) -> bool:
    """Whether this is the URL of a place that is not a disk of this host."""
    return bool(_SCHEME.match(source)) and local_path(source) is None and not Path(source).exists()


def source_at(text: str, spark: SparkSession | None) -> Source:
    """The source of a path or a URL. Spark reads a URL that is not on this host."""
    if not is_elsewhere(text):
        here = local_path(text) if text.lower().startswith("file:/") else None
        return LocalSource(here or Path(text))
    if spark is None:
        raise BadInput(f"what is at {text} can only be seen with a session.", hint="Pass spark= to prepare().")
    return HadoopSource(FileSystem(spark, text.rstrip("/")))


def path_of_url(address: str) -> str:
    """The readable path of a file that Spark names as a URL."""
    plain = unquote(address)
    here = local_path(plain)
    return plain if here is None else str(here)


def is_hidden(name: str) -> bool:
    """Whether Spark ignores a file: names for the writers' own use."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def tail_of(source: Source, name: str) -> bytes:
    """The end of a file, or of what is packed in it."""
    end = b""
    with source.unpacked(name) as file:
        if PurePosixPath(source.path(name)).suffix not in PACKED:
            size = file.seek(0, 2)
            file.seek(max(0, size - 2 * _TAIL))
            return file.read()
        while more := file.read(1 << 20):
            end = (end + more)[-2 * _TAIL :]
    return end


def is_open_to(tail: bytes, field: str) -> bool:
    """Whether a CSV field begins with a quote that is not closed up to this end of its file."""
    # Spark gives all line ends as one kind.
    raw = ('"' + field.replace('"', '""')).encode()[-_TAIL:]
    return tail.replace(b"\r\n", b"\n").endswith(raw.replace(b"\r\n", b"\n"))


def _as_itself(path: str) -> str:
    """A path in which no character is a pattern to Spark."""
    return MEANS_SOMETHING.sub(r"\\\1", path)


def _parts(url: str) -> tuple[str, str, str]:
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return "", "", url
    host, slash, path = rest.partition("/")
    return f"{scheme}://", host, slash + path
