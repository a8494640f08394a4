"""The file system of a lake, as Hadoop knows it: a local disk, HDFS, an object store; one set of calls for all."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import SEEK_CUR, SEEK_END, BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from penstock.errors import BadInput, CannotOpen, Conflict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")
_PATTERN = re.compile(r"[*?\[\]{}\\]")
CHUNK = 64 * 1024  # bytes that come from Java at a time
_JAVA = re.compile(r"^[\w.$]+(?:Exception|Error): ")


class FileSize(msgspec.Struct, frozen=True):
    """A file: its path below the root, and its size."""

    path: str
    bytes: int


def lake_url(place: str | Path) -> str:
    """A lake's place as a URL; a path without a scheme is a folder of this host."""
    text = str(place).rstrip("/")
    if not text:
        raise BadInput("the lake has no place.", hint="Name a folder or a URL, such as /data/lake or s3a://shop/lake.")
    if _PATTERN.search(text):
        raise BadInput(
            f"{text} has one of *?[]{{}}\\ in it, which Spark reads as a pattern.", hint="Name another place."
        )
    if _SCHEME.match(text):
        return text
    return f"file://{Path(os.path.abspath(text)).as_posix()}"


def local_path(url: str) -> Path | None:
    """The folder of a URL of this host, or None for one elsewhere."""
    scheme, colon, rest = url.partition(":")
    return Path("/" + rest.lstrip("/")) if colon and scheme.lower() == "file" else None


class FileSystem:
    """Files below one URL. Used on the driver; Spark's tasks write data by themselves."""

    def __init__(self, spark: SparkSession, url: str) -> None:
        """Raises ``CannotOpen`` for a scheme that this Spark has no file system for."""
        self.url = url
        jvm: Any = spark._jvm  # noqa: SLF001 - Spark has no public way to its file systems
        self._jvm = jvm
        with self.explained("cannot be used"):
            root = jvm.org.apache.hadoop.fs.Path(url)
            self._fs: Any = root.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
            self._prefix = f"{self._fs.makeQualified(root).toString()}/"

    def names(self, folder: str) -> list[str]:
        """What is in a folder, or nothing where there is no such folder."""
        with self.explained("cannot be listed"):
            path = self._path(folder)
            if not self._fs.exists(path):
                return []
            return [status.getPath().getName() for status in self._fs.listStatus(path)]

    def files(self, folder: str, suffix: str) -> list[FileSize]:
        """All files below a folder with a suffix."""
        files = []
        with self.explained("cannot be listed"):
            each = self._fs.listFiles(self._path(folder), True)
            while each.hasNext():
                status = each.next()
                path = status.getPath().toString()
                if path.endswith(suffix):
                    files.append(FileSize(path.removeprefix(self._prefix), status.getLen()))
        return sorted(files, key=lambda file: file.path)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder."""
        with self.explained("cannot be read"):
            return bool(self._fs.exists(self._path(name)))

    def is_file(self, name: str) -> bool:
        """Whether it is a file, and not a folder."""
        with self.explained("cannot be read"):
            return bool(self._fs.getFileStatus(self._path(name)).isFile())

    def open(self, name: str) -> IO[bytes]:
        """Open a file that may be large."""
        with self.explained("cannot be read"):
            path = self._path(name)
            return BufferedReader(_HadoopInput(self, self._fs.open(path), self._fs.getFileStatus(path).getLen()), CHUNK)

    def read(self, name: str) -> bytes:
        """Read a small file."""
        with self.explained("cannot be read"):
            stream = self._fs.open(self._path(name))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write_new(self, name: str, content: bytes) -> None:
        """Write a small file that must not exist yet; ``Conflict`` if it does."""
        path = self._path(name)
        with self.explained("cannot be written"):
            try:
                stream = self._fs.create(path, False)
            except Exception as error:
                if "AlreadyExists" in str(error):
                    raise Conflict(f"{self.url}/{name} is there already.", hint="Run it again.") from None
                raise
            try:
                stream.write(bytearray(content))
                stream.hsync()
            finally:
                stream.close()

    def delete(self, name: str) -> None:
        """Delete a file, or a folder with everything in it, if it exists."""
        with self.explained("cannot be deleted"):
            self._fs.delete(self._path(name), True)

    def modified_ms(self, name: str) -> int:
        """When a file or folder was last written, in milliseconds since 1970."""
        with self.explained("cannot be read"):
            return int(self._fs.getFileStatus(self._path(name)).getModificationTime())

    def make_durable(self, paths: list[str]) -> None:
        """Make files survive a power loss. File systems other than a local disk do that by themselves."""
        root = local_path(self.url)
        if root is None:
            return
        for path in {place for name in paths for place in (root / name, (root / name).parent)}:
            number = os.open(path, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs of this host away from a local lake. Elsewhere the commit detects them."""
        root = local_path(self.url)
        if root is None:
            yield
            return
        try:
            root.mkdir(parents=True, exist_ok=True)
            number = os.open(root / "_lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as cause:
            raise CannotOpen(f"{root} cannot hold a lake: {cause.strerror}.", hint="Name a folder.") from cause
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Conflict(f"another run works on {root}.", hint="Wait until it has ended.") from None
            yield
        finally:
            os.close(number)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.url}/{name}" if name else self.url)

    @contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Turn an error of Java's into one line."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            cause = str(error.java_exception.toString()).splitlines()[0]
            raise CannotOpen(
                f"{self.url} {what}: {_JAVA.sub('', cause)}.",
                hint="See that the place exists, that you may write there, and that Spark has the jar of its scheme.",
            ) from error


class _HadoopInput(RawIOBase):
    """A file of Hadoop as Python reads one."""

    def __init__(self, files: FileSystem, stream: Any, size: int) -> None:
        super().__init__()
        self._files = files
        self._stream = stream
        self._size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._files.explained("cannot be read"):
            data = bytes(self._stream.readNBytes(min(len(buffer), CHUNK)))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        with self._files.explained("cannot be read"):
            begin = {SEEK_CUR: self._stream.getPos, SEEK_END: lambda: self._size}.get(whence, int)()
            self._stream.seek(begin + offset)
        return int(begin + offset)

    def tell(self) -> int:
        return int(self._stream.getPos())

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
