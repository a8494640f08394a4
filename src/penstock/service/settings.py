"""What a service serves and how strict it is."""

from __future__ import annotations

import ipaddress
import math
import re
from pathlib import Path

import msgspec

from penstock.clock import duration
from penstock.errors import BadInput
from penstock.queue.entry import check_lease

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+/?")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:_-]+")


COUNTS = (
    "body_bytes", "head_bytes", "connections", "page", "longest_page", "page_bytes", "waiting_claims",
    "waiting_claims_per_key", "streams_per_key",
)  # fmt: skip
DEADLINES = ("head_seconds", "body_seconds", "idle_seconds", "answer_seconds")


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one service process.

    Without ``keys`` every client may do everything; such a service listens on the loopback interface only.
    """

    queues: str
    logs: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    keys: Path | None = None
    topologies: tuple[str, ...] = ()
    lag_log: str | None = None  # where lag samples go, for the history pipeline
    routes: Path | None = None  # of queued requests; without, none are taken in
    splitting: Path | None = None  # which of their queues are spread over several
    deliver: bool = True  # whether this process also sends them on
    lease: str = "60s"  # if this process is killed, how long until another one sends its requests
    unrouted_for: str = "24h"  # how long requests without a route in this process wait for a process that has one
    circuit_prefix: str = "/playground/server/queuecircuitbreaker/circuit"
    redisques: str | None = None  # where redisques' HTTP interface is served, such as /queuing; without, nowhere
    cors_origins: tuple[str, ...] = ()
    body_bytes: int = 2 * 1024 * 1024
    body_seconds: float = 30.0
    head_seconds: float = 10.0
    head_bytes: int = 32 * 1024
    idle_seconds: float = 5.0  # between two requests of a connection, and for the rest of a refused body
    answer_seconds: float = 60.0  # for an answer to be taken
    connections: int = 512
    page: int = 100
    longest_page: int = 1000
    page_bytes: int = 4 * 1024 * 1024  # of payloads and what comes with them; a page holds at least one entry
    waiting_claims: int = 200
    waiting_claims_per_key: int = 50
    streams_per_key: int = 64
    openapi: bool = True
    openapi_key: bool = False  # whether the OpenAPI is shown only to those with a key
    metrics: bool = True
    dashboard: bool = True  # the pages for people, at /
    is_guarded: bool = False  # whether an outer application decides about access

    def __post_init__(self) -> None:
        """Refuse settings that are unsafe or cannot work."""
        if not 0 <= self.port <= 65535:
            raise BadInput(f"port {self.port} does not exist.", hint="Use 1 to 65535, or 0 for a free one.")
        if self.keys is None and not self.is_guarded and not is_loopback(self.host):
            raise BadInput(
                f"{self.host} can be reached from outside, but no API keys are configured.",
                hint="Make one with `penstock key new`, then start with --keys FILE; or listen on 127.0.0.1.",
            )
        if self.openapi_key and self.keys is None:
            raise BadInput(
                "the OpenAPI is to be shown to those with a key only, but no API keys are configured.",
                hint="Start with --keys FILE, or with --no-openapi to hide it.",
            )
        check_lease(self.lease)
        duration(self.unrouted_for, name="unrouted_for")
        if not _PATH.fullmatch(self.circuit_prefix) or self.circuit_prefix.startswith("/v1"):
            raise BadInput(
                f"circuits cannot be served under {self.circuit_prefix!r}.",
                hint="Use a path of its own, such as /queuecircuitbreaker/circuit.",
            )
        if self.redisques is not None:
            _check_redisques(self.redisques, self.circuit_prefix)
        if "*" in self.cors_origins:
            raise BadInput("CORS for every origin is not offered.", hint='List the origins: "https://shop.example".')
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise BadInput(f"{origin!r} is not an origin.", hint='Write it as "https://shop.example".')
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)} lets nothing through.", hint="Use 1 or more.")
        for name in DEADLINES:
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(f"{name}={getattr(self, name)} is not a deadline.", hint="Use seconds, more than 0.")


def _check_redisques(prefix: str, circuit_prefix: str) -> None:
    is_taken = prefix.startswith("/v1") or f"{circuit_prefix.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/")
    if not _PATH.fullmatch(prefix) or is_taken:
        raise BadInput(
            f"redisques' interface cannot be served under {prefix!r}.", hint="Use a path of its own, such as /queuing."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
