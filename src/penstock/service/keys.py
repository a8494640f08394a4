"""API keys: what a caller may do, with only the hashes of the keys on disk."""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import msgspec

from penstock.errors import BadInput
from penstock.names import check_name

Scope = Literal["read", "produce", "consume", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
PREFIX = "psk_"
GRACE = 5.0

logger = logging.getLogger("penstock.service")


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One caller: its name, its scopes, and its queues and logs (those whose name begins with ``prefix``)."""

    name: str
    hash: str
    scopes: tuple[Scope, ...]
    prefix: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether the key has a scope; ``admin`` has them all."""
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, name: str) -> bool:
        """Whether a queue or log is within the key's reach."""
        return name.startswith(self.prefix)


# The key of every caller if no keys are configured.
ANYBODY = ApiKey("anybody", "", ("admin",))


class Keys:
    """The keys of a service, read from a JSON file; a change of the file is seen without a restart."""

    def __init__(self, path: Path) -> None:
        """Read the file now, so that a wrong one stops the start."""
        self.path = path
        self._by_hash: dict[str, ApiKey] = {}
        self._lost_at: float | None = None
        self._read_as: tuple[int, ...] = ()
        try:
            self._read_as = self._read()
        except (OSError, msgspec.MsgspecError) as cause:
            raise _unreadable(path, cause) from cause

    def find(self, secret: str) -> ApiKey | None:
        """The key with this secret."""
        self._refresh()
        hashed = hash_of(secret)
        matching = None
        # Every hash is compared, so that the time does not tell which one was close.
        for known, key in self._by_hash.items():
            if hmac.compare_digest(known, hashed):
                matching = key
        return matching

    def first(self, fits: Callable[[ApiKey], bool]) -> ApiKey | None:
        """The first key that fits."""
        self._refresh()
        return next(filter(fits, self._by_hash.values()), None)

    def holds(self, key: ApiKey) -> bool:
        """Whether a key still exists with the same rights."""
        self._refresh()
        return self._by_hash.get(key.hash) == key

    def _refresh(self) -> None:
        try:
            if self._seen() != self._read_as:
                self._read_as = self._read()
        except (OSError, msgspec.MsgspecError) as cause:
            # The file may be about to be replaced: the known keys stay valid for a moment, then no caller gets in.
            now = time.monotonic()
            if self._lost_at is None:
                self._lost_at = now
                logger.error("the API keys in %s cannot be read: %s; they end in %g s", self.path, cause, GRACE)
            if now - self._lost_at >= GRACE:
                self._by_hash, self._read_as = {}, ()
            return
        self._lost_at = None

    def _read(self) -> tuple[int, ...]:
        seen = self._seen()
        self._by_hash = {key.hash: key for key in msgspec.json.decode(self.path.read_bytes(), type=list[ApiKey])}
        return seen

    def _seen(self) -> tuple[int, ...]:
        status = self.path.stat()
        if status.st_mode & stat.S_IWOTH:
            raise PermissionError(errno.EPERM, "every user may write to it, so any of them could add a key")
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode


def read_keys(path: Path) -> list[ApiKey]:
    """The keys in a file, or none if there is no file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[ApiKey]) if path.exists() else []
    except (OSError, msgspec.MsgspecError) as cause:
        raise _unreadable(path, cause) from cause


def _unreadable(path: Path, cause: Exception) -> BadInput:
    if isinstance(cause, PermissionError) and cause.errno == errno.EPERM:
        return BadInput(f"the API keys in {path} are not used: {cause.strerror}.", hint=f"Run: chmod 600 {path}")
    return BadInput(
        f"the API keys in {path} cannot be read: {cause}.",
        hint=f"Make a key with: penstock key new NAME --scope read --keys {path}",
    )


def new_key(path: Path, name: str, scopes: tuple[str, ...], *, prefix: str = "") -> str:
    """Add a key to a file and return its secret, which is shown this once and stored nowhere."""
    check_name(name, kind="key")
    if not scopes or any(scope not in SCOPES for scope in scopes):
        raise BadInput(f"scopes {scopes} of key {name!r} are not allowed.", hint=f"Use some of {', '.join(SCOPES)}.")
    keys = read_keys(path)
    if any(key.name == name for key in keys):
        raise BadInput(f"{path} already has a key {name!r}.", hint="Choose another name, or remove that one first.")
    secret = PREFIX + secrets.token_urlsafe(32)
    keys.append(ApiKey(name, hash_of(secret), scopes, prefix))  # type: ignore[arg-type]
    _write(path, keys)
    return secret


def remove_key(path: Path, name: str) -> bool:
    """Take a key away. Returns whether it existed."""
    keys = read_keys(path)
    left = [key for key in keys if key.name != name]
    if len(left) == len(keys):
        return False
    _write(path, left)
    return True


def hash_of(secret: str) -> str:
    """The hash of a secret. Secrets are long and random, so a plain hash protects them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _write(path: Path, keys: list[ApiKey]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
    draft.replace(path)
