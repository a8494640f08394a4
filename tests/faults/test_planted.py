"""The judge is judged on servers too: what is planted has to be found, from the rows as their own drivers read them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.checker import check
from tests.crash.driver import Child
from tests.crash.judging import dump_of
from tests.crash.recorder import read_events
from tests.crash.scenes import Stage
from tests.faults import planted
from tests.faults.conftest import KINDS

from penstock.ids import new_nonce

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("bug", planted.BUGS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_found(
    kind: str, bug: str, servers: Callable[[str], object], tmp_path: Path, start: Callable[..., Child]
) -> None:
    url = servers(kind).url.partition("?")[0]  # type: ignore[attr-defined]
    (tmp_path / "url").write_text(f"{url}?space=s{new_nonce()}&durability=fast")
    stage = Stage(tmp_path, fake=False)
    stage.queue("jobs").put_many(range(2))
    stage.store.close()
    assert check(read_events(tmp_path), dump_of(tmp_path), drained=False) == []
    play, rule = planted.BUGS[bug]
    start(play, tmp_path, kind).wait()
    found = check(read_events(tmp_path), dump_of(tmp_path), drained=False)
    assert rule in {violation.rule for violation in found}, found
