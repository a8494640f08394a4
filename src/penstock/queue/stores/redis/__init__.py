"""Queues on a Redis or Valkey server: every call is one script, so every step is atomic and one round trip.

``store`` is the handle, ``records`` what is sent and read, ``scripts`` the Lua texts of ``lua/``, ``wire`` the
connections and what their errors mean, ``together`` calls that travel as one, ``bell`` the wake-up, ``server`` what is
asked of the server at the opening, ``moving`` what is carried to and from another store.

All keys of a space begin with its hash tag, ``{space}:``, and so lie in one slot of a cluster:

- ``live`` entries by id, ``payloads`` by sequence number, ``all:<queue>`` ids by sequence;
- ``waiting:<queue>:<node>:<priority>`` by due time, ``suspect:…`` and ``parked:…`` beside it, ``leases`` by end;
- ``queues``: definitions and lanes; ``ready:<node>``, ``opens:<node>`` and ``suspects:<node>`` line the queues up;
- ``rows``, ``ended``, ``trail:<id>``, ``history:<queue>``: the history; ``dead``, ``dead:<queue>``: dead letters;
- ``holds`` of unique ids, ``label:…`` indexes, ``locks:…``, ``schedules``, ``subscriptions``, ``nodes``.
"""

from penstock.queue.stores.redis.store import RedisStore, is_there, open_store

__all__ = ["RedisStore", "is_there", "open_store"]
