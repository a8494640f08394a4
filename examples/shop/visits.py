"""A reader of the shop's visits, one member of the group `offers`: `python visits.py LOGS_URL FILE`.

It shares the partitions with the other members, thinks a little about every visit, and writes down what it has
committed.
"""

import sys
import time
from pathlib import Path

import msgspec

import penstock


class Visit(msgspec.Struct):
    """Somebody looked at something."""

    customer: str
    number: int


def main(url: str, file: str) -> None:
    """Read until killed."""
    with (
        penstock.open_logs(url) as logs,
        logs.subscribe("visits", "offers", Visit) as tail,
        Path(file).open("a") as out,
    ):
        while True:
            records = tail.read(10, timeout="1s")
            time.sleep(0.002 * len(records))
            tail.commit()
            for record in records:
                out.write(f"{record.value.number}\n")
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
