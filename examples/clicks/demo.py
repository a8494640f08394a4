"""Clicks at work: a runner is killed in the middle, another goes on, and the result is as if nothing had happened."""

import argparse
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from flows import Alert, Click, topology
from rich.console import Console
from visitors import clicks

import penstock
from penstock.stream import LocalRunner, Windowed

HERE = Path(__file__).resolve().parent
console = Console(highlight=False, markup=False)


def main() -> int:
    """Play the story, then check the sums."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, default=Path("demo-data") / f"clicks-{datetime.now():%Y%m%d-%H%M%S}")  # noqa: DTZ005
    options.add_argument("--run", metavar="URL", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.run:
        return run(given.run)
    given.data.mkdir(parents=True)
    url = f"file://{(given.data / 'logs').absolute()}"
    made = topology()
    console.print(made.draw("text"))
    with penstock.open_logs(url) as store:
        store.create("clicks", made.partitions)
        found = clicks()
        with store.appender("clicks", Click) as out:
            out.append_many(
                [click for _, _, click in found], keys=[user for user, _, _ in found],
                timestamps=[at for _, at, _ in found],
            )  # fmt: skip
        console.print(f"{len(found)} clicks of {len({user for user, _, _ in found})} visitors are in the log.")
        killed = die_in_the_middle(store, url)
        console.print(f"A runner was killed with {killed} clicks still unread. Another one goes on …")
        runner = LocalRunner(made, store).start()
        if not runner.drain("60s", final=True):
            console.print("\n".join(map(str, runner.status())))
            return 1
        return report(store, found)


def die_in_the_middle(store: penstock.LogStore, url: str) -> int:
    """Start a runner in a process of its own and kill it when it has done something."""
    child = subprocess.Popen([sys.executable, str(HERE / "demo.py"), "--run", url])  # noqa: S603 - this very file
    deadline = time.monotonic() + 30
    total = store.lag("clicks", "nobody").lag
    while store.lag("clicks", "sessions").lag > total * 3 // 4 and time.monotonic() < deadline:
        time.sleep(0.002)
    child.kill()
    child.wait()
    return store.lag("clicks", "sessions").lag


def run(url: str) -> int:
    """The runner that will be killed; small checkpoints, so that it can happen anywhere."""
    with penstock.open_logs(url) as store, LocalRunner(topology(), store, checkpoint_records=40, read=40):
        time.sleep(60)
    return 0


def report(store: penstock.LogStore, found: list[tuple[str, int, Click]]) -> int:
    """Show the alerts, and check that nothing is missing or twice."""
    sessions = [one.value for part in range(4) for one in store.log("sessions", Windowed).records(part)]
    alerts = [one.value for part in range(4) for one in store.log("alerts", Alert).records(part)]
    minutes = [one.value for part in range(4) for one in store.log("per-minute", Windowed).records(part)]
    for alert in sorted(alerts, key=lambda one: (one.user, one.strikes)):
        console.print(f"  {alert.user}: {alert.clicks} clicks in {alert.seconds} s, strike {alert.strikes}")
    counted = Counter[str]()
    for session in sessions:
        counted[session.key] += session.value["clicks"]
    good = [
        counted == Counter(user for user, _, _ in found),
        sum(one.value for one in minutes) == len(found),
        {alert.user for alert in alerts} == {user for user, _, _ in found if user.startswith("bot")},
        len(alerts) == len({(alert.user, alert.strikes) for alert in alerts}),
    ]
    console.print(f"{len(sessions)} sessions, {len(alerts)} alerts; every click is in one session: {all(good)}")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
