"""The fixed SQL, by name. ``<s>`` stands for the space; lists travel as one JSON parameter, so each call is one statement.

A set-based statement is one step of the database: no row-by-row hand-over between Python and the driver on the hot
path.
"""

from __future__ import annotations

from penstock.queue.stores.sql.dialect import Dialect

# An entry as read from the live table, in the order of rows.entry_of().
ENTRY = """
    e.seq, e.id, e.queue, e.node, e.lane, e.fifo, e.state, e.generation, e.priority, e.created, e.due, e.first_due,
    e.attempt, e.fence, e.token, e.owner, e.error, e.labels, e.headers, e.unique_key, e.unique_mode, e.expires, e.codec,
    e.type, e.payload, e.claimed, e.until, e.max_attempts, e.settled, e.suspect"""

# An ended attempt or a dead letter, in the order of rows.history_of().
ENDED = """
    h.seq, h.id, h.queue, h.node, h.state, h.started, h.ended, h.generation, h.priority, h.created, h.due, h.first_due,
    h.attempt, h.fence, h.token, h.owner, h.error, h.labels, h.headers, h.unique_key, h.unique_mode, h.expires, h.codec,
    h.type, h.payload"""

_ENDED_COLUMNS = """id, queue, node, state, started, ended, generation, priority, created, due, first_due, attempt, fence,
    token, owner, error, labels, headers, unique_key, unique_mode, expires, codec, type, payload"""

_LANE = "lane, queue, node, next_due, fifo, rate_count, rate_period, rate_next, limit_label, limit_count"


def _counts(which: str) -> str:
    """(lane, ready, delayed, retrying, leased, oldest), state by state, so that each is counted on an index of its own."""
    return f"""
        SELECT e.lane, count(CASE WHEN e.due <= ?1 THEN 1 END), count(CASE WHEN e.due > ?1 AND e.attempt = 0 THEN 1 END),
               count(CASE WHEN e.due > ?1 AND e.attempt > 0 THEN 1 END), 0, min(CASE WHEN e.due <= ?1 THEN e.due END)
        FROM <s> e WHERE e.state = 0 {which} GROUP BY e.lane
        UNION ALL
        SELECT e.lane, count(CASE WHEN e.due <= ?1 THEN 1 END), 0, count(CASE WHEN e.due > ?1 THEN 1 END), 0,
               min(CASE WHEN e.due <= ?1 THEN e.due END)
        FROM <s> e WHERE e.state = 2 {which} GROUP BY e.lane
        UNION ALL
        SELECT e.lane, 0, 0, 0, count(*), NULL FROM <s> e WHERE e.state = 1 {which} GROUP BY e.lane"""


_TEMPLATES = {
    # --- lanes: the queues (and a queue's nodes) of a space
    "lane": f"SELECT {_LANE} FROM <s>_lanes WHERE queue = ? AND node = ?",
    "lane_now": f"SELECT {_LANE} FROM <s>_lanes l WHERE queue = ? AND node = ? <sharing>",
    "add_lane": """
        INSERT INTO <s>_lanes (queue, node, locked, fifo, rate_count, rate_period, limit_label, limit_count)
        VALUES (?, ?, (SELECT count(*) FROM <s>_locks WHERE queue = ?), ?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
    "lane_sooner": "UPDATE <s>_lanes SET next_due = ? WHERE lane = ? AND (next_due IS NULL OR next_due > ?)",
    # A lane that was served counts its waiting from now, so that an old backlog starves no other queue.
    "lane_served": "UPDATE <s>_lanes SET next_due = ? WHERE lane = ? AND next_due < ?",
    "lanes_sooner": """
        UPDATE <s>_lanes SET next_due = ? WHERE queue = ? AND fifo = 0 AND (next_due IS NULL OR next_due > ?)""",
    "lane_next": "UPDATE <s>_lanes SET next_due = ? WHERE lane = ?",
    "lane_rate": "UPDATE <s>_lanes SET rate_next = ? WHERE queue = ? AND node = ''",
    # The head of a FIFO lane decides; while it is leased nothing can be claimed.
    "fifo_next": """
        UPDATE <s>_lanes SET next_due =
            (SELECT CASE WHEN e.state = 1 THEN NULL ELSE e.due END FROM <s> e
             WHERE e.lane = <s>_lanes.lane AND e.fifo = 1 ORDER BY e.seq LIMIT 1)
        WHERE <ints lane ?>""",
    # The earliest due time per priority, found by hopping from priority to priority: cost per priority, not per entry.
    "lane_heads": """
        WITH RECURSIVE hop(priority) AS (
            SELECT (SELECT priority FROM <s> WHERE lane = ?1 AND state = 0 ORDER BY priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT e.priority FROM <s> e WHERE e.lane = ?1 AND e.state = 0 AND e.priority < hop.priority
                    ORDER BY e.priority DESC LIMIT 1) FROM hop WHERE hop.priority IS NOT NULL)
        SELECT hop.priority, (SELECT e.due FROM <s> e WHERE e.lane = ?1 AND e.state = 0 AND e.priority = hop.priority
                              ORDER BY e.due LIMIT 1)
        FROM hop WHERE hop.priority IS NOT NULL""",
    "lane_suspect": "SELECT min(due) FROM <s> WHERE state = 2 AND lane = ?",
    "lane_holds_any": "SELECT 1 FROM <s> e WHERE e.queue = ? LIMIT 1",
    "define": """
        UPDATE <s>_lanes SET fifo = ?, rate_count = ?, rate_period = ?, limit_label = ?, limit_count = ?, rate_next = NULL
        WHERE queue = ?""",
    # --- putting
    "insert": """
        INSERT INTO <s> (id, queue, node, lane, fifo, state, generation, priority, created, due, first_due, attempt, fence, labels, headers,
                         unique_key, unique_mode, expires, codec, type, payload)
        VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
    "replace": """
        UPDATE <s> SET payload = ?, codec = ?, type = ?, labels = ?, headers = ?, priority = ?, due = ?, first_due = ?,
                       expires = ?, generation = generation + CASE WHEN attempt > 0 THEN 1 ELSE 0 END, attempt = 0, error = NULL, state = 0,
                       suspect = 0 WHERE seq = ?""",
    "known_live": """
        SELECT e.queue, e.payload, e.due FROM <s> e WHERE e.id = ?""",
    "known_ended": """
        SELECT queue, payload, due FROM (
            SELECT queue, payload, due, generation FROM <s>_dead WHERE id = ?1
            UNION ALL SELECT queue, payload, due, generation FROM <s>_history WHERE id = ?1) known
        ORDER BY generation DESC, payload IS NULL LIMIT 1""",
    "unique_holder": "SELECT id, until FROM <s>_unique WHERE queue = ? AND unique_key = ?",
    "unique_holder_now": "SELECT id, until FROM <s>_unique WHERE queue = ? AND unique_key = ? <locking>",
    "unique_hold": """
        INSERT INTO <s>_unique (queue, unique_key, id, until) VALUES (?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
    "unique_take": "UPDATE <s>_unique SET id = ?, until = ? WHERE queue = ? AND unique_key = ? AND until = ?",
    "unique_release": "DELETE FROM <s>_unique WHERE queue = ? AND unique_key = ? AND id = ? AND until IS NULL",
    "unique_sweep": "DELETE FROM <s>_unique WHERE until <= ?",
    # Labels an id ever had, also those of its history rows: an index of candidates; the row's own labels decide.
    "add_label": "INSERT INTO <s>_labels (name, value, id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
    "drop_labels": "DELETE FROM <s>_labels WHERE id = ?",
    # --- claiming
    "ready_named": f"""
        SELECT {_LANE} FROM <s>_lanes WHERE queue IN (<names>) AND node IN ('', ?)
        AND locked = 0 AND next_due <= ? ORDER BY next_due LIMIT ?""",
    "ready_listed": f"""
        SELECT {_LANE} FROM <s>_lanes WHERE <texts queue ?> AND node IN ('', ?)
        AND locked = 0 AND next_due <= ? ORDER BY next_due LIMIT ?""",
    "ready_family": f"""
        SELECT {_LANE} FROM <s>_lanes WHERE locked = 0 AND next_due IS NOT NULL AND next_due <= ? AND node IN ('', ?)
        AND queue >= ? AND queue < ? ORDER BY next_due LIMIT ?""",
    "next_named": """
        SELECT min(next_due) FROM <s>_lanes WHERE <texts queue ?> AND node IN ('', ?)
        AND locked = 0""",
    "next_family": """
        SELECT next_due FROM <s>_lanes WHERE locked = 0 AND next_due IS NOT NULL AND node IN ('', ?)
        AND queue >= ? AND queue < ? ORDER BY next_due LIMIT 1""",
    # In the order of claiming.Candidate.
    "candidates": """
        SELECT e.seq, e.id, e.generation, e.priority, e.created, e.due, e.first_due, e.attempt, e.fence, e.error, e.labels,
               e.headers, e.unique_key, e.unique_mode, e.expires, e.codec, e.type, e.payload FROM <s> e
        WHERE e.lane = ? AND e.state = 0 AND e.priority = ? AND e.due <= ? AND (e.due, e.seq) > (?, ?)
        ORDER BY e.due, e.seq LIMIT ? <skipping e>""",
    "fifo_heads": f"""
        SELECT {ENTRY} FROM <s> e WHERE e.seq IN (
            SELECT (SELECT f.seq FROM <s> f WHERE f.lane = l.lane AND f.fifo = 1 ORDER BY f.seq LIMIT 1)
            FROM <s>_lanes l WHERE <ints l.lane ?>)
        AND e.state = 0 AND e.due <= ? <locking>""",
    "suspects": f"""
        SELECT {ENTRY} FROM <s> e JOIN <s>_lanes l ON l.lane = e.lane
        WHERE e.state = 2 AND e.due <= ? AND l.locked = 0 AND e.node IN ('', ?)
        AND (e.due > ? OR (e.due = ? AND e.seq > ?)) ORDER BY e.due, e.seq LIMIT 100 <skipping e>""",
    "lease": """
        UPDATE <s> SET state = 1, attempt = attempt + 1, token = <token ?>, fence = fence + 1, owner = ?,
                       claimed = ?, until = ?, max_attempts = ? WHERE <ints seq ?>""",
    "leased_by": f"""
        SELECT {ENTRY} FROM <s> e
        WHERE e.state = 1 AND e.owner = ? AND e.token LIKE ? ORDER BY e.seq""",
    "label_in_flight": """
        SELECT count(*) FROM <s>_labels x JOIN <s> e ON e.id = x.id
        WHERE x.name = ? AND x.value = ? AND e.state = 1 AND e.queue = ?
        AND <label e.labels x.name> = x.value""",
    # --- settling
    "by_seq": f"SELECT {ENTRY} FROM <s> e WHERE e.seq = ? <locking>",
    "by_id": f"SELECT {ENTRY} FROM <s> e WHERE e.id = ? <locking>",
    "due_of": "SELECT due FROM <s> WHERE id = ?",
    # Many plain successes at once: [[seq, token, started], ...]; the number of rows says whether all were current.
    "finish_many": f"""
        INSERT INTO <s>_history ({_ENDED_COLUMNS})
        SELECT e.id, e.queue, e.node, 'done', coalesce(j.started, e.claimed), ?2, e.generation, e.priority, e.created, e.due,
               e.first_due, e.attempt, e.fence, e.token, e.owner, NULL, e.labels, e.headers, e.unique_key, e.unique_mode,
               e.expires, e.codec, e.type, e.payload
        FROM <settled ?1> j JOIN <s> e ON e.seq = j.seq WHERE e.token = j.token AND e.state = 1""",
    "finish_one": f"""
        INSERT INTO <s>_history ({_ENDED_COLUMNS})
        SELECT e.id, e.queue, e.node, 'done', coalesce(?, e.claimed), ?, e.generation, e.priority, e.created, e.due, e.first_due,
               e.attempt, e.fence, e.token, e.owner, NULL, e.labels, e.headers, e.unique_key, e.unique_mode, e.expires,
               e.codec, e.type, e.payload
        FROM <s> e WHERE e.seq = ? AND e.token = ? AND e.state = 1""",
    "delete_many": "DELETE FROM <s> WHERE <ints seq ?>",
    "delete": "DELETE FROM <s> WHERE seq = ?",
    "to_history": f"""
        INSERT INTO <s>_history ({_ENDED_COLUMNS})
        SELECT e.id, e.queue, e.node, ?, coalesce(?, e.claimed), ?, e.generation, e.priority, e.created, e.due, e.first_due, e.attempt + ?, e.fence,
               e.token, e.owner, ?, e.labels, e.headers, e.unique_key, e.unique_mode, e.expires, e.codec, e.type,
               CASE WHEN ? THEN e.payload END
        FROM <s> e WHERE e.seq = ?""",
    "to_dead": f"""
        INSERT INTO <s>_dead ({_ENDED_COLUMNS})
        SELECT e.id, e.queue, e.node, 'dead', coalesce(?, e.claimed), ?, e.generation, e.priority, e.created, e.due, e.first_due, e.attempt, e.fence,
               e.token, e.owner, ?, e.labels, e.headers, e.unique_key, e.unique_mode, e.expires, e.codec, e.type, e.payload
        FROM <s> e WHERE e.seq = ?""",
    "give_back": """
        UPDATE <s> SET state = ?, suspect = ?, due = ?, attempt = attempt - ?, error = coalesce(?, error),
                       settled = coalesce(token, settled),
                       token = NULL, owner = NULL, claimed = NULL, until = NULL, max_attempts = NULL WHERE seq = ?""",
    # A lease that was taken away was not settled by its owner: its token must not be taken for a settled one.
    "void": "UPDATE <s> SET token = NULL WHERE seq = ?",
    "settled_as": "SELECT state FROM <s>_history WHERE id = ? AND token = ?",
    "extend": "UPDATE <s> SET until = CASE WHEN until > ? THEN until ELSE ? END WHERE seq = ? AND token = ? AND state = 1",
    # --- reaping
    "run_out": f"""
        SELECT {ENTRY} FROM <s> e
        WHERE e.state = 1 AND e.until <= ? ORDER BY e.until LIMIT ? <skipping e>""",
    "expired": f"""
        SELECT {ENTRY} FROM <s> e
        WHERE e.expires IS NOT NULL AND e.expires <= ? AND e.state <> 1 LIMIT ? <skipping e>""",
    # Those of silent nodes first, so that a node's own late ones never crowd them out.
    "overdue_sticky": """
        SELECT e.id, e.queue, e.node, e.seq, e.due FROM <s> e LEFT JOIN <s>_nodes n ON n.node = e.node
        WHERE e.node <> '' AND e.state <> 1 AND e.due <= ?1
        AND (e.node = ?3 OR n.seen IS NULL OR n.seen <= ?1) ORDER BY e.node = ?3, e.due LIMIT ?2""",
    "move_lane": "UPDATE <s> SET lane = ?, node = '' WHERE seq = ?",
    # --- changing
    "update": """
        UPDATE <s> SET payload = ?, codec = ?, type = ?, labels = ?, priority = ?, due = ?, first_due = ? WHERE seq = ?""",
    "was_cancelled": "SELECT 1 FROM <s>_history WHERE id = ? AND state = 'cancelled' LIMIT 1",
    "dead_by_id": f"SELECT {ENDED} FROM <s>_dead h WHERE h.id = ? <locking>",
    "last_by_id": f"""
        SELECT {ENDED} FROM <s>_history h WHERE h.id = ?1 AND h.payload IS NOT NULL
        AND h.generation = (SELECT max(generation) FROM <s>_history WHERE id = ?1)""",
    "delete_dead": "DELETE FROM <s>_dead WHERE seq = ?",
    "delete_history": "DELETE FROM <s>_history WHERE seq = ?",
    # --- history
    # Rows enter in the order they end, so the oldest are the first: no index on the time is needed.
    "oldest": "SELECT h.seq, h.id, h.ended FROM <s>_history h ORDER BY h.seq LIMIT ? <skipping h>",
    "known_elsewhere": """
        SELECT EXISTS (SELECT 1 FROM <s> WHERE id = ?1) OR EXISTS (SELECT 1 FROM <s>_dead WHERE id = ?1)
            OR EXISTS (SELECT 1 FROM <s>_history WHERE id = ?1)""",
    # --- counting
    "lanes_between": "SELECT queue, lane, fifo FROM <s>_lanes WHERE queue >= ? AND queue < ? ORDER BY queue",
    "names_page": """
        SELECT DISTINCT queue FROM <s>_lanes WHERE queue > ? AND queue >= ? AND queue < ? ORDER BY queue LIMIT ?""",
    "counts": _counts(""),
    "counts_of": _counts("AND <ints e.lane ?2>"),
    "dead_between": "SELECT queue, count(*) FROM <s>_dead WHERE queue >= ? AND queue < ? GROUP BY queue",
    # --- locks
    "set_lock": """
        INSERT INTO <s>_locks (queue, holder, reason, since) VALUES (?, ?, ?, ?)
        ON CONFLICT (queue, holder) DO UPDATE SET reason = excluded.reason""",
    "hold_lanes": "SELECT lane FROM <s>_lanes WHERE queue = ? ORDER BY lane <locking>",
    "drop_lock": "DELETE FROM <s>_locks WHERE queue = ? AND holder = ?",
    "mark_locked": """
        UPDATE <s>_lanes SET locked = (SELECT count(*) FROM <s>_locks k WHERE k.queue = ?1) WHERE queue = ?1""",
    "locks": "SELECT queue, holder, reason, since FROM <s>_locks ORDER BY queue, holder",
    "locks_between": """
        SELECT queue, holder, reason, since FROM <s>_locks WHERE queue >= ? AND queue < ? ORDER BY queue, holder""",
    "locks_of": "SELECT queue, holder, reason, since FROM <s>_locks WHERE queue = ? ORDER BY holder",
    # --- schedules, subscriptions, nodes
    "schedule": "SELECT version, next_fire, definition FROM <s>_schedules WHERE name = ? <locking>",
    "schedules": "SELECT next_fire, definition FROM <s>_schedules ORDER BY name",
    "set_schedule": """
        INSERT INTO <s>_schedules (name, version, next_fire, definition) VALUES (?, ?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET version = excluded.version, next_fire = excluded.next_fire,
                                         definition = excluded.definition""",
    "move_schedule": "UPDATE <s>_schedules SET next_fire = ? WHERE name = ? AND next_fire = ? AND version = ?",
    "drop_schedule": "DELETE FROM <s>_schedules WHERE name = ?",
    "subscriptions": "SELECT name, queue, types FROM <s>_subscriptions ORDER BY name",
    "subscribe": """
        INSERT INTO <s>_subscriptions (name, queue, types) VALUES (?, ?, ?)
        ON CONFLICT (name) DO UPDATE SET queue = excluded.queue, types = excluded.types""",
    "unsubscribe": "DELETE FROM <s>_subscriptions WHERE name = ?",
    "beat": """
        INSERT INTO <s>_nodes (node, seen) VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET seen = excluded.seen""",
    "nodes": "SELECT node, seen FROM <s>_nodes ORDER BY node",
    # --- answers of calls that may be repeated
    "answer": "SELECT value FROM <s>_meta WHERE name = ?",
    "keep_answer": "INSERT INTO <s>_meta (name, value) VALUES (?, ?)",
    "forget_answers": "DELETE FROM <s>_meta WHERE name >= ? AND name < ?",
    # --- documents
    "document": "SELECT version, value FROM <s>_documents WHERE name = ? <locking>",
    "documents": """
        SELECT name, value, version, changed FROM <s>_documents
        WHERE name >= ? AND name < ? AND changed >= ? ORDER BY name""",
    "write_document": """
        INSERT INTO <s>_documents (name, version, changed, value) VALUES (?, 1, ?, ?)
        ON CONFLICT (name) DO UPDATE SET version = <s>_documents.version + 1, changed = excluded.changed,
                                         value = excluded.value""",
    "new_document": """
        INSERT INTO <s>_documents (name, version, changed, value) VALUES (?, 1, ?, ?)
        ON CONFLICT DO NOTHING""",
    "change_document": """
        UPDATE <s>_documents SET version = version + 1, changed = ?, value = ? WHERE name = ? AND version = ?""",
    "drop_document": "DELETE FROM <s>_documents WHERE name = ?",
    "drop_document_at": "DELETE FROM <s>_documents WHERE name = ? AND version = ?",
}


# What a database with many writers says differently; see server_claiming.py.
_HEAD = """(SELECT e.due FROM <s> e WHERE e.lane = l.lane AND e.state = 0 ORDER BY e.priority DESC, e.due LIMIT 1)"""
FREE = "l.locked = 0 AND NOT EXISTS (SELECT 1 FROM <s>_locks k WHERE k.queue = l.queue)"
_LANE_L = ", ".join(f"l.{name}" for name in _LANE.split(", "))

SERVER = {
    "lock_many": "SELECT e.seq, e.token FROM <s> e WHERE <ints e.seq ?> AND e.state = 1 ORDER BY e.seq <locking>",
    "held_named": f"SELECT {_LANE_L}, {_HEAD} FROM <s>_lanes l WHERE <texts l.queue ?> AND l.node IN ('', ?)",
    "held_lanes": f"SELECT {_LANE_L}, {_HEAD} FROM <s>_lanes l WHERE <ints l.lane ?>",
    # Lanes with waiting entries, found by hopping from lane to lane: cost per queue that holds something.
    "held_family": """
        WITH RECURSIVE hop(lane) AS (
            SELECT (SELECT e.lane FROM <s> e WHERE e.state = 0 ORDER BY e.lane LIMIT 1)
            UNION ALL
            SELECT (SELECT e.lane FROM <s> e WHERE e.state = 0 AND e.lane > hop.lane ORDER BY e.lane LIMIT 1)
            FROM hop WHERE hop.lane IS NOT NULL)
        SELECT l.lane FROM hop JOIN <s>_lanes l ON l.lane = hop.lane
        WHERE l.queue >= ? AND l.queue < ? AND l.node IN ('', ?)""",
    "share_lanes": f"SELECT l.lane FROM <s>_lanes l WHERE <texts l.queue ?> AND {FREE} ORDER BY l.lane <sharing>",
    "await_lanes": f"SELECT l.lane FROM <s>_lanes l WHERE <texts l.queue ?> AND {FREE} ORDER BY l.lane <locking>",
    "take_lanes": f"SELECT l.lane FROM <s>_lanes l WHERE <texts l.queue ?> AND {FREE} ORDER BY l.lane <skipping l>",
    "fifo_heads": f"""
        SELECT {ENTRY} FROM <s> e WHERE e.seq IN (
            SELECT (SELECT f.seq FROM <s> f WHERE f.lane = l.lane AND f.fifo = 1 ORDER BY f.seq LIMIT 1)
            FROM <s>_lanes l WHERE <ints l.lane ?>)
        AND e.state = 0 AND e.due <= ?
        AND NOT EXISTS (SELECT 1 FROM <s> x WHERE x.lane = e.lane AND x.fifo = 1 AND x.state = 1) <locking>""",
    # A put that began before the queue became FIFO and was committed afterwards is not lined up.
    "fifo_lost": """
        SELECT l.lane FROM <s>_lanes l WHERE <ints l.lane ?>
        AND NOT EXISTS (SELECT 1 FROM <s> f WHERE f.lane = l.lane AND f.fifo = 1)""",
    "fifo_adopt": "UPDATE <s> SET fifo = 1 WHERE <ints lane ?> AND fifo = 0",
    "fifo_dues": """
        SELECT e.due FROM <s> e WHERE e.seq IN (
            SELECT (SELECT f.seq FROM <s> f WHERE f.lane = l.lane AND f.fifo = 1 ORDER BY f.seq LIMIT 1)
            FROM <s>_lanes l WHERE <ints l.lane ?>) AND e.state <> 1""",
    "begin_leases": "UPDATE <s> SET claimed = ?, until = ? WHERE <ints seq ?> AND state = 1",
    "next_suspect": "SELECT min(due) FROM <s> WHERE state = 2",
    "any_suspect": "SELECT 1 FROM <s> WHERE state = 2 AND due <= ? LIMIT 1",
    "suspects": f"""
        SELECT {ENTRY} FROM <s> e JOIN <s>_lanes l ON l.lane = e.lane
        WHERE e.state = 2 AND e.due <= ? AND {FREE} AND e.node IN ('', ?)
        AND (e.due > ? OR (e.due = ? AND e.seq > ?)) ORDER BY e.due, e.seq LIMIT 100 <skipping e>""",
    "overdue_sticky": """
        SELECT e.id, e.queue, e.node, e.seq, e.due FROM <s> e LEFT JOIN <s>_nodes n ON n.node = e.node
        WHERE e.node <> '' AND e.state <> 1 AND e.due <= ?1
        AND (e.node = ?3 OR n.seen IS NULL OR n.seen <= ?1) ORDER BY e.node = ?3, e.due LIMIT ?2 <skipping e>""",
}


class Statements:
    """The statements of one space in one dialect, as attributes."""

    def __init__(self, space: str, dialect: Dialect) -> None:
        """Fill in the space, which was checked to be a plain identifier, and the dialect's own words."""
        self.space = space
        self.dialect = dialect
        templates = {**_TEMPLATES, **dialect.overrides}
        self._texts = {name: self.fill(text) for name, text in templates.items()}

    def __getattr__(self, name: str) -> str:
        """A statement by its name."""
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(name) from None

    def fill(self, text: str) -> str:
        """A template in the dialect, with the space filled in."""
        return self.dialect.translated(" ".join(text.split()).replace("<s>", self.space))
