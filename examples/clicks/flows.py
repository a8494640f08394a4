"""Web clicks become sessions, sessions become fraud alerts: a topology of three computations."""

import msgspec

from penstock import Record
from penstock.stream import (
    Computation,
    Context,
    Session,
    Topology,
    Tumbling,
    Value,
    Windowed,
    windowed_count,
    windowed_fold,
)


class Click(msgspec.Struct):
    """Somebody looked at a page."""

    user: str
    page: str
    address: str


class Visit(msgspec.Struct):
    """What is known of a session while it goes on."""

    clicks: int = 0
    pages: list[str] = []


class Alert(msgspec.Struct):
    """A session that no person could have made."""

    user: str
    clicks: int
    seconds: float
    strikes: int


def one_more(visit: dict, click: Click) -> dict:
    """A session after another click."""
    pages = visit["pages"] if click.page in visit["pages"] else [*visit["pages"], click.page]
    return {"clicks": visit["clicks"] + 1, "pages": pages}


def together(one: dict, other: dict) -> dict:
    """Two sessions that turn out to be one."""
    return {"clicks": one["clicks"] + other["clicks"], "pages": sorted({*one["pages"], *other["pages"]})}


class Fraud(Computation):
    """Sessions with more clicks per second than a person can make; the second one of a user is an alert."""

    name = "fraud"
    inputs = "sessions"
    outputs = "alerts"
    states = (Value("strikes", int, 0),)
    gap = 60.0  # seconds of silence that end a session and do not belong to it

    def process(self, record: Record[Windowed], ctx: Context) -> None:
        """One session that has ended."""
        session = record.value
        seconds = (session.end - session.start) / 1e6 - self.gap
        clicks = session.value["clicks"]
        if clicks < 30 or clicks < 2 * seconds:
            return
        strikes = ctx.value("strikes").get() + 1
        ctx.value("strikes").set(strikes)
        if strikes >= 2:
            ctx.produce("alerts", Alert(session.key, clicks, round(seconds, 1), strikes))


def topology() -> Topology:
    """All of it."""
    made = Topology("clicks", partitions=4)
    made.stream("clicks", Click, out_of_order="20s")
    made.stream("sessions", Windowed).stream("alerts", Alert).stream("per-minute", Windowed)
    made.add(
        windowed_fold(
            "sessions", "clicks", "sessions", Session("60s"), initial={"clicks": 0, "pages": []},
            fold=one_more, merge=together,
        ),
        concurrency=2,
    )  # fmt: skip
    made.add(Fraud)
    made.add(windowed_count("per-minute", "clicks", "per-minute", Tumbling("1m")))
    return made
