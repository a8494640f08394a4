"""`penstock workers`: who works on a store."""

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from penstock import open_queues
from penstock.cli.app import app
from penstock.clock import SECOND, from_micros
from penstock.queue.protocol import DocumentWrite
from penstock.queue.worker.presence import Serving, WorkerRecord
from penstock.testing import FakeClock


def test_workers_are_listed_alive_and_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with open_queues(url) as store:
        done = CliRunner().invoke(app, ["workers", "--url", url])
        assert (done.exit_code, "No worker runs" in done.output) == (0, True)
        serving = (Serving("mails", False, 1, 4), Serving("customer.", True, 0, 2))
        for owner, pid, age in (("web-1/7-a", 7, 0), ("web-2/8-b", 8, 3600)):
            record = WorkerRecord(owner, owner[:5], pid, "1.0", store.now() - 2 * 3600 * SECOND, False, serving)
            with open_queues(url, clock=FakeClock(from_micros(store.now() - age * SECOND))) as earlier:
                earlier.driver.write([DocumentWrite(f"penstock.worker.{pid}", msgspec.json.encode(record))])
    done = CliRunner().invoke(app, ["workers", "--url", url])
    assert done.exit_code == 0
    lines = [line.split() for line in done.output.splitlines() if line.strip().startswith("web")]
    assert [line[:4] for line in lines] == [["web-1", "7", "alive", "1/6"], ["web-2", "8", "lost", "1/6"]]
    assert "mails 1/4, customer.* 0/2" in done.output
    shown = msgspec.json.decode(CliRunner().invoke(app, ["workers", "--url", url, "--json"]).stdout)
    assert [(one["state"], one["slots"], len(one["serving"])) for one in shown] == [("alive", 6, 2), ("lost", 6, 2)]
