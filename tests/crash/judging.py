"""The verdict over a folder: what its processes recorded against what its store holds."""

from pathlib import Path
from typing import Any

from tests.crash import dumps
from tests.crash.checker import Dump, check
from tests.crash.recorder import read_events
from tests.crash.scenes import url_of


def dump_of(folder: Path) -> Dump:
    """The rows of the folder's store."""
    return dumps.read(url_of(folder))


def judge(folder: Path, **options: Any) -> Dump:
    """Fail with every broken promise; the rows that were looked at."""
    dump = dump_of(folder)
    broken = check(read_events(folder), dump, **options)
    assert broken == [], "\n".join(str(one) for one in broken[:50])
    return dump
