"""What is asked of the server: at the opening whether it can be trusted with queues, and everything for ``doctor``."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any

import msgspec

from penstock.errors import CannotOpen, StoreForbidden
from penstock.queue.drivers.redis.connection import Server
from penstock.queue.protocol import Finding

OLDEST = (7, 0)
_ASKED = ("maxmemory-policy", "appendonly", "appendfsync", "maxmemory")


class Settings(msgspec.Struct):
    """The server's settings that matter, or None where this user may not read them."""

    version: str | None = None
    eviction: str | None = None
    appendonly: str | None = None
    appendfsync: str | None = None
    used: int | None = None
    most: int | None = None
    role: str | None = None

    @property
    def keeps(self) -> bool | None:
        """Whether what it acknowledges survives a power cut; None: cannot be read."""
        if self.appendonly == "no":
            return False
        if self.appendfsync is not None and self.appendfsync != "always":
            return False
        return True if self.appendonly == "yes" and self.appendfsync == "always" else None


def read_settings(server: Server) -> Settings:
    """Ask for what may be asked; a limited user may be allowed INFO, CONFIG, both or neither."""
    info = _allowed(lambda: _info(server)) or {}
    config = _allowed(lambda: _config(server)) or {}
    used, most = info.get("used_memory"), config.get("maxmemory") or info.get("maxmemory")
    appending = {"1": "yes", "0": "no"}.get(info.get("aof_enabled", ""))
    return Settings(
        version=info.get("redis_version"),
        eviction=config.get("maxmemory-policy") or info.get("maxmemory_policy"),
        appendonly=config.get("appendonly") or appending,
        appendfsync=config.get("appendfsync"),
        used=None if used is None else int(used),
        most=None if most is None else int(most),
        role=info.get("role"),
    )


def check_settings(settings: Settings, name: str, *, durable: bool) -> None:
    """Raise for a server that contradicts what was asked for; what cannot be read is left to ``doctor``."""
    if settings.version is not None and _numbers(settings.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CannotOpen(
            f"{name} is version {settings.version}.", hint=f"Redis {oldest} or newer is needed, or Valkey."
        )
    if settings.eviction is not None and settings.eviction != "noeviction":
        raise CannotOpen(
            f"{name} deletes entries when its memory is full: maxmemory-policy is {settings.eviction}.",
            hint="Set maxmemory-policy noeviction there, or use a server of its own for queues.",
        )
    if durable and settings.keeps is False:
        raise CannotOpen(
            f"{name} may lose what it has acknowledged: appendonly is {settings.appendonly or 'unknown'}, "
            f"appendfsync is {settings.appendfsync or 'unknown'}.",
            hint="Set appendonly yes and appendfsync always there, or accept that with ?durability=fast in the URL.",
        )


def findings(settings: Settings, server: Server, ready: int | None, *, durable: bool) -> list[Finding]:
    """What doctor says about the server."""
    return [
        _version(settings),
        _eviction(settings),
        _persistence(settings, durable),
        _memory(settings),
        _ready(ready),
        _transport(server),
    ]


def limits_finding(miscounts: list[str]) -> Finding:
    """Whether what is counted as in flight per label is what claims hold."""
    if miscounts:
        names = ", ".join(miscounts)
        return Finding(
            "bad", "limits", f"counted wrongly in {names}: take the limit away (in_flight={{}}), set it again"
        )
    return Finding("good", "limits", "what is counted as in flight per label is what claims hold")


def _ready(ready: int | None) -> Finding:
    if ready is None:
        return Finding("unknown", "ready", "the function library was never loaded on its primary")
    return Finding("good", "ready", f"{ready:,} entries are due and wait for a worker")


def _version(settings: Settings) -> Finding:
    if settings.version is None:
        return Finding("unknown", "server", "this user may not ask for the version (INFO)")
    if settings.role == "slave":
        return Finding("bad", "server", f"version {settings.version}, a read-only replica")
    return Finding("good", "server", f"version {settings.version}")


def _eviction(settings: Settings) -> Finding:
    if settings.eviction is None:
        return Finding("unknown", "eviction", "this user may not read maxmemory-policy; it has to be noeviction")
    if settings.eviction != "noeviction":
        return Finding(
            "bad", "eviction", f"maxmemory-policy is {settings.eviction}: entries vanish when memory is full; "
            "set noeviction",
        )  # fmt: skip
    return Finding("good", "eviction", "maxmemory-policy is noeviction: when memory is full, puts are refused")


def _persistence(settings: Settings, durable: bool) -> Finding:
    said = f"appendonly {settings.appendonly or 'unknown'}, appendfsync {settings.appendfsync or 'unknown'}"
    if not durable:
        return Finding("warning", "durability", f"fast: acknowledged puts can be lost in a power cut ({said})")
    if settings.keeps is None:
        return Finding("unknown", "durability", f"this user may not read all settings ({said})")
    if not settings.keeps:
        return Finding("bad", "durability", f"acknowledged puts can be lost ({said})")
    return Finding(
        "good", "durability", f"an acknowledged put survives a power cut of this server ({said}); not its failover"
    )


def _memory(settings: Settings) -> Finding:
    if settings.used is None:
        return Finding("unknown", "memory", "this user may not ask for it (INFO)")
    used = f"{settings.used / 2**20:,.1f} MiB in use"
    if not settings.most:
        return Finding("warning", "memory", f"{used}, no maxmemory: the system may kill the server when it is full")
    share = settings.used / settings.most
    return Finding("good" if share < 0.8 else "warning", "memory", f"{used}, {share:.0%} of maxmemory")


def _transport(server: Server) -> Finding:
    address = server.address
    if address.tls:
        return Finding("good", "transport", "TLS")
    if _is_loopback(address.host):
        return Finding("good", "transport", "loopback, no TLS")
    return Finding(
        "warning", "transport", f"plain text to {address.host}: passwords and payloads can be read; rediss://"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _allowed(ask: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    """What may be asked, or None where this user may not."""
    try:
        return ask()
    except StoreForbidden:
        return None


def _info(server: Server) -> dict[str, str]:
    lines = server.ask("INFO").decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _config(server: Server) -> dict[str, str]:
    flat: list[Any] = []
    for name in _ASKED:
        flat += server.ask("CONFIG", "GET", name)
    texts = [text.decode() for text in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))
