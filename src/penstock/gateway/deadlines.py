"""The HTTP client of replays: it keeps to deadlines, and connects only to addresses that were checked.

The client's own limits are per read and write, so a backend that sends a byte now and then would hold a request for
ever. Here every read and write also gets no more than what is left of the exchange.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpcore2
import httpx2

from penstock.gateway.addresses import checked_addresses

_left = threading.local()  # until: when this thread's exchange has to be over; sent: whether a byte has left


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What this thread exchanges inside has to be over in time."""
    _left.until, _left.sent = time.monotonic() + seconds, False
    try:
        yield
    finally:
        _left.until = None


def was_sent() -> bool:
    """Whether a byte of this thread's last exchange was given to the network."""
    return bool(getattr(_left, "sent", False))


def _bounded(timeout: float | None, error: type[Exception]) -> float | None:
    until = getattr(_left, "until", None)
    if until is None:
        return timeout
    left = float(until - time.monotonic())
    if left <= 0:
        raise error("the exchange took too long")
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _bounded(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        bounded = _bounded(timeout, httpcore2.WriteTimeout)
        _left.sent = True
        self._inner.write(buffer, bounded)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        bounded = _bounded(timeout, httpcore2.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, bounded))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore2.NetworkBackend):
    def __init__(self, inner: httpcore2.NetworkBackend, *, private: bool) -> None:
        self._inner = inner
        self._private = private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first address that answers; the name stays what the Host header and TLS are about."""
        addresses = checked_addresses(host, port, private=self._private)
        for number, address in enumerate(addresses, start=1):
            others = len(addresses) - number
            bounded = _bounded(timeout, httpcore2.ConnectTimeout)
            # One that does not answer must leave time for the others.
            share = bounded if bounded is None else bounded / (others + 1)
            try:
                return _Stream(self._inner.connect_tcp(address, port, share, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if not others:
                    raise
        raise httpcore2.ConnectError(f"{host} has no address")

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


def bounded_client(connections: int, *, private: bool = False, verify: ssl.SSLContext | bool = True) -> httpx2.Client:
    """A client that follows no redirects, knows no proxies of the environment, and keeps to deadlines.

    Names lead it to private networks only if ``private``; ``verify`` may be a TLS context that knows an own authority.
    """
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    transport = httpx2.HTTPTransport(trust_env=False, limits=limits, verify=verify)
    pool = transport._pool  # noqa: SLF001 - the client offers no other way to its reads and writes
    pool._network_backend = _Backend(pool._network_backend, private=private)  # noqa: SLF001
    # A cookie that a backend sets for one sender must not reach another.
    no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx2.Client(transport=transport, trust_env=False, follow_redirects=False, cookies=no_cookies)
