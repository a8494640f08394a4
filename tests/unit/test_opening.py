"""From URLs to stores: every mistake is a typed error that names the thing, the cause and the next step."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from penstock import PenstockError, open_logs, open_queues, opening
from penstock.errors import BadInput, CannotOpen, MissingExtra, UnknownScheme
from penstock.location import read_url
from penstock.testing import FakeClock


def test_every_part_is_read() -> None:
    place = read_url("SQLITE:////var/lib/My%20Shop/q.db?space=bus_events&durability=fast&busy_timeout=5")
    assert (place.scheme, place.path, place.space) == ("sqlite", "//var/lib/My Shop/q.db", "bus_events")
    assert (place.durability, place.options) == ("fast", {"busy_timeout": "5"})
    assert read_url("memory://").space == "penstock"
    assert read_url("memory://").durability == "durable"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://bob:s3cret@host/db", "postgresql://bob:***@host/db"),
        ("redis://:s3cret@host", "redis://:***@host"),
        ("mysql://bob:p%40ss@host/db", "mysql://bob:***@host/db"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
    ],
)
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert read_url(url).masked == shown


def test_no_error_shows_the_password() -> None:
    for url in ("nosuch://bob:s3cret@host/db", "memory://bob:s3cret@host?oops=1"):
        with pytest.raises(PenstockError) as caught:
            open_queues(url)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "shop.db", "sqlite:shop.db", None, 5, Path("shop.db"), "sqlite://[", "://x"])
def test_what_is_no_url(url: object) -> None:
    with pytest.raises((BadInput, UnknownScheme)) as caught:
        open_queues(url)  # type: ignore[arg-type]
    assert caught.value.hint


@pytest.mark.parametrize(
    ("url", "meant"),
    [("logs", "file://logs"), ("file:logs", "file://logs"), ("/var/logs", "file:///var/logs"), ("", "file://logs"),
     (None, "file://logs"), ("C:logs", "file://logs")],
)  # fmt: skip
def test_a_folder_that_is_no_url_of_a_log_store_becomes_one_in_the_hint(url: object, meant: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_logs(url)  # type: ignore[arg-type]
    assert caught.value.hint == f'Write it as "{meant}" or "memory://".'


def test_a_slip_in_an_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"option 'durabilty' in .* is unknown. Did you mean durability\? Known"):
        open_queues(f"sqlite:///{tmp_path}/shop.db?durabilty=fast")


def test_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(UnknownScheme, match=r"mongodb:// in mongodb://host.*memory://.*sqlite://") as caught:
        open_queues("mongodb://host")
    assert isinstance(caught.value, CannotOpen)


def test_a_store_of_the_other_kind_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownScheme, match=r"That is a log store: penstock.open_logs\(\)"):
        open_queues(f"file://{tmp_path}")
    with pytest.raises(UnknownScheme, match=r"That is a queue store: penstock.open_queues\(\)"):
        open_logs(f"sqlite:///{tmp_path}/q.db")


def test_a_slip_in_a_scheme_is_told() -> None:
    with pytest.raises(UnknownScheme, match=r"Did you mean sqlite://\?"):
        open_queues("sqllite:///shop.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://shop.db", "sqlite:///:memory:"])
def test_urls_that_name_no_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="memory://"):
        open_queues(url)
    assert list(tmp_path.iterdir()) == []


def test_a_new_store_is_told_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for _ in range(2):
        open_queues(f"sqlite:///{tmp_path}/shop.db").close()
    assert [one.getMessage() for one in caplog.records] == [
        f"created a new store: space penstock in {tmp_path}/shop.db"
    ]


def test_a_missing_driver_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    place = opening._Place("penstock.queue.stores.nowhere", "no_such_driver", "redis")
    monkeypatch.setitem(opening.QUEUE_STORES, "redis", place)
    with pytest.raises(MissingExtra, match="no_such_driver") as caught:
        open_queues("redis://localhost")
    assert 'pip install "penstock[redis]"' in caught.value.hint
    assert isinstance(caught.value, ImportError)


def test_a_store_of_a_third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        value = "their_store"

    opened = []
    module = ModuleType("their_store")
    module.open_driver = lambda location, clock: opened.append((location.scheme, clock)) or "their driver"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_store", module)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [Point] if name == "theirs" else [])
    clock = FakeClock()
    assert open_queues("theirs://x", clock=clock).driver == "their driver"
    assert opened == [("theirs", clock)]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("durability=maybe", "durability 'maybe'"),
        ("durability=", "durability ''"),
        ("space=No-Space", "space 'No-Space'"),
        ("spcae=x", "option 'spcae'"),
        ("payload_limit=many", "payload_limit"),
        ("payload_limit=0", "payload_limit"),
        ("payload_limit=-5", "payload_limit"),
    ],
)
@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/shop.db"], ids=["memory", "sqlite"])
def test_bad_options(tmp_path: Path, url: str, query: str, named: str) -> None:
    with pytest.raises(BadInput, match=named) as caught:
        open_queues(f"{url.format(tmp_path)}?{query}")
    assert caught.value.hint
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_an_unknown_option_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"Known options: busy_timeout, durability, payload_limit, space"):
        open_queues(f"sqlite:///{tmp_path}/shop.db?oops=1")


@pytest.mark.parametrize("bad", ["no node!", "", "a/b"])
def test_a_bad_node_name(bad: str, tmp_path: Path) -> None:
    for url in ("memory://", f"sqlite:///{tmp_path}/shop.db"):
        with pytest.raises(BadInput, match="node name"):
            open_queues(url, node=bad)
    assert list(tmp_path.iterdir()) == [], "nothing was opened"


def test_the_handle_tells_where_it_is() -> None:
    with open_queues("memory://", node="here") as store:
        assert store.node == "here"
        assert "memory://" in repr(store)
        assert "penstock" in repr(store)
        assert "mails" in repr(store.queue("mails"))


def test_the_default_node_is_a_good_name() -> None:
    from penstock.names import check_name

    with open_queues("memory://") as store:
        assert check_name(store.node, kind="node") == store.node
        assert len(store.node) <= 45


def test_a_memory_store_without_a_name_is_shared_with_nobody() -> None:
    with open_queues("memory://") as one, open_queues("memory://") as other:
        one.queue("q").put("x")
        assert other.queue("q").find() == []


def test_a_named_memory_store_is_shared_until_the_last_handle_closes() -> None:
    with open_queues("memory://shared-name") as one:
        with open_queues("memory://shared-name") as other:
            other.queue("q").put("x")
        assert len(one.queue("q").find()) == 1
    with open_queues("memory://shared-name") as fresh:
        assert fresh.queue("q").find() == []


def test_declaring_queues_and_handlers_touches_nothing(tmp_path: Path) -> None:
    """No file, no driver, no thread."""
    code = """
import sys, threading
import penstock
queues = penstock.Queues()
mails = queues.queue("mails", str, fifo=True)
mails.schedule("s", "x", every="1h")
@mails.handler(retry=penstock.Retry(attempts=2), executor=None)
def send(mail: str) -> None: ...
drivers = {"psycopg", "redis", "kazoo", "pymysql", "sqlite3", "sqlalchemy"}
assert not set(sys.modules) & drivers, set(sys.modules) & drivers
assert threading.active_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["memory://", "sqlite:///shop.db"])
def test_a_put_imports_nothing_more(url: str, tmp_path: Path) -> None:
    """A child that is forked while another thread imports something would wait for that thread forever."""
    code = f"""
import sys, penstock
store = penstock.open_queues({url!r})
before = set(sys.modules)
store.queue("q", int).put(1)
store.family("q").counts()
print(sorted(name for name in set(sys.modules) - before if name.startswith("penstock")))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
