"""RedisDriver: the contract's calls as functions on one space of a Redis or Valkey server.

The URL is ``redis://[user:password@]host[:6379]/0`` or, with TLS, ``rediss://…``. Its options:

- ``space`` and ``durability`` (``durable``, ``fast``) as for every store;
- ``payload_limit``: the largest payload in bytes (262144);
- ``timeout``: seconds to wait for a reply (5); a call is tried again after a lost reply, so it may take twice that;
- ``connect_timeout``: seconds to wait for a connection (5);
- ``tls_ca``, ``tls_cert``, ``tls_key``: files for ``rediss://``: who is trusted, and who we are.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.clock import Clock, Micros
from penstock.errors import BadInput, CannotOpen, StoreReadOnly, StoreUnavailable
from penstock.ids import DERIVED_IN, new_nonce
from penstock.location import Location
from penstock.process import tell_of_forks
from penstock.queue.checking import check_connection
from penstock.queue.driver import Driver
from penstock.queue.drivers.redis import schema, serialization, transfer
from penstock.queue.drivers.redis.batching import CallBatcher
from penstock.queue.drivers.redis.bodies import exact
from penstock.queue.drivers.redis.connection import Address, Server
from penstock.queue.drivers.redis.server_checks import check_settings, findings, limits_finding, read_settings
from penstock.queue.drivers.redis.settle_call import SettleCall
from penstock.queue.drivers.redis.wakeup import Bell
from penstock.queue.entry import LIVE, Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.forgetting import NODE_REMEMBERED
from penstock.queue.protocol import (
    PAUSED,
    Capabilities,
    Changes,
    ClaimRequest,
    Definition,
    Document,
    DocumentWrite,
    Find,
    Finding,
    Hold,
    KeptResult,
    Link,
    NewEntry,
    Part,
    Reaped,
    Schedule,
    Scope,
    Settled,
    Step,
    Subscription,
    TransferRow,
    Wait,
)

IDS_AT_ONCE = 5000  # that are looked through in one call
UNNUMBERED = -2  # what a page of dead letters ends with where some have no number yet
_GLOB = re.compile(r"[*?\[\]\\^]")  # what means something in a pattern
_OPTIONS = frozenset({"payload_limit", "timeout", "connect_timeout", "tls_ca", "tls_cert", "tls_key"})


def open_driver(location: Location, clock: Clock) -> RedisDriver:
    """Open ``redis://…`` or ``rediss://…``."""
    location.reject_unknown_options(_OPTIONS)
    limit = location.options.get("payload_limit", str(RedisDriver.payload_limit))
    if not limit.isdecimal() or int(limit) < 1:
        raise BadInput(f"payload_limit {limit!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
    store = RedisDriver(location, clock)
    store.payload_limit = int(limit)
    return store


def is_there(location: Location) -> bool:
    """Whether the space was ever opened; looks, and writes nothing."""
    location.reject_unknown_options(_OPTIONS)
    server = Server(Address(location))
    try:
        return server.ask("GET", f"{{{location.space}}}:schema") is not None
    finally:
        server.close()


class RedisDriver(Driver):
    """Queues in one space of a server; entries, history and dead letters are all in its memory."""

    capabilities = Capabilities(transactional=False)
    overlaps_round_trips = True

    def __init__(self, location: Location, clock: Clock) -> None:
        """Connect, and refuse a server that would lose entries."""
        self._server = Server(Address(location))
        super().__init__(location.space, clock, self._server.address.name)
        self.durable = location.durability == "durable"
        self._key = f"{{{location.space}}}:"
        self._bell = self._new_bell()
        self._batcher = CallBatcher(self._send_calls)
        try:
            check_settings(read_settings(self._server), self.name, durable=self.durable)
            schema.check_or_set(self._server, self._key, self.space, lambda: self._manage("number_letters"))
            with suppress(StoreReadOnly):  # a replica has the library when its primary has
                self._look("counts", queue="penstock")  # may it run functions on these keys?
        except BaseException as error:
            self._server.close()
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreReadOnly):
                raise CannotOpen(error.message, hint=error.hint) from error
            raise
        tell_of_forks(self)
        self._forget_clock = clock.on_change(self.wake)

    # --- running functions -------------------------------------------------------------------------

    def _run(
        self, function: str, request: dict[str, Any], *payloads: bytes, once: bool = False, changes: bool = True
    ) -> list[Any]:
        """Run a function. ``once`` has the server remember the reply, for when it is lost and asked for again."""
        nonce = new_nonce() if once else None

        def write(repeat: bool) -> tuple[str, list[Any]]:
            written = {**request, "nonce": nonce, "repeat": repeat} if once else request
            return function, [self._time(), serialization.packed(written), *payloads]

        return self._send(write, changes=changes)

    def _send(self, write: Callable[[bool], tuple[str, list[Any]]], *, changes: bool = True) -> list[Any]:
        self._check_open()
        reply: list[Any] = self._server.run(self._key, write, changes=changes)
        last = reply[-1]
        if type(last) is list and len(last) == 2 and last[0] == b"cascaded" and type(last[1]) is list:
            self.cascaded += serialization.triples(last[1])
            del reply[-1]
        return reply

    def _time(self) -> int | str:
        """The time to go by: the fake one, or '' for the server's."""
        fixed = self.clock.fixed()
        return "" if fixed is None else fixed

    def _check_open(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"{self.name} is closed.", hint="Open it again.")

    def _manage(self, call: str, *payloads: bytes, once: bool = False, **request: Any) -> list[Any]:
        reply: list[Any] = self._run("manage", {"call": call, **request}, *payloads, once=once)[1]
        return reply

    def _look(self, call: str, **request: Any) -> list[Any]:
        reply: list[Any] = self._run("look", {"call": call, **request}, changes=False)[1]
        return reply

    def _ask(self, command: str, key: str, *arguments: Any) -> Any:
        self._check_open()
        return self._server.ask(command, f"{self._key}{key}", *arguments)

    def _new_bell(self) -> Bell:
        address = self._server.address
        return Bell(lambda: address.connect(timeout=None), f"{self._key}bell", address.timeout)

    def forked(self) -> None:
        """Connections, the thread at the bell and calls under way are the parent's."""
        self._server.connections.forked()
        self._bell = self._new_bell()
        self._batcher = CallBatcher(self._send_calls)

    def now(self) -> Micros:
        """The server's time, or the fake one."""
        fixed = self.clock.fixed()
        if fixed is not None:
            return fixed
        self._check_open()
        seconds, micros = self._server.ask("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    # --- work --------------------------------------------------------------------------------------

    def _settle(
        self, steps: Sequence[Step], claim: ClaimRequest | None, connection: Any, writes: Sequence[DocumentWrite] = ()
    ) -> Settled:
        call = SettleCall(steps, claim, writes)
        now, reply = self._batcher.call(call, call.size)
        results, claimed, written = call.read(reply, now)
        return Settled(results, claimed, now, written)

    def _send_calls(self, calls: list[SettleCall]) -> list[Any]:
        """Several calls in one; for each the time and its reply."""

        def write(repeat: bool) -> tuple[str, list[Any]]:
            puts = calls[0].write_puts() if len(calls) == 1 and not repeat else None
            if puts is not None:
                return "put", [self._time(), *puts]
            payloads: list[Any] = []
            written = [call.write(payloads, repeat=repeat) for call in calls]
            request = {"calls": written, "namespace": DERIVED_IN.hex}
            return "settle", [self._time(), serialization.packed(request), *payloads]

        now, replies = self._send(write)
        return [(now, reply) for reply in replies]

    def _extend(self, leases: Sequence[Lease], lease_us: Micros) -> list[Micros | None]:
        if not leases:
            return []
        named = [(serialization.lease_number(lease), lease.entry, lease.token) for lease in leases]
        return [end or None for end in self._run("extend", {"leases": named, "lease": lease_us})[1]]

    def _reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        silent_us = max(NODE_REMEMBERED, sticky_after_us)
        request = {"node": node, "sticky": sticky_after_us, "silent": silent_us, "limit": limit}
        return Reaped(*(serialization.pairs(flat) for flat in self._run("reap", request, once=True)[1]))

    def _fire(self, schedule: Schedule, next_us: Micros, entry: NewEntry | None) -> bool:
        said, *problem = self._manage(
            "fire",
            *(() if entry is None else (entry.payload,)),
            once=True,
            name=schedule.name,
            version=schedule.version,
            **{"from": schedule.next_us, "next": next_us},
            entry=None if entry is None else serialization.new_entry(entry),
        )
        if problem:
            raise serialization.refusal(problem)
        return bool(said)

    # --- what people do to entries -------------------------------------------------------------------

    def _change(
        self, call: str, ids: Sequence[str], scope: Scope | None, *payloads: bytes, **request: Any
    ) -> list[tuple[str, str]]:
        where = None if scope is None else {"name": scope.name, "family": scope.family}
        request = {"call": call, "ids": list(ids), "scope": where, **request}
        reply = self._run("change", request, *payloads, once=True)[1]
        if reply and reply[0] == 0:
            raise serialization.refusal(reply[1:])
        return serialization.pairs(reply)

    def _cancel(self, ids: Sequence[str], force: bool, connection: Any, scope: Scope | None) -> list[tuple[str, str]]:
        return self._change("cancel", ids, scope, force=force)

    def _update(self, id_: str, changes: Changes, force: bool, connection: Any, scope: Scope | None) -> str:
        given: dict[str, Any] = {
            "codec": changes.codec, "type": changes.type, "priority": changes.priority,
            "due": exact(changes.due_us), "delay": changes.delay_us,
        }  # fmt: skip
        if changes.labels is not None:
            given["labels"] = changes.labels or False
        payloads = () if changes.payload is None else (changes.payload,)
        return self._change("update", (id_,), scope, *payloads, force=force, changes=given)[0][1]

    def _replay(self, ids: Sequence[str], scope: Scope | None) -> list[tuple[str, str]]:
        return self._change("replay", ids, scope)

    # --- looking -------------------------------------------------------------------------------------

    def find(self, where: Find, *, connection: Any = None) -> list[Entry[Any]]:
        """Live entries, by seq."""
        check_connection(self, connection)
        if unknown := set(where.states or ()).difference(LIVE):
            raise BadInput(
                f"a live entry is never {unknown.pop()!r}.", hint="Use 'waiting' or 'leased'; see history()."
            )
        return [serialization.read_live(hit) for hit in self._search("live", where)]

    def dead(self, where: Find) -> list[Entry[Any]]:
        """Dead letters, in the order of death."""
        return [serialization.read_dead(hit) for hit in self._search("dead", where)]

    def history(self, where: Find) -> list[HistoryRow]:
        """Ended attempts, by seq."""
        return [serialization.read_row(hit) for hit in self._search("history", where)]

    def _search(self, kind: str, where: Find, *, purge: bool = False) -> list[Any]:
        """All pages of a search up to its limit."""
        if where.limit < 1:
            return []
        conditions: dict[str, Any] = {
            "queue": where.queue, "family": where.family, "states": where.states, "from": where.from_us,
            "before": where.before_us, "after": where.after or None, "newest": where.newest_first,
            "ids": None if where.ids is None else list(dict.fromkeys(where.ids)), "labels": where.labels or None,
        }  # fmt: skip
        hits: list[Any] = []
        cursor = None
        while True:
            page = {"kind": kind, "where": {**conditions, "cursor": cursor}, "limit": where.limit - len(hits)}
            _, more, cursor = self._run("purge" if purge else "find", page, once=purge, changes=purge)
            if cursor == UNNUMBERED:
                self._manage("number_letters")
                return self._search(kind, where, purge=purge)
            hits += more
            if cursor < 0 or len(hits) >= where.limit:
                return hits

    def ids_like(self, part: str, *, at_end: bool = False, limit: int = 20) -> list[str]:
        """Ids that begin or end with a part; all ids are looked through, a few thousand at a time."""
        literal = _GLOB.sub(r"\\\g<0>", part)
        pattern = f"*{literal}" if at_end else f"{literal}*"
        ids: set[str] = set()
        cursor: Any = 0
        while True:
            cursor, flat = self._ask("HSCAN", "ids", cursor, "MATCH", pattern, "COUNT", IDS_AT_ONCE)
            ids.update(id_.decode() for id_ in flat[::2])
            if int(cursor) == 0:
                return sorted(ids)[:limit]

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name; a queue asked for by name is included even if nobody ever used it."""
        return self._counted("counts", queue=queue, family=family)

    def page(self, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
        """What the first queues after a name hold."""
        return self._counted("page", prefix=prefix, after=after, limit=limit)

    def _counted(self, call: str, **request: Any) -> list[Counts]:
        return serialization.read_counts(self._look(call, **request))

    # --- cleaning up ---------------------------------------------------------------------------------

    def _prune(self, older_than_us: Micros, limit: int) -> int:
        gone: int = self._run("prune", {"older": older_than_us, "limit": limit})[1]
        return gone

    def _purge_dead(self, where: Find) -> list[tuple[str, str]]:
        return [(id_.decode(), queue.decode()) for id_, queue in self._search("dead", where, purge=True)]

    # --- queues --------------------------------------------------------------------------------------

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        rate, limit = definition.rate, definition.label_limit
        said = self._manage(
            "define",
            queue=queue,
            fifo=definition.fifo,
            rate=None if rate is None else (rate.count, rate.period),
            limit=limit,
        )
        if said[0] == 0:
            raise serialization.refusal(said[1:])

    def _lock(self, queue: str, holder: str, reason: str) -> None:
        self._manage("lock", queue=queue, holder=holder, reason=reason)

    def _unlock(self, queue: str, holder: str) -> bool:
        return bool(self._manage("unlock", once=True, queue=queue, holder=holder)[0])

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all, by queue and holder."""
        locks = [serialization.read_lock(lock) for lock in self._look("locks", queue=queue)]
        return sorted(locks, key=lambda lock: (lock.queue, lock.holder))

    # --- schedules, subscriptions, nodes ---------------------------------------------------------------

    def set_schedule(self, schedule: Schedule) -> bool:
        """Keep a schedule unless a higher version is there."""
        definition = msgspec.json.encode(msgspec.structs.replace(schedule, next_us=0)).decode()
        said = self._manage(
            "set_schedule", name=schedule.name, version=schedule.version, paused=PAUSED, next=schedule.next_us,
            definition=definition,
        )  # fmt: skip
        return bool(said[0])

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule. Returns whether it was there."""
        return bool(self._manage("remove_schedule", once=True, name=name)[0])

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return serialization.read_schedules(self._ask("HVALS", "schedules"))

    def subscribe(self, subscription: Subscription) -> None:
        """Keep a subscription."""
        self._manage("subscribe", name=subscription.name, queue=subscription.queue, types=subscription.types)

    def unsubscribe(self, name: str) -> bool:
        """Forget a subscription. Returns whether it was there."""
        return bool(self._manage("unsubscribe", once=True, name=name)[0])

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        return serialization.read_subscriptions(self._ask("HGETALL", "subscriptions"))

    def beat(self, node: str) -> None:
        """Tell that a node lives."""
        self._manage("beat", node=node)

    def nodes(self) -> dict[str, Micros]:
        """When each node was last heard of."""
        flat = self._ask("HGETALL", "nodes")
        return {node.decode(): int(at) for node, at in zip(flat[::2], flat[1::2], strict=True)}

    def document(self, name: str) -> Document | None:
        """One document."""
        text = self._ask("HGET", "documents", name)
        return None if text is None else serialization.read_document(name.encode(), text)

    def documents(self, prefix: str = "", *, since_us: Micros = 0) -> list[Document]:
        """Documents by name."""
        texts = self._look("documents", prefix=prefix, since=since_us)
        documents = [serialization.read_document(name, text) for name, text in texts]
        return sorted(documents, key=lambda document: document.name)

    # --- transfer ----------------------------------------------------------------------------------

    def definitions(self) -> dict[str, Definition]:
        """How each queue behaves, by name."""
        return transfer.read_definitions(self._ask("HGETALL", "queues"))

    def holds(self) -> list[Hold]:
        """All unique ids that are held, by queue and key."""
        return transfer.read_holds(self._ask("HGETALL", "holds"))

    def export(self, part: Part, after: int = 0, limit: int = 500) -> list[TransferRow]:
        """Waiting entries, dead letters or rows of the history beyond a sequence number, in order."""
        where = Find(after=after, limit=limit, states=("waiting",) if part == "live" else None)
        return [transfer.READERS[part](hit) for hit in self._search(part, where)]

    def load(self, rows: Sequence[TransferRow], holds: Sequence[Hold] = ()) -> None:
        """Take rows of another store in, all or none."""
        request, payloads = transfer.write_rows(rows, holds)
        said = self._run("load", request, *payloads, once=True)[1]
        if said[0] == 0:
            raise serialization.refusal(said[1:])

    # --- who waits for whom, and what came of it --------------------------------------------------------

    def waits(self, ids: Sequence[str] | None = None, *, after: str = "", limit: int = 1000) -> list[Wait]:
        """What entries that wait for others need and have counted, by id."""
        waits = serialization.read_waits(self._look("waits", ids=None if ids is None else list(ids)))
        return [wait for wait in waits if wait.id > after][:limit]

    def links(self, *, target: str | None = None, after: tuple[str, str] = ("", ""), limit: int = 1000) -> list[Link]:
        """Links that are not consumed, by source and target."""
        links = serialization.read_links(self._look("links", target=target, after=after[0], limit=limit))
        fitting = (link for link in links if target in (None, link.target) and (link.source, link.target) > after)
        return list(itertools.islice(fitting, limit))

    def results(self, *, batch: str | None = None, after: str = "", limit: int = 1000) -> list[tuple[str, KeptResult]]:
        """What handlers returned, by the ids of the entries."""
        results = serialization.read_results(self._look("results", batch=batch, after=after, limit=limit))
        return [item for item in results if item[0] > after][:limit]

    def load_links(
        self, links: Sequence[Link], waits: Sequence[Wait], results: Sequence[tuple[str, KeptResult]] = ()
    ) -> None:
        """Take in who waits for whom and what handlers returned, all or none."""
        request, texts = transfer.write_links(links, waits, results)
        said = self._run("load", request, *texts, once=True)[1]
        if said[0] == 0:
            raise serialization.refusal(said[1:])

    def result(self, id_: str) -> KeptResult | None:
        """What a handler returned for an entry, if it is kept."""
        reply = self._look("result", id=id_)
        return serialization.read_result(reply[0]) if reply and reply[0] else None

    # --- the handle ------------------------------------------------------------------------------------

    def shares_with(self, other: Driver) -> bool:
        """Two handles share what they share on the server, whoever they are there."""
        if not isinstance(other, RedisDriver):
            return False
        mine, theirs = self._server.address, other._server.address  # noqa: SLF001
        return (mine.host, mine.port, mine.db, self.space) == (theirs.host, theirs.port, theirs.db, other.space)

    def bell(self) -> int:
        """How often it has rung here; the server's rings count from the first call on."""
        return self._bell.listen()

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until this process or the server rings, or the time is over."""
        return self._bell.wait(seen, seconds)

    def wake(self) -> None:
        """Ring for every wait of this process."""
        self._bell.ring()

    def check(self) -> list[Finding]:
        """What doctor says about the server."""
        ready, miscounts = None, []
        with suppress(StoreReadOnly):  # a replica whose primary never had the library
            ready = sum(counts.ready for counts in self.counts())
            miscounts = [name.decode() for name in self._look("miscounts")]
        return [
            *findings(read_settings(self._server), self._server, ready, durable=self.durable),
            limits_finding(miscounts),
        ]

    def close(self) -> None:
        """Close the connections; safe to repeat."""
        if self.closed:
            return
        super().close()
        self._forget_clock()
        self._bell.close()
        self._server.close()
