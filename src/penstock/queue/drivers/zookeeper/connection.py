"""The connection to ZooKeeper: sessions, pipelined reads, multis whose results are looked at, and the server's time.

A session may be lost and another one take its place at any time; kazoo does that by itself. If kazoo's own thread dies,
a new client takes the session over. Nothing here blocks inside a callback of kazoo's: they only set flags and ring the
bell.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import msgspec
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import CheckVersion, Create, Delete, SetData
from kazoo.protocol.states import KeeperState, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from penstock import failpoints
from penstock.clock import Micros, SystemClock
from penstock.errors import BadInput, CannotOpen, OutcomeUnknown, PenstockError, StoreUnavailable
from penstock.location import Location

logger = logging.getLogger("penstock.queue.zookeeper")
quiet = logging.getLogger("penstock.queue.zookeeper.kazoo")
quiet.setLevel(logging.CRITICAL)  # it tells every flap; ours tells what it means

# The server drops a connection that sends a packet of 1 MiB, without a word about its size.
PACKET = 900_000
PER_OP = 100
SEQUENTIAL = 2  # flag of a create: the server appends a number to the name
PIPELINE = 500  # reads under way at once
_AWAY = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError, KazooTimeoutError)
# kazoo waits for the answer to a connection as long as a session lasts, divided by the number of hosts. A single host
# that accepts and stays silent, as a starting server may, would cost the session; so each host is named this often.
ATTEMPTS_PER_SESSION = 3
_RETRYING = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0, max_jitter=0.2)


class Op(msgspec.Struct, frozen=True, gc=False):
    """One operation of a multi."""

    verb: Literal["create", "append", "set", "delete", "check"]
    path: str
    data: bytes = b""
    version: int = -1

    @property
    def size(self) -> int:
        """What it adds to the packet, with a margin."""
        return len(self.path) + len(self.data) + PER_OP


class _QuickCreate(Create):  # type: ignore[misc]  # the driver has no types
    """A node to be made. The driver would pack the access list for each again, which takes most of the time."""

    __slots__ = ()

    def serialize(self) -> bytes:
        """Path and data, each after its length; the access list and no flags."""
        path = self.path.encode()
        return b"".join((_LENGTH.pack(len(path)), path, _LENGTH.pack(len(self.data)), self.data, self.acl))


_LENGTH = struct.Struct(">i")


class Refused(msgspec.Struct, frozen=True):
    """A multi that changed nothing: somebody else was first, or a node is not as it was thought to be."""

    op: Op
    cause: str

    def __str__(self) -> str:
        """What was refused and how."""
        return f"{self.op.verb} {self.op.path} ({self.cause})"


class Unanswered(msgspec.Struct, frozen=True):
    """The reply to a multi was lost: nobody knows yet whether it happened."""

    cause: str


class Pending:
    """A multi that nobody waits for."""

    def __init__(self, result: Any) -> None:
        """Know kazoo's result."""
        self._result = result

    @property
    def happened(self) -> bool | None:
        """Whether it happened, or None until the reply is here."""
        if not self._result.ready():
            return None
        return bool(self._result.successful()) and not any(isinstance(part, Exception) for part in self._result.get())


class Address:
    """What the URL says about where and how to connect."""

    def __init__(self, location: Location) -> None:
        """Read ``zookeeper://[user:password@]host[:port][,host…]/chroot?session=10s``."""
        parts = urlsplit(location.url)
        login, _, hosts = parts.netloc.rpartition("@")
        self.hosts = ",".join(host if ":" in host else f"{host}:2181" for host in hosts.split(",") if host)
        if not self.hosts:
            raise BadInput(f"{location.masked} names no host.", hint="Write it as zookeeper://host:2181/chroot.")
        if not all(host.rpartition(":")[2].isdigit() for host in self.hosts.split(",")):
            raise BadInput(
                f"{location.masked} has a port that is not a number.", hint="Write it as zookeeper://host:2181/chroot."
            )
        self.chroot = unquote(parts.path).rstrip("/")
        if "//" in self.chroot or any(part in (".", "..") for part in self.chroot.split("/")):
            raise BadInput(f"the path {self.chroot!r} in {location.masked} is not allowed.", hint="Use /plain/names.")
        user, _, password = login.partition(":")
        self.login = (unquote(user), unquote(password)) if login else None
        self.session = location.seconds("session", 10.0)
        self.patience = location.seconds("timeout", 10.0)
        self.name = location.masked


class Connection:
    """One client; its session may change."""

    def __init__(self, address: Address, on_change: Callable[[], None]) -> None:
        """Connect. ``on_change`` is called on kazoo's thread when the connection comes or goes."""
        self.address = address
        self._on_change = on_change
        self._offset: Micros = 0
        self._host = SystemClock()
        self.lost = 0  # how many sessions are gone
        self._connected = threading.Event()
        self._closed = False
        self._renewing = threading.Lock()
        self._left: _Left | None = None  # by a client whose thread is dead
        self._acl = list(OPEN_ACL_UNSAFE) if address.login is None else [make_digest_acl(*address.login, all=True)]
        self._packed_acl = bytes(Create("", b"", self._acl, 0).serialize())[2 * _LENGTH.size :]
        self.client = self._new_client()
        try:
            self.client.start(timeout=address.patience)
        except (KazooTimeoutError, KazooException) as cause:
            self.close()
            away = StoreUnavailable(
                f"{address.name} does not answer ({cause or type(cause).__name__}).",
                hint="Is ZooKeeper running there, and does the address reach it?",
            )
            raise CannotOpen(str(away)) from away

    def _new_client(self, left: _Left | None = None) -> KazooClient:
        address = self.address
        client = KazooClient(
            hosts=",".join([address.hosts] * ATTEMPTS_PER_SESSION),
            timeout=address.session,
            client_id=None if left is None else left.session,
            handler=_Handler(),
            connection_retry=_RETRYING.copy(),
            command_retry=KazooRetry(max_tries=0),
            default_acl=self._acl,
            auth_data=None if address.login is None else [("digest", ":".join(address.login))],
            logger=quiet,
        )
        if left is not None:
            client.last_zxid = left.last_zxid
        client.add_listener(self._listen)
        return client

    def _listen(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
            if state == KazooState.LOST:
                self.lost += 1
                client = self.client
                if client.client_state == KeeperState.CLOSED and not self._closed:
                    # Nobody asked it to: its thread has ended, and it will never connect again.
                    session = (client._session_id, client._session_passwd)  # noqa: SLF001 - no longer told by then
                    self._left = _Left(session, client.last_zxid)
        self._on_change()

    def _renew(self, deadline: float) -> None:
        """Put a new client in the place of one whose thread is dead; it takes the session over, leases and all."""
        with self._renewing:
            left = self._left
            if left is None or self._closed:
                return
            logger.warning("the connection to %s broke down and is made again", self.address.name)
            _discard(self.client, self._listen)
            self.client = self._new_client(left)
            try:
                self.client.start(timeout=max(0.1, deadline - time.monotonic()))
            except (KazooTimeoutError, KazooException) as cause:
                raise self.away(cause if str(cause) else type(cause).__name__) from cause
            self._left = None

    @property
    def connected(self) -> bool:
        """Whether the session is known to live."""
        return self._connected.is_set() and not self._closed

    @property
    def granted(self) -> float:
        """The session timeout that the servers agreed to, in seconds."""
        return float(self.client._session_timeout) / 1000  # noqa: SLF001

    def wait_connected(self, deadline: float) -> None:
        """Wait until there is a connection again; raises when there is none in time."""
        if self._left is not None:
            self._renew(deadline)
        if not self._connected.wait(max(0.0, deadline - time.monotonic())) or self._closed:
            raise self.away("it was closed" if self._closed else "no connection")

    def away(self, cause: object = "no connection") -> StoreUnavailable:
        """The error for a server that cannot be reached."""
        return StoreUnavailable(
            f"{self.address.name} does not answer: {cause}.",
            hint="It is tried again with the next call; nothing of this one happened.",
        )

    def unknown(self, cause: object) -> OutcomeUnknown:
        """The error for a call that was sent and whose reply was lost."""
        return OutcomeUnknown(
            f"{self.address.name} was sent a call and its reply was lost: {cause}.",
            hint="When it answers again, repeat the call with the same ids, or look whether it took effect.",
        )

    def error(self, cause: Exception) -> PenstockError:
        """What an error of kazoo's means."""
        if isinstance(cause, NoAuthError | AuthFailedError):
            return StoreUnavailable(
                f"{self.address.name} does not let this user in ({type(cause).__name__}).",
                hint="Give user and password in the URL, the same as those who made the nodes.",
            )
        return self.away(cause if str(cause) else type(cause).__name__)

    # --- reading -----------------------------------------------------------------------------------------

    def _await(self, pending: Any) -> Any:
        try:
            return pending.get(timeout=self.address.patience)
        except RuntimeError as cause:
            # What kazoo says of replies that come out of order, before its thread dies of it.
            raise ConnectionLoss(str(cause)) from cause

    def read_many(self, paths: Sequence[str]) -> list[tuple[bytes, Any] | None]:
        """Data and stat of nodes, None where there is none; all requests are sent before the first is waited for."""
        return self._pipelined(KazooClient.get_async, paths)

    def list_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The children of nodes, None where there is none."""
        return self._pipelined(KazooClient.get_children_async, paths)

    def _pipelined(self, ask: Callable[[KazooClient, str], Any], paths: Sequence[str]) -> list[Any]:
        """Ask for all, and after a lost connection once more, maybe a new client: reading twice changes nothing."""
        deadline = time.monotonic() + self.address.patience
        while True:
            nodes: list[Any] = []
            try:
                for begin in range(0, len(paths), PIPELINE):
                    pending = [ask(self.client, path) for path in paths[begin : begin + PIPELINE]]
                    nodes += [self._node(reply) for reply in pending]
                return nodes
            except _AWAY as cause:
                if self._closed or time.monotonic() > deadline:
                    raise self.error(cause) from cause
                self.wait_connected(deadline)
            except KazooException as cause:
                raise self.error(cause) from cause

    def _node(self, pending: Any) -> Any:
        try:
            return self._await(pending)
        except NoNodeError:
            return None

    def watch(self, path: str, callback: Callable[[Any], None]) -> bool:
        """Watch a node for its next change. Returns False if that is impossible at the moment."""
        try:
            self._await(self.client.get_async(path, watch=callback))
        except (*_AWAY, KazooException) as cause:
            logger.debug("cannot watch %s: %s", path, type(cause).__name__)
            return False
        return True

    # --- writing -----------------------------------------------------------------------------------------

    def multi(self, ops: Sequence[Op]) -> list[Any] | Refused | Unanswered:
        """Do all operations or none; their results, or why there are none."""
        request = self._request(ops)
        begin = self._host.micros()
        failpoints.point("zookeeper.before")
        try:
            results: list[Any] = self._await(request.commit_async())
            failpoints.point("zookeeper.after")
        except _AWAY as cause:
            return Unanswered(type(cause).__name__)
        except KazooException as cause:
            raise self.error(cause) from cause
        end = self._host.micros()
        if any(isinstance(result, Exception) for result in results):
            return self._refusal(ops, results)
        for result in results:
            if isinstance(result, ZnodeStat):
                self._learn(result.mtime * 1000, begin, end)
                break
        return results

    def send(self, ops: Sequence[Op]) -> Pending:
        """Send operations that nobody waits for; later calls are served after them."""
        return Pending(self._request(ops).commit_async())

    def _refusal(self, ops: Sequence[Op], results: list[Any]) -> Refused:
        """What was in the way; the other operations were only taken back with it."""
        for op, result in zip(ops, results, strict=True):
            if isinstance(result, NoAuthError):
                raise self.error(result) from result
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                return Refused(op, type(result).__name__)
        return Refused(ops[0], "RolledBackError")

    def _request(self, ops: Sequence[Op]) -> Any:
        """A fresh request: kazoo sends none twice. Our paths are whole and clean, so it need not look at each."""
        request = self.client.transaction()
        request.operations = [self._operation(op) for op in ops]
        return request

    def _operation(self, op: Op) -> Any:
        match op.verb:
            case "create":
                return _QuickCreate(op.path, op.data, self._packed_acl, 0)
            case "append":
                return Create(op.path, op.data, self._acl, SEQUENTIAL)
            case "set":
                return SetData(op.path, op.data, op.version)
            case "delete":
                return Delete(op.path, op.version)
            case "check":
                return CheckVersion(op.path, op.version)

    def make(self, root: str, paths: Iterable[str]) -> None:
        """Create nodes below a root that may be there already, and the root with all above it."""
        try:
            self.client.ensure_path(root)
            for pending in [self.client.create_async(path, b"") for path in paths]:
                with contextlib.suppress(NodeExistsError):
                    self._await(pending)
        except (*_AWAY, KazooException, RuntimeError) as cause:
            raise self.error(cause) from cause

    def write(self, path: str, data: bytes) -> None:
        """Set a node, whoever set it before, and create it if need be; learn the server's time from that."""
        self.wait_connected(time.monotonic() + self.address.patience)
        try:
            begin = self._host.micros()
            try:
                stat = self._await(self.client.set_async(path, data))
            except NoNodeError:
                with contextlib.suppress(NodeExistsError):
                    self._await(self.client.create_async(path, data))
                stat = self._await(self.client.set_async(path, data))
            self._learn(stat.mtime * 1000, begin, self._host.micros())
        except _AWAY as cause:
            raise self.unknown(cause if str(cause) else type(cause).__name__) from cause
        except KazooException as cause:
            raise self.error(cause) from cause

    def register(self, folder: str) -> str:
        """Create an ephemeral node for this session. Returns its name, which ends in a number of its own."""
        try:
            path: str = self._await(self.client.create_async(f"{folder}/h-", ephemeral=True, sequence=True))
        except (*_AWAY, KazooException) as cause:
            raise self.error(cause) from cause
        return path.rpartition("/")[2]

    # --- time --------------------------------------------------------------------------------------------

    def _learn(self, server: Micros, begin: Micros, end: Micros) -> None:
        """The server wrote between ``begin`` and ``end`` and called it ``server``, in whole milliseconds."""
        lowest, highest = server - end, server + 999 - begin
        self._offset = min(max(self._offset, lowest), highest)

    def now(self) -> Micros:
        """The server's time, as far as it is known here."""
        return self._host.micros() + self._offset

    def close(self) -> None:
        """End the session, and with it all ephemeral nodes."""
        self._closed = True
        self._connected.set()  # nobody has to wait any more
        _discard(self.client, self._listen)


class _Left(msgspec.Struct, frozen=True):
    """What a client leaves behind whose thread is dead: its session, and how far it had seen."""

    session: tuple[Any, bytes]
    last_zxid: int


class _Handler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    """kazoo's threads, whose last words go to the log instead of the terminal."""

    def spawn(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run a function in a thread."""

        def run() -> None:
            try:
                function(*arguments, **options)
            except Exception:
                logger.exception("a thread of kazoo's died")

        return super().spawn(run)


def _discard(client: KazooClient, listener: Callable[[str], None]) -> None:
    """Let go of a client, whatever state it is in."""
    client.remove_listener(listener)
    try:
        client.stop()
        client.close()
    except Exception as error:
        logger.debug("while closing a connection: %s", error)
