"""Who visits the pages: a caller with an API key, or anyone if the service has no keys.

A session is a signed cookie that scripts cannot read and other sites cannot send: which key signed in, and until when.
The secret that signs it is a document of the store, and so are the sessions that were ended, so that all services over
one store know the same ones. A key that is taken away ends its sessions at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time

import msgspec
from fastapi import Request, Response

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import PenstockError, StoreReadOnly
from penstock.queue.protocol import DocumentWrite
from penstock.queue.queues import QueueStore
from penstock.service.keys import ANYBODY, ApiKey, Keys, Scope

logger = logging.getLogger("penstock.service.dashboard")

COOKIE = "penstock-session"
LIFETIME = 12 * 60 * 60  # seconds
SECRET = "penstock.service.secret"  # noqa: S105 - the name of a document
ENDED = "penstock.service.ended."
FRESH = 2.0  # seconds for which the list of ended sessions is good


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
    id: str
    key: str  # its signature: the key itself, with its rights, is in the file of keys
    ends_us: Micros


class Sessions:
    """The sessions of all services over one store."""

    def __init__(self, keys: Keys | None, store: QueueStore, clock: Clock | None = None) -> None:
        """Without ``keys`` every visitor may do everything, as in the service itself."""
        self._keys = keys
        self._store = store
        self._clock = clock or SystemClock()
        self._secret = _shared_secret(store)
        self._ended: set[str] = set()
        self._looked_at: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether visitors need not sign in."""
        return self._keys is None

    def visitor(self, request: Request, *, look: bool = True) -> Visitor:
        """Who asks; raises ``SignInNeeded``. Without ``look`` the store is not asked for sessions that have ended."""
        if self._keys is None:
            return Visitor(ANYBODY, self._sign("form", b""))
        session = self._session(request)
        if look:
            self._look()
        key = self._keys.first(lambda key: self._is_of(session, key))
        if session.id in self._ended or key is None:
            raise SignInNeeded
        return Visitor(key, self._sign("form", session.id.encode()), is_signed_in=True)

    def sign_in(self, secret: str) -> tuple[str, ApiKey] | None:
        """Start a session for an API key. Returns the cookie's value and the key, or None if the key is unknown."""
        key = None if self._keys is None else self._keys.find(secret)
        if key is None:
            return None
        ends = self._clock.micros() + LIFETIME * 1_000_000
        session = _Session(secrets.token_urlsafe(16), self._sign("key", msgspec.json.encode(key)), ends)
        text = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{text}.{self._sign('session', text.encode())}", key

    def sign_out(self, request: Request) -> None:
        """End the session that a request came with, on all services: on others within seconds."""
        session = self._session(request)
        self._ended.add(session.id)
        now = self._store.now()
        old = [
            DocumentWrite(document.name, None)
            for document in self._store.driver.documents(ENDED)
            if document.changed_us < now - LIFETIME * 1_000_000
        ]
        try:
            self._store.driver.write([DocumentWrite(ENDED + session.id, b"{}"), *old])
        except StoreReadOnly:
            logger.warning("the store is read-only: a session that was ended here is valid on other services")

    def _session(self, request: Request) -> _Session:
        """The session of a request, if its cookie is one of ours and its time is not over."""
        text, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
        if not _is_equal(self._sign("session", text.encode("utf-8", "replace")), signature):
            raise SignInNeeded
        try:
            session = msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Session)
        except (ValueError, msgspec.MsgspecError) as cause:  # of another release
            raise SignInNeeded from cause
        if session.ends_us < self._clock.micros():
            raise SignInNeeded
        return session

    def _is_of(self, session: _Session, key: ApiKey) -> bool:
        return _is_equal(self._sign("key", msgspec.json.encode(key)), session.key)

    def _look(self) -> None:
        """Read which sessions have ended, if the list is old. While the store is away the last one holds."""
        if self._looked_at is not None and time.monotonic() - self._looked_at < FRESH:
            return
        try:
            documents = self._store.driver.documents(ENDED)
        except PenstockError as error:
            logger.info("the list of ended sessions could not be read: %s", error)
            return
        self._ended.update(document.name.removeprefix(ENDED) for document in documents)
        self._looked_at = time.monotonic()

    def _sign(self, purpose: str, content: bytes) -> str:
        digest = hmac.digest(self._secret, purpose.encode() + b"\0" + content, hashlib.sha256)
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _shared_secret(store: QueueStore) -> bytes:
    """The secret of all services over a store; the first one to ask makes it."""
    while (document := store.driver.document(SECRET)) is None:
        fresh = secrets.token_bytes(32)
        try:
            store.driver.write([DocumentWrite(SECRET, fresh, 0)])
        except StoreReadOnly:
            return fresh  # of this process
    return document.value


def is_ours(visitor: Visitor, given: str) -> bool:
    """Whether a form was sent by one of our pages."""
    return _is_equal(visitor.token, given)


def _is_equal(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


def set_cookie(response: Response, request: Request, value: str) -> None:
    """Give a browser its session."""
    response.set_cookie(
        COOKIE, value, max_age=LIFETIME, path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
