"""Who visits the pages: a caller with an API key, or anyone if the service has no keys.

A session is a random token in a cookie that scripts cannot read and other sites cannot send. Sessions live in this
process and end with it; a key that is taken away ends its sessions at once.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time

import msgspec
from fastapi import Request, Response

from penstock.service.keys import ANYBODY, ApiKey, Keys, Scope, hash_of

COOKIE = "penstock-session"
LIFETIME = 12 * 60 * 60.0  # seconds
MOST_SESSIONS = 1000


class Visitor(msgspec.Struct, frozen=True):
    """Who asks for a page, and the token that proves that a form came from one of our pages."""

    key: ApiKey
    token: str
    is_signed_in: bool = False

    def may(self, scope: Scope) -> bool:
        """Whether the key has a scope."""
        return self.key.may(scope)


class SignInNeeded(Exception):
    """The visitor is not signed in, or no longer."""


class _Session(msgspec.Struct, frozen=True):
    key: ApiKey
    token: str
    ends: float


class Sessions:
    """The sessions of one service process."""

    def __init__(self, keys: Keys | None) -> None:
        """Without ``keys`` every visitor may do everything, as in the service itself."""
        self._keys = keys
        self._token = secrets.token_urlsafe(24)  # without keys, one for all visitors
        self._by_hash: dict[str, _Session] = {}
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether visitors need not sign in."""
        return self._keys is None

    def visitor(self, request: Request) -> Visitor:
        """Who asks; raises ``SignInNeeded``."""
        if self._keys is None:
            return Visitor(ANYBODY, self._token)
        session = self._by_hash.get(hash_of(request.cookies.get(COOKIE, "")))
        if session is None or session.ends < time.monotonic() or not self._keys.holds(session.key):
            raise SignInNeeded
        return Visitor(session.key, session.token, is_signed_in=True)

    def sign_in(self, secret: str) -> tuple[str, ApiKey] | None:
        """Start a session for an API key. Returns the cookie's value and the key, or None if the key is unknown."""
        key = None if self._keys is None else self._keys.find(secret)
        if key is None:
            return None
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            now = time.monotonic()
            self._by_hash = {name: session for name, session in self._by_hash.items() if session.ends > now}
            while len(self._by_hash) >= MOST_SESSIONS:
                del self._by_hash[min(self._by_hash, key=lambda name: self._by_hash[name].ends)]
            self._by_hash[hash_of(cookie)] = _Session(key, secrets.token_urlsafe(24), now + LIFETIME)
        return cookie, key

    def sign_out(self, request: Request) -> None:
        """End the session that a request came with."""
        with self._lock:
            self._by_hash.pop(hash_of(request.cookies.get(COOKIE, "")), None)


def is_ours(visitor: Visitor, given: str) -> bool:
    """Whether a form was sent by one of our pages."""
    return hmac.compare_digest(visitor.token.encode(), given.encode("utf-8", "replace"))


def set_cookie(response: Response, request: Request, value: str) -> None:
    """Give a browser its session."""
    response.set_cookie(
        COOKIE, value, max_age=int(LIFETIME), path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
