"""`penstock changes`: who changed what by hand."""

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from penstock import open_queues
from penstock.cli.app import app


def test_changes_are_listed_the_newest_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with open_queues(url) as store:
        store.queue("mails", str).put("x")
        store.queue("bills", str).put("x")
    nothing = CliRunner().invoke(app, ["changes", "--url", url])
    assert (nothing.exit_code, "Nobody has changed anything" in nothing.output) == (0, True)
    for queue in ("mails", "bills"):
        locked = CliRunner().invoke(app, ["queue", "lock", queue, "--url", url, "--reason", "a deploy"])
        assert locked.exit_code == 0, locked.output
    listed = CliRunner().invoke(app, ["changes", "--url", url, "--json"])
    changes = msgspec.json.decode(listed.stdout)
    assert [change["target"] for change in changes] == ["bills", "mails"]
    assert {"at", "by", "did", "before", "after", "why"} < changes[0].keys()
    chosen = CliRunner().invoke(app, ["changes", "--url", url, "--target", "mails"])
    assert "mails" in chosen.output
    assert "bills" not in chosen.output
    newest = CliRunner().invoke(app, ["changes", "--url", url, "--limit", "1", "--json"])
    assert [change["target"] for change in msgspec.json.decode(newest.stdout)] == ["bills"]
