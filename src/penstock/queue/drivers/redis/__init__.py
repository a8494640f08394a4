"""Queues on a Redis or Valkey server: every call is one function on the server, so it is atomic and one round trip.

driver         the contract of a store, in terms of these
settle_call    a call that settles and claims: what is sent, and what its reply means
serialization  entries, rows, documents, links and refusals, packed and read
bodies         what is stored of an entry
transfer       entries to and from another store
batching       sends calls of several threads as one
connection     reaches the server, and says what its errors mean
library        the Lua of ``lua/`` as the server loads it
schema         the version of what is stored
wakeup         wakes those who wait for work
server_checks  whether the server can be trusted

All keys of a space begin with its hash tag, ``{space}:``, and so lie in one slot of a cluster:

- ``entries``: bodies by number, never rewritten while an entry lives; ``ids``: id to number; ``states``: where each is;
- ``ready:<queue>[:<node>]``: what waits, by priority, due and sequence; ``suspect:…`` and ``parked:…`` beside it;
- ``claims``: one record per claim with all it holds; ``until``: when each runs out;
- ``history``: records of attempts that ended together; ``history:<queue>``, ``trail:<id>``: where to find them;
- ``dead``, ``dead:<queue>``, ``dead_all``: dead letters, by order of death; ``live:<queue>``: what lives, by sequence;
- ``queues``: definitions and lanes; ``serving:<node>``, ``opening:<node>``, ``suspected:<node>``: queues with work;
- ``links``, ``waits``, ``linked:<id>``: who waits for whom; ``results``, ``result_ends``, ``batch_results:<batch>``;
- ``holds`` of unique ids, ``label:…`` indexes, ``locks:…``, ``receipts``, ``schedules``, ``subscriptions``, ``nodes``.
"""

from penstock.queue.drivers.redis.driver import RedisDriver, is_there, open_driver

__all__ = ["RedisDriver", "is_there", "open_driver"]
