-- The statements of the SQLite driver, by name. {space} is replaced by the space's name; nothing else is.
-- A list is JSON; a statement after "-- each" runs once for each value of its lists. Whoever writes has the whole file to
-- himself, so nothing is locked row by row. Nothing here needs more than SQLite 3.31: no RETURNING, no ->>.

-- === put ================================================================================================================

-- name: put_entry
-- The body of one new entry without unique id or labels. Nothing happens if the queue has no row yet, if it is FIFO and
-- the entry does not fit it, or if the id is taken.
INSERT INTO {space} (body, id, seq, number, priority, created, first_due, headers, expires, codec, type, payload)
SELECT (SELECT last + 1 FROM {space}_last_entry), %(id)s, (SELECT last + 1 FROM {space}_last_entry), q.number, %(priority)s,
       %(moment)s, %(due)s, %(headers)s, %(expires)s, %(codec)s, %(type)s, %(payload)s
FROM {space}_queues q
WHERE q.queue = %(queue)s AND q.node = %(node)s AND (q.fifo = 0 OR (%(priority)s = 0 AND q.node = ''))
ON CONFLICT (id, version) DO NOTHING

-- name: put_waiting
-- It waits: the last body is the one that has just been written.
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires)
SELECT b.seq, b.body, b.number, b.priority, b.first_due, 1, 0, 0, 0, q.fifo, b.expires IS NOT NULL, b.expires
FROM {space} b CROSS JOIN {space}_queues q ON q.number = b.number WHERE b.body = (SELECT max(body) FROM {space})

-- name: put_many
-- New entries in their order. Returns how many did not exist before: those behind the mark.
INSERT OR REPLACE INTO {space}_meta (name, value) SELECT 'put', last FROM {space}_last_entry;
-- each
INSERT INTO {space} (body, id, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires,
                     codec, type, payload)
VALUES ((SELECT last + 1 FROM {space}_last_entry), %(ids)s, (SELECT last + 1 FROM {space}_last_entry), %(numbers)s,
        %(priorities)s, %(moment)s, %(dues)s, %(labels)s, %(headers)s, %(unique_keys)s, %(unique_modes)s, %(expires)s,
        %(codecs)s, %(types)s, %(payloads)s) ON CONFLICT (id, version) DO NOTHING;
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires)
SELECT b.seq, b.body, b.number, b.priority, b.first_due, 1, 0, 0, 0, q.fifo,
       b.expires IS NOT NULL OR substr(b.unique_mode, 1, 7) IS 'started', b.expires
FROM {space} b CROSS JOIN {space}_queues q ON q.number = b.number
WHERE b.body > (SELECT CAST(value AS INTEGER) FROM {space}_meta WHERE name = 'put') ORDER BY b.body

-- name: known
-- The entry that has this id, whether it lives or has ended.
SELECT q.queue, b.payload, b.body, b.seq FROM {space} b JOIN {space}_queues q ON q.number = b.number
WHERE b.id = %(id)s AND b.version = 0

-- name: is_live
SELECT EXISTS (SELECT 1 FROM {space}_ready WHERE seq = %(seq)s)

-- name: add_labels
-- each
INSERT INTO {space}_labels (name, value, id) VALUES (%(names)s, %(values)s, %(ids)s) ON CONFLICT DO NOTHING

-- name: hold_unique
INSERT INTO {space}_unique (queue, unique_key, id, until) VALUES (%(queue)s, %(key)s, %(id)s, %(until)s)
ON CONFLICT DO NOTHING

-- name: unique_holder
SELECT id, until FROM {space}_unique WHERE queue = %(queue)s AND unique_key = %(key)s

-- name: unique_holder_now
SELECT id, until FROM {space}_unique WHERE queue = %(queue)s AND unique_key = %(key)s

-- name: take_unique
-- Take over a hold whose period is over.
UPDATE {space}_unique SET id = %(id)s, until = %(until)s
WHERE queue = %(queue)s AND unique_key = %(key)s AND until = %(held_until)s

-- name: due_of
SELECT r.due FROM {space} b JOIN {space}_ready r ON r.seq = b.seq WHERE b.id = %(id)s AND b.version = 0

-- name: keep_version
-- Keep the body that ended attempts saw, under the next version, and give the entry a body of its own again.
UPDATE {space} SET version = (SELECT max(v.version) + 1 FROM {space} v WHERE v.id = %(id)s)
WHERE body = %(body)s AND EXISTS (SELECT 1 FROM {space}_history h WHERE h.body = %(body)s);
INSERT INTO {space} (body, id, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires,
                     codec, type, payload)
SELECT (SELECT last + 1 FROM {space}_last_entry), b.id, b.seq, b.number, b.priority, b.created, b.first_due, b.labels,
       b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM {space} b WHERE b.body = %(body)s AND b.version > 0;
SELECT body FROM {space} WHERE id = %(id)s AND version = 0 AND body <> %(body)s

-- name: change_body
UPDATE {space} SET payload = %(payload)s, codec = %(codec)s, type = %(type)s, labels = %(labels)s, headers = %(headers)s,
    priority = %(priority)s, first_due = %(first_due)s, expires = %(expires)s WHERE body = %(body)s

-- name: change_waiting
UPDATE {space}_ready SET body = %(body)s, priority = %(priority)s, due = %(due)s, generation = %(generation)s,
    attempt = %(attempt)s, error = %(error)s, suspect = %(suspect)s, expires = %(expires)s, special = %(special)s
WHERE seq = %(seq)s

-- name: lock_waiting
SELECT 1 FROM {space}_ready WHERE seq = %(seq)s AND record IS NULL

-- name: lock_claimed
SELECT record FROM {space}_ready WHERE seq = %(seq)s AND record IS NOT NULL

-- name: live_by_seq
SELECT * FROM {space}_live WHERE seq = %(seq)s

-- name: last_end
-- The latest generation of an ended entry and the highest fence it had.
SELECT h.number, h.state, h.generation, h.fence, b.body, b.id, b.unique_key, b.unique_mode, b.priority
FROM {space} v CROSS JOIN {space}_history h ON h.body = v.body CROSS JOIN {space} b ON b.id = v.id AND b.version = 0
WHERE v.id = %(id)s ORDER BY h.generation DESC, h.fence DESC, h.seq DESC LIMIT 1

-- name: dead_by_id
SELECT d.number, 'dead', d.generation, d.fence, b.body, b.id, b.unique_key, b.unique_mode, b.priority, d.seq
FROM {space} b CROSS JOIN {space}_dead d ON d.body = b.body WHERE b.id = %(id)s

-- name: replay
-- A new place at the end of its queue, as the next generation.
INSERT OR REPLACE INTO {space}_meta (name, value) SELECT 'last.entry', last + 1 FROM {space}_last_entry;
UPDATE {space} SET seq = (SELECT last FROM {space}_last_entry), first_due = %(due)s, expires = NULL WHERE body = %(body)s;
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special)
SELECT seq, body, %(number)s, priority, %(due)s, %(generation)s, 0, %(fence)s, 0, %(fifo)s, substr(unique_mode, 1, 7) IS 'started'
FROM {space} WHERE body = %(body)s

-- === queues =============================================================================================================

-- name: queue_row
SELECT number, queue, node, fifo, in_flight, rate_count, rate_period, rate_next, limit_label, limit_count
FROM {space}_queues WHERE queue = %(queue)s AND node = %(node)s

-- name: queue_of_number
SELECT queue, node FROM {space}_queues WHERE number = %(number)s

-- name: queue_row_now
SELECT number, queue, node, fifo, in_flight, rate_count, rate_period, rate_next, limit_label, limit_count
FROM {space}_queues WHERE queue = %(queue)s AND node = %(node)s

-- name: add_queue
INSERT INTO {space}_queues (queue, node, locked, fifo, rate_count, rate_period, limit_label, limit_count)
VALUES (%(queue)s, %(node)s, (SELECT count(*) FROM {space}_locks WHERE queue = %(queue)s), %(fifo)s, %(rate_count)s,
        %(rate_period)s, %(limit_label)s, %(limit_count)s)
ON CONFLICT DO NOTHING

-- name: lock_queue_rows
SELECT number FROM {space}_queues WHERE queue = %(queue)s ORDER BY number

-- name: define_queue
UPDATE {space}_queues SET fifo = %(fifo)s, rate_count = %(rate_count)s, rate_period = %(rate_period)s, rate_next = NULL,
    limit_label = %(limit_label)s, limit_count = %(limit_count)s WHERE queue = %(queue)s

-- name: queue_holds_any
SELECT 1 FROM {space}_queues q WHERE q.queue = %(queue)s AND (
    EXISTS (SELECT 1 FROM {space}_ready r WHERE r.number = q.number AND r.record IS NULL AND r.suspect = 0)
    OR EXISTS (SELECT 1 FROM {space}_ready r WHERE r.number = q.number AND r.record IS NULL AND r.suspect = 1)
    OR EXISTS (SELECT 1 FROM {space}_claims c WHERE c.number = q.number)) LIMIT 1

-- name: count_in_flight_by
-- From now on what is held in a queue tells its label value.
UPDATE {space}_ready SET limit_value = (
    SELECT j.value FROM {space} b, json_each(b.labels) j WHERE b.body = {space}_ready.body AND j.key = %(label)s)
WHERE number IN (SELECT value FROM json_each(%(numbers)s)) AND record IS NOT NULL

-- name: set_lock
INSERT INTO {space}_locks (queue, holder, reason, since) VALUES (%(queue)s, %(holder)s, %(reason)s, %(since)s)
ON CONFLICT (queue, holder) DO UPDATE SET reason = excluded.reason

-- name: drop_lock
DELETE FROM {space}_locks WHERE queue = %(queue)s AND holder = %(holder)s

-- name: mark_locked
UPDATE {space}_queues SET locked = (SELECT count(*) FROM {space}_locks k WHERE k.queue = %(queue)s) WHERE queue = %(queue)s

-- name: locks
SELECT queue, holder, reason, since FROM {space}_locks
WHERE queue >= %(first)s AND queue < %(last)s ORDER BY queue, holder

-- === the round trip on one plain queue ==================================================================================
-- One entry at a time is what small workers do all day: what a list needs, a table of its values, costs more there than
-- the work itself. So there is a statement for one entry beside that for many, and nothing is joined that can be looked up.

-- name: end_done
-- 1. Successes of one claim go to the history, in the order given. Returns how many it still held. started has 20 digits for each.
INSERT INTO {space}_history (seq, body, number, generation, attempt, state, due, started, ended, fence, claim, owner)
SELECT (SELECT last FROM {space}_last_history) + 1 + g.key, r.body, r.number, r.generation, r.attempt, 'done', r.due,
       coalesce(nullif(CAST(CAST(substr(%(started)s, g.key * 20 + 1, 20) AS TEXT) AS INTEGER), 0), c.claimed), %(moment)s,
       r.fence, c.claim, c.owner
FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value CROSS JOIN {space}_claims c ON c.record = r.record
WHERE c.claim = %(claim)s AND r.special < 2

-- name: end_one_done
INSERT INTO {space}_history (seq, body, number, generation, attempt, state, due, started, ended, fence, claim, owner)
SELECT (SELECT last FROM {space}_last_history) + 1, r.body, r.number, r.generation, r.attempt, 'done', r.due,
       coalesce(%(started)s, c.claimed), %(moment)s, r.fence, c.claim, c.owner
FROM {space}_ready r CROSS JOIN {space}_claims c ON c.record = r.record WHERE r.seq = %(seq)s AND c.claim = %(claim)s
AND r.special < 2

-- name: held_of
-- Where it did not hold all of them: those that it holds.
SELECT r.seq, r.body FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value
CROSS JOIN {space}_claims c ON c.record = r.record WHERE c.claim = %(claim)s AND r.special < 2

-- name: drop_claim
-- 2. The record of a claim that held exactly these.
DELETE FROM {space}_claims WHERE record = (SELECT r.record FROM {space}_ready r WHERE r.seq = %(seq)s) AND seqs = %(seqs)s

-- name: drop_claim_of_one
-- The record of a claim that held this one only, at first or by now.
DELETE FROM {space}_claims WHERE record = (SELECT r.record FROM {space}_ready r WHERE r.seq = %(seq)s)
AND (seqs = %(seqs)s OR NOT EXISTS (
    SELECT 1 FROM json_each({space}_claims.seqs) j CROSS JOIN {space}_ready r ON r.seq = j.value
    WHERE r.record = {space}_claims.record AND r.seq <> %(seq)s))

-- name: leave
DELETE FROM {space}_ready WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: leave_one
DELETE FROM {space}_ready WHERE seq = %(seq)s

-- name: plain_due
-- 3. The due entries of the highest priority (below one that was looked at) in a queue that is plain: neither locked, FIFO
--    nor limited, nothing suspect due in it, nothing sticky in it for this node.
SELECT r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence, r.suspect, r.error,
       b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload, r.number, r.special
FROM {space}_ready r CROSS JOIN {space} b ON b.body = r.body
WHERE r.number = (
    SELECT q.number FROM {space}_queues q WHERE q.queue = %(queue)s AND q.node = '' AND q.locked = 0 AND q.fifo = 0
    AND q.rate_count IS NULL AND q.limit_label IS NULL
    AND NOT EXISTS (SELECT 1 FROM {space}_ready x CROSS JOIN {space}_queues n ON n.number = x.number
                    WHERE x.record IS NULL AND x.suspect = 1 AND x.due <= %(moment)s AND n.queue = q.queue
                    AND n.node IN ('', %(node)s))
    AND NOT EXISTS (SELECT 1 FROM {space}_queues n CROSS JOIN {space}_ready x ON x.number = n.number
                    WHERE n.queue = q.queue AND n.node = %(node)s AND n.node <> '' AND x.record IS NULL AND x.suspect = 0))
AND r.record IS NULL AND r.suspect = 0 AND r.priority = (
    SELECT x.priority FROM {space}_ready x
    WHERE x.number = (SELECT q.number FROM {space}_queues q WHERE q.queue = %(queue)s AND q.node = '')
    AND x.record IS NULL AND x.suspect = 0 AND x.priority < %(below)s ORDER BY x.priority DESC LIMIT 1)
AND r.due <= %(moment)s ORDER BY r.due, r.seq LIMIT %(limit)s

-- name: plain_queue
-- Where that gave less than wanted: the queue's number if it is plain, and its priorities with their next due times.
WITH RECURSIVE
line (number) AS (
    SELECT q.number FROM {space}_queues q WHERE q.queue = %(queue)s AND q.node = '' AND q.locked = 0 AND q.fifo = 0
    AND q.rate_count IS NULL AND q.limit_label IS NULL
    AND NOT EXISTS (SELECT 1 FROM {space}_ready x CROSS JOIN {space}_queues n ON n.number = x.number
                    WHERE x.record IS NULL AND x.suspect = 1 AND x.due <= %(moment)s AND n.queue = q.queue
                    AND n.node IN ('', %(node)s))
    AND NOT EXISTS (SELECT 1 FROM {space}_queues n CROSS JOIN {space}_ready x ON x.number = n.number
                    WHERE n.queue = q.queue AND n.node = %(node)s AND n.node <> '' AND x.record IS NULL AND x.suspect = 0)),
heads (priority) AS (
    SELECT (SELECT x.priority FROM {space}_ready x WHERE x.number = line.number AND x.record IS NULL AND x.suspect = 0
            ORDER BY x.priority DESC LIMIT 1) FROM line
    UNION ALL
    SELECT (SELECT x.priority FROM {space}_ready x WHERE x.number = (SELECT number FROM line) AND x.record IS NULL
            AND x.suspect = 0 AND x.priority < heads.priority ORDER BY x.priority DESC LIMIT 1)
    FROM heads WHERE heads.priority IS NOT NULL)
SELECT line.number, heads.priority,
       (SELECT x.due FROM {space}_ready x WHERE x.number = line.number AND x.record IS NULL AND x.suspect = 0
        AND x.priority = heads.priority AND x.due > %(moment)s ORDER BY x.due LIMIT 1)
FROM line CROSS JOIN heads

-- name: add_claim
-- 4. One record for all of them, whose number is the highest now.
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, seqs)
VALUES (%(claim)s, %(number)s, %(owner)s, %(claimed)s, %(until)s, %(max_attempts)s, %(seqs)s)

-- name: hold
UPDATE {space}_ready SET record = (SELECT max(record) FROM {space}_claims), attempt = attempt + 1, fence = fence + 1
WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: hold_one
UPDATE {space}_ready SET record = (SELECT max(record) FROM {space}_claims), attempt = attempt + 1, fence = fence + 1
WHERE seq = %(seq)s

-- === claim ==============================================================================================================

-- name: claimed_before
-- What a claim holds whose reply was lost.
SELECT l.* FROM {space}_claims c CROSS JOIN json_each(c.seqs) j CROSS JOIN {space}_live l ON l.seq = j.value
WHERE c.claim = %(claim)s AND c.owner = %(owner)s AND l.record = c.record ORDER BY l.seq

-- name: due_suspects
-- Suspects that may be handed out, the longest due first; those after (due, seq).
SELECT l.* FROM {space}_ready s CROSS JOIN {space}_queues q ON q.number = s.number CROSS JOIN {space}_live l ON l.seq = s.seq
WHERE s.record IS NULL AND s.suspect = 1 AND s.due <= %(moment)s AND (s.due, s.seq) > (%(after_due)s, %(after_seq)s)
AND q.node IN ('', %(node)s) AND q.locked = 0 ORDER BY s.due, s.seq LIMIT 100

-- name: next_suspect
SELECT due FROM {space}_ready WHERE record IS NULL AND suspect = 1 AND due > %(moment)s ORDER BY due, seq LIMIT 1

-- name: waiting_by_name
-- Queues asked for by name, with the due time of the first entry of each; NULL if nothing waits there.
SELECT q.number, q.queue, q.node, q.fifo, q.in_flight, q.rate_count, q.rate_period, q.rate_next, q.limit_label,
       q.limit_count, (SELECT x.due FROM {space}_ready x WHERE x.number = q.number AND x.record IS NULL AND x.suspect = 0
                       ORDER BY x.priority DESC, x.due, x.seq LIMIT 1)
FROM {space}_queues q WHERE q.queue IN (SELECT value FROM json_each(%(queues)s)) AND q.node IN ('', %(node)s)

-- name: waiting_by_number
SELECT q.number, q.queue, q.node, q.fifo, q.in_flight, q.rate_count, q.rate_period, q.rate_next, q.limit_label,
       q.limit_count, (SELECT x.due FROM {space}_ready x WHERE x.number = q.number AND x.record IS NULL AND x.suspect = 0
                       ORDER BY x.priority DESC, x.due, x.seq LIMIT 1)
FROM {space}_queues q WHERE q.number IN (SELECT value FROM json_each(%(numbers)s))

-- name: waiting_in_family
-- The queues of a family that hold something, found by hopping from queue to queue: the cost is per such queue.
WITH RECURSIVE hop (number) AS (
    SELECT (SELECT x.number FROM {space}_ready x WHERE x.record IS NULL AND x.suspect = 0 ORDER BY x.number LIMIT 1)
    UNION ALL
    SELECT (SELECT x.number FROM {space}_ready x WHERE x.record IS NULL AND x.suspect = 0 AND x.number > hop.number
            ORDER BY x.number LIMIT 1)
    FROM hop WHERE hop.number IS NOT NULL)
SELECT q.number FROM hop CROSS JOIN {space}_queues q ON q.number = hop.number
WHERE q.queue >= %(first)s AND q.queue < %(last)s AND q.node IN ('', %(node)s)

-- name: share_queues
-- Queues that may be claimed from.
SELECT number FROM {space}_queues WHERE queue IN (SELECT value FROM json_each(%(queues)s)) AND locked = 0 ORDER BY number

-- name: wait_for_queues
SELECT number FROM {space}_queues WHERE queue IN (SELECT value FROM json_each(%(queues)s)) AND locked = 0 ORDER BY number

-- name: take_free_queues
SELECT number FROM {space}_queues WHERE queue IN (SELECT value FROM json_each(%(queues)s)) AND locked = 0 ORDER BY number

-- name: heads
-- The earliest due time per priority, hopping from priority to priority.
WITH RECURSIVE heads (priority) AS (
    SELECT (SELECT x.priority FROM {space}_ready x WHERE x.number = %(number)s AND x.record IS NULL AND x.suspect = 0
            ORDER BY x.priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT x.priority FROM {space}_ready x WHERE x.number = %(number)s AND x.record IS NULL AND x.suspect = 0
            AND x.priority < heads.priority ORDER BY x.priority DESC LIMIT 1)
    FROM heads WHERE heads.priority IS NOT NULL)
SELECT heads.priority, (SELECT x.due FROM {space}_ready x WHERE x.number = %(number)s AND x.record IS NULL AND x.suspect = 0
                        AND x.priority = heads.priority ORDER BY x.due LIMIT 1)
FROM heads WHERE heads.priority IS NOT NULL

-- name: candidates
-- Due entries of one priority in their order, those after (due, seq).
SELECT r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence, r.suspect, r.error,
       b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM {space}_ready r CROSS JOIN {space} b ON b.body = r.body
WHERE r.number = %(number)s AND r.record IS NULL AND r.suspect = 0 AND r.priority = %(priority)s AND r.due <= %(moment)s
AND (r.due, r.seq) > (%(after_due)s, %(after_seq)s) ORDER BY r.due, r.seq LIMIT %(limit)s

-- name: fifo_heads
-- The first entries of FIFO queues that have none in flight.
SELECT q.number, r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence,
       r.suspect, r.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM json_each(%(numbers)s) g CROSS JOIN {space}_queues q ON q.number = g.value
CROSS JOIN {space}_ready r ON r.seq = (SELECT x.seq FROM {space}_ready x WHERE x.number = q.number AND x.record IS NULL
                                       AND x.fifo = 1 ORDER BY x.seq LIMIT 1)
CROSS JOIN {space} b ON b.body = r.body WHERE q.in_flight IS NULL

-- name: adopt_fifo
-- No put can have missed that its queue became FIFO: one at a time writes.
UPDATE {space}_ready SET fifo = 1 WHERE false AND number IN (SELECT value FROM json_each(%(numbers)s))

-- name: take
DELETE FROM {space}_ready WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: lease
-- One record, whose number is the highest now, and what it holds.
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, seqs)
VALUES (%(claim)s, %(number)s, %(owner)s, %(claimed)s, %(until)s, %(max_attempts)s, %(seqs)s);
-- each
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires,
                           error, record, limit_value)
SELECT %(seqs)s, b.body, %(number)s, b.priority, %(dues)s, %(generations)s, %(attempts)s, %(fences)s, %(suspects)s, q.fifo,
       b.expires IS NOT NULL OR substr(b.unique_mode, 1, 7) IS 'started', b.expires, %(errors)s,
       (SELECT max(record) FROM {space}_claims), %(limit_values)s
FROM {space} b CROSS JOIN {space}_queues q WHERE b.body = %(bodies)s AND q.number = %(number)s

-- name: set_in_flight
-- each
UPDATE {space}_queues SET in_flight = %(seqs)s WHERE number = %(numbers)s

-- name: spend_rate
UPDATE {space}_queues SET rate_next = %(rate_next)s WHERE queue = %(queue)s AND node = ''

-- name: label_values_in_flight
SELECT r.limit_value, count(*) FROM {space}_queues q CROSS JOIN {space}_ready r ON r.number = q.number
WHERE q.queue = %(queue)s AND r.limit_value IS NOT NULL GROUP BY r.limit_value

-- === settle =============================================================================================================

-- name: lock_claims
-- There is nothing to lock. Reading them shows whether they hold these.
SELECT 1

-- name: held
SELECT l.* FROM {space}_live l WHERE l.seq IN (SELECT value FROM json_each(%(seqs)s))
AND l.claim IN (SELECT value FROM json_each(%(claims)s))

-- name: let_go
-- Take entries out of the claims that hold them; a claim that holds nothing else goes.
DELETE FROM {space}_claims
WHERE record IN (SELECT r.record FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value)
AND NOT EXISTS (SELECT 1 FROM json_each({space}_claims.seqs) j CROSS JOIN {space}_ready r ON r.seq = j.value
                WHERE r.record = {space}_claims.record AND r.seq NOT IN (SELECT value FROM json_each(%(seqs)s)));
DELETE FROM {space}_ready WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: record_attempts
-- each
INSERT INTO {space}_history (seq, body, number, generation, attempt, state, due, started, ended, fence, claim, owner, error)
VALUES ((SELECT last + 1 FROM {space}_last_history), %(bodies)s, %(numbers)s, %(generations)s, %(attempts)s, %(states)s,
        %(dues)s, %(started)s, %(moment)s, %(fences)s, %(claims)s, %(owners)s, %(errors)s)

-- name: add_dead
-- each
INSERT INTO {space}_dead (seq, body, number, generation, attempt, due, started, ended, fence, owner, error)
VALUES ((SELECT last + 1 FROM {space}_last_dead), %(bodies)s, %(numbers)s, %(generations)s, %(attempts)s, %(dues)s,
        %(started)s, %(moment)s, %(fences)s, %(owners)s, %(errors)s)

-- name: give_back
-- each
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires,
                           error)
SELECT %(seqs)s, b.body, %(numbers)s, b.priority, %(dues)s, %(generations)s, %(attempts)s, %(fences)s, %(suspects)s,
       %(fifos)s, b.expires IS NOT NULL OR substr(b.unique_mode, 1, 7) IS 'started', b.expires, %(errors)s
FROM {space} b WHERE b.body = %(bodies)s

-- name: release_unique
-- each
DELETE FROM {space}_unique WHERE queue = %(queues)s AND unique_key = %(keys)s AND id = %(ids)s AND until IS NULL

-- name: clear_in_flight
-- each
UPDATE {space}_queues SET in_flight = NULL WHERE number = %(numbers)s AND in_flight = %(seqs)s

-- name: remember
-- each
INSERT INTO {space}_settled (claim, id, outcome, ended) VALUES (%(claims)s, %(ids)s, %(outcomes)s, %(moment)s)
ON CONFLICT DO NOTHING

-- name: settled_as
-- What became of an entry under a claim: the states of its attempts, and outcomes that left none.
SELECT h.state FROM {space} b CROSS JOIN {space}_history h ON h.body = b.body WHERE b.id = %(id)s AND h.claim = %(claim)s
UNION ALL
SELECT outcome FROM {space}_settled WHERE claim = %(claim)s AND id = %(id)s

-- name: answer
SELECT value FROM {space}_meta WHERE name = %(name)s

-- name: keep_answer
INSERT INTO {space}_meta (name, value) VALUES (%(name)s, %(value)s)

-- name: extend
-- Prolong the claims of which everything held is named; the rest is found by its absence.
UPDATE {space}_claims SET until = max(until, %(now)s + %(lease)s)
WHERE record IN (SELECT r.record FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value)
AND claim IN (SELECT value FROM json_each(%(claims)s))
AND NOT EXISTS (SELECT 1 FROM json_each({space}_claims.seqs) j CROSS JOIN {space}_ready r ON r.seq = j.value
                WHERE r.record = {space}_claims.record AND r.seq NOT IN (SELECT value FROM json_each(%(seqs)s)));
SELECT c.claim, r.seq, %(now)s + %(lease)s FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value
CROSS JOIN {space}_claims c ON c.record = r.record
WHERE c.claim IN (SELECT value FROM json_each(%(claims)s))
AND NOT EXISTS (SELECT 1 FROM json_each(c.seqs) j CROSS JOIN {space}_ready o ON o.seq = j.value
                WHERE o.record = c.record AND o.seq NOT IN (SELECT value FROM json_each(%(seqs)s)))

-- name: held_until
-- The leases as they are.
SELECT c.claim, r.seq, c.until FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value
CROSS JOIN {space}_claims c ON c.record = r.record WHERE c.claim IN (SELECT value FROM json_each(%(claims)s))

-- name: split_off
-- Move some entries of a claim to a record of their own, which the claim's token is good for too. What is moved goes to
-- the newest record of its claim that names it.
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, seqs)
SELECT c.claim, c.number, c.owner, c.claimed, c.until, c.max_attempts, (
    SELECT json_group_array(r.seq) FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value
    WHERE r.record = c.record)
FROM {space}_claims c
WHERE c.record IN (SELECT r.record FROM json_each(%(seqs)s) g CROSS JOIN {space}_ready r ON r.seq = g.value)
AND c.claim IN (SELECT value FROM json_each(%(claims)s))
AND EXISTS (SELECT 1 FROM json_each(c.seqs) j CROSS JOIN {space}_ready r ON r.seq = j.value
            WHERE r.record = c.record AND r.seq NOT IN (SELECT value FROM json_each(%(seqs)s)));
UPDATE {space}_ready SET record = (
    SELECT max(c.record) FROM {space}_claims c CROSS JOIN json_each(c.seqs) j
    WHERE c.claim = (SELECT w.claim FROM {space}_claims w WHERE w.record = {space}_ready.record)
    AND j.value = {space}_ready.seq)
WHERE seq IN (SELECT value FROM json_each(%(seqs)s))
AND record IN (SELECT c.record FROM {space}_claims c WHERE c.claim IN (SELECT value FROM json_each(%(claims)s)))

-- === reap ===============================================================================================================

-- name: run_out
-- Claims whose lease is over, the longest over first.
SELECT record, claim FROM {space}_claims WHERE until <= %(moment)s ORDER BY until LIMIT %(limit)s

-- name: held_by_record
SELECT l.* FROM {space}_claims c CROSS JOIN json_each(c.seqs) j CROSS JOIN {space}_live l ON l.seq = j.value
WHERE c.record IN (SELECT value FROM json_each(%(records)s)) AND c.claim IN (SELECT value FROM json_each(%(claims)s))
AND l.record = c.record ORDER BY c.until, l.seq

-- name: expired
SELECT seq FROM {space}_ready WHERE record IS NULL AND expires <= %(moment)s LIMIT %(limit)s

-- name: overdue_sticky
-- Sticky entries that are overdue: those of silent nodes first, so that a node's own late ones never crowd them out.
WITH waiting (number, seq, body, due) AS (
    SELECT r.number, r.seq, r.body, r.due FROM {space}_queues q CROSS JOIN {space}_ready r ON r.number = q.number
    WHERE q.node <> '' AND r.record IS NULL AND r.suspect = 0 AND r.due <= %(cutoff)s
    UNION ALL
    SELECT r.number, r.seq, r.body, r.due FROM {space}_ready r CROSS JOIN {space}_queues q ON q.number = r.number
    WHERE q.node <> '' AND r.record IS NULL AND r.suspect = 1 AND r.due <= %(cutoff)s)
SELECT b.id, q.queue, q.node, w.seq, w.due
FROM waiting w CROSS JOIN {space}_queues q ON q.number = w.number CROSS JOIN {space} b ON b.body = w.body
LEFT JOIN {space}_nodes n ON n.node = q.node
WHERE q.node = %(node)s OR n.seen IS NULL OR n.seen <= %(cutoff)s
ORDER BY q.node = %(node)s, w.due LIMIT %(limit)s

-- name: move_to_queue
UPDATE {space}_ready SET number = %(number)s WHERE seq = %(seq)s

-- name: sweep
-- Unique ids whose period is over, and what repeated calls no longer ask for.
DELETE FROM {space}_unique WHERE until <= %(moment)s;
DELETE FROM {space}_meta WHERE name >= %(first)s AND name < %(last)s;
DELETE FROM {space}_settled WHERE ended <= %(cutoff)s

-- name: oldest_history
-- Rows come in the order in which they ended, so the oldest are the first.
SELECT seq, body, ended FROM {space}_history ORDER BY seq LIMIT %(limit)s

-- name: delete_history
DELETE FROM {space}_history WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: lock_bodies
SELECT 1 WHERE false AND json_valid(%(bodies)s)

-- name: delete_unused
-- Bodies that nothing refers to any more, and labels of ids that have no other body. It gives no ids: none is left to be
-- looked after.
DELETE FROM {space}_labels
WHERE id IN (SELECT u.id FROM json_each(%(bodies)s) g CROSS JOIN {space}_unused u ON u.body = g.value)
AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = {space}_labels.id AND b.body NOT IN (
    SELECT u.body FROM json_each(%(bodies)s) g CROSS JOIN {space}_unused u ON u.body = g.value));
DELETE FROM {space}
WHERE body IN (SELECT u.body FROM json_each(%(bodies)s) g CROSS JOIN {space}_unused u ON u.body = g.value)

-- name: drop_labels
DELETE FROM {space}_labels WHERE id IN (SELECT value FROM json_each(%(ids)s))
AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = {space}_labels.id)

-- name: bodies_of_dead
SELECT body FROM {space}_dead WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: remove_payloads
-- Of purged dead letters, in every version.
UPDATE {space} SET payload = NULL WHERE id IN (SELECT value FROM json_each(%(ids)s))

-- name: delete_dead
DELETE FROM {space}_dead WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- === read ===============================================================================================================

-- name: find_live
SELECT e.* FROM {space}_live e

-- name: count_waiting
-- Of what waits in a queue and is due between two times, at most so many; only the index is read.
SELECT count(*) FROM (SELECT 1 FROM {space}_ready w WHERE w.record IS NULL AND w.suspect = 0
    AND w.number IN (SELECT n.number FROM {space}_queues n WHERE n.queue = %(queue)s)
    AND w.due >= %(from)s AND w.due < %(before)s LIMIT %(limit)s)

-- name: places_of
SELECT seq FROM {space} WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND version = 0

-- name: ids_beginning
SELECT DISTINCT id FROM {space} WHERE id >= %(first)s AND id < %(last)s ORDER BY id LIMIT %(limit)s

-- name: ids_ending
SELECT DISTINCT id FROM {space} WHERE substr(id, -%(size)s) = %(part)s ORDER BY id LIMIT %(limit)s

-- name: ids_with_unique
-- Of the dead letters only the newest are looked through: nothing leads from a unique id to those that held it.
-- CROSS JOIN sets the order of the tables: the planner would read all entries by their ids for the sake of the UNION.
SELECT id FROM {space}_unique WHERE unique_key = %(key)s
UNION SELECT b.id FROM {space}_dead d CROSS JOIN {space} b
WHERE d.seq > (SELECT coalesce(max(seq), 0) FROM {space}_dead) - %(dead)s AND b.body = d.body AND b.unique_key = %(key)s
ORDER BY id LIMIT %(limit)s

-- name: find_dead
-- The plus keeps the planner from sorting a whole queue: rows are read in their order until there are enough.
SELECT h.seq, b.id, q.queue, q.node, 'dead' AS state, h.started, h.ended, h.generation, b.priority, b.created, h.due,
       b.first_due, h.attempt, h.fence, h.owner, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec,
       b.type, b.payload
FROM {space}_dead h JOIN {space}_queues q ON q.number = +h.number JOIN {space} b ON b.body = h.body

-- name: find_history
-- The plus: as above.
SELECT h.seq, b.id, q.queue, q.node, h.state, h.started, h.ended, h.generation, b.priority, b.created, h.due, b.first_due,
       h.attempt, h.fence, h.owner, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
       b.payload
FROM {space}_history h JOIN {space}_queues q ON q.number = +h.number JOIN {space} b ON b.body = h.body

-- name: last_live
SELECT coalesce(max(seq), 0) FROM {space}_ready

-- name: last_dead
SELECT last FROM {space}_last_dead

-- name: last_history
SELECT last FROM {space}_last_history

-- name: ended_after
SELECT seq, ended FROM {space}_history WHERE seq > %(seq)s ORDER BY seq LIMIT 1

-- name: count_ended
SELECT q.queue, h.state, count(*) FROM {space}_history h JOIN {space}_queues q ON q.number = h.number
WHERE h.seq > %(after)s AND h.ended >= %(since)s GROUP BY q.queue, h.state

-- name: queue_names
SELECT DISTINCT queue FROM {space}_queues WHERE queue > %(after)s AND queue >= %(first)s AND queue < %(last)s
ORDER BY queue LIMIT %(limit)s

-- name: queue_rows_between
SELECT queue, number, fifo FROM {space}_queues WHERE queue >= %(first)s AND queue < %(last)s ORDER BY queue

-- name: count
-- Per queue row: ready, delayed, retrying, since when the oldest is ready; held; dead letters. In one statement, so that an
-- entry that goes from one to another meanwhile is counted once.
-- Of what is ready only the index is read.
SELECT r.number, count(*) FILTER (WHERE r.due <= %(moment)s),
       count(*) FILTER (WHERE r.due > %(moment)s AND r.due < %(held)s AND r.attempt = 0),
       count(*) FILTER (WHERE r.due > %(moment)s AND r.due < %(held)s AND r.attempt > 0),
       min(r.due) FILTER (WHERE r.due <= %(moment)s), 0, 0, count(*) FILTER (WHERE r.due >= %(held)s)
FROM {space}_ready r
WHERE r.number IN (SELECT value FROM json_each(%(numbers)s)) AND r.record IS NULL AND r.suspect = 0 GROUP BY r.number
UNION ALL
SELECT r.number, count(*) FILTER (WHERE r.due <= %(moment)s), 0, count(*) FILTER (WHERE r.due > %(moment)s),
       min(r.due) FILTER (WHERE r.due <= %(moment)s), 0, 0, 0
FROM {space}_ready r
WHERE r.number IN (SELECT value FROM json_each(%(numbers)s)) AND r.record IS NULL AND r.suspect = 1 GROUP BY r.number
UNION ALL
SELECT c.number, 0, 0, 0, NULL, count(*), 0, 0
FROM {space}_claims c CROSS JOIN json_each(c.seqs) j CROSS JOIN {space}_ready r ON r.seq = j.value
WHERE c.number IN (SELECT value FROM json_each(%(numbers)s)) AND r.record = c.record GROUP BY c.number
UNION ALL
SELECT d.number, 0, 0, 0, NULL, 0, count(*), 0
FROM {space}_dead d WHERE d.number IN (SELECT value FROM json_each(%(numbers)s)) GROUP BY d.number

-- name: was_cancelled
SELECT 1 FROM {space} b CROSS JOIN {space}_history h ON h.body = b.body
WHERE b.id = %(id)s AND h.state = 'cancelled' LIMIT 1

-- === what a space keeps besides entries =================================================================================

-- name: schedule
SELECT version, next_fire, definition FROM {space}_schedules WHERE name = %(name)s

-- name: schedules
SELECT next_fire, definition FROM {space}_schedules ORDER BY name

-- name: set_schedule
INSERT INTO {space}_schedules (name, version, next_fire, definition)
VALUES (%(name)s, %(version)s, %(next_fire)s, %(definition)s)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, next_fire = excluded.next_fire, definition = excluded.definition

-- name: move_schedule
UPDATE {space}_schedules SET next_fire = %(next_fire)s
WHERE name = %(name)s AND next_fire = %(was)s AND version = %(version)s

-- name: drop_schedule
DELETE FROM {space}_schedules WHERE name = %(name)s

-- name: subscriptions
SELECT name, queue, types FROM {space}_subscriptions ORDER BY name

-- name: subscribe
INSERT INTO {space}_subscriptions (name, queue, types) VALUES (%(name)s, %(queue)s, %(types)s)
ON CONFLICT (name) DO UPDATE SET queue = excluded.queue, types = excluded.types

-- name: unsubscribe
DELETE FROM {space}_subscriptions WHERE name = %(name)s

-- name: beat
INSERT INTO {space}_nodes (node, seen) VALUES (%(node)s, %(seen)s) ON CONFLICT (node) DO UPDATE SET seen = excluded.seen

-- name: nodes
SELECT node, seen FROM {space}_nodes ORDER BY node

-- name: forget_node
DELETE FROM {space}_nodes WHERE node = %(node)s AND seen <= %(cutoff)s

-- name: document
SELECT version, value FROM {space}_documents WHERE name = %(name)s

-- name: documents
SELECT name, value, version, changed FROM {space}_documents
WHERE name >= %(first)s AND name < %(last)s AND changed >= %(since)s ORDER BY name

-- name: write_document
INSERT INTO {space}_documents (name, version, changed, value) VALUES (%(name)s, 1, %(moment)s, %(value)s)
ON CONFLICT (name) DO UPDATE SET version = {space}_documents.version + 1, changed = excluded.changed, value = excluded.value

-- name: new_document
INSERT INTO {space}_documents (name, version, changed, value) VALUES (%(name)s, 1, %(moment)s, %(value)s)
ON CONFLICT DO NOTHING

-- name: change_document
UPDATE {space}_documents SET version = version + 1, changed = %(moment)s, value = %(value)s
WHERE name = %(name)s AND version = %(version)s

-- name: drop_document
DELETE FROM {space}_documents WHERE name = %(name)s

-- name: drop_document_at
DELETE FROM {space}_documents WHERE name = %(name)s AND version = %(version)s

-- === transfer ===========================================================================================================

-- name: definitions
SELECT queue, fifo, rate_count, rate_period, limit_label, limit_count FROM {space}_queues WHERE node = ''

-- name: holds
SELECT queue, unique_key, id, until FROM {space}_unique ORDER BY queue, unique_key

-- name: current_body
SELECT body, labels, headers, codec, type, payload FROM {space} WHERE id = %(id)s AND version = 0

-- name: load_body
INSERT INTO {space} (body, id, version, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode,
                     expires, codec, type, payload)
VALUES ((SELECT last + 1 FROM {space}_last_entry), %(id)s, %(version)s, (SELECT last + 1 FROM {space}_last_entry),
        %(number)s, %(priority)s, %(created)s, %(first_due)s, %(labels)s, %(headers)s, %(unique_key)s, %(unique_mode)s,
        %(expires)s, %(codec)s, %(type)s, %(payload)s);
SELECT max(body) FROM {space}

-- name: complete_body
-- What earlier rows of the same entry did not tell.
UPDATE {space} SET priority = %(priority)s, first_due = %(first_due)s, expires = %(expires)s,
    unique_key = %(unique_key)s, unique_mode = %(unique_mode)s WHERE body = %(body)s

-- name: next_version
UPDATE {space} SET version = (SELECT max(version) + 1 FROM {space} WHERE id = %(id)s) WHERE body = %(body)s

-- name: load_waiting
INSERT OR REPLACE INTO {space}_meta (name, value) SELECT 'last.entry', last + 1 FROM {space}_last_entry;
UPDATE {space} SET seq = (SELECT last FROM {space}_last_entry) WHERE body = %(body)s;
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires,
                           error)
SELECT seq, body, %(number)s, priority, %(due)s, %(generation)s, %(attempt)s, %(fence)s, %(suspect)s, %(fifo)s,
       expires IS NOT NULL OR substr(unique_mode, 1, 7) IS 'started', expires, %(error)s FROM {space} WHERE body = %(body)s

-- name: load_history
INSERT INTO {space}_history (seq, body, number, generation, attempt, state, due, started, ended, fence, owner, error)
VALUES ((SELECT last + 1 FROM {space}_last_history), %(body)s, %(number)s, %(generation)s, %(attempt)s, %(state)s, %(due)s,
        %(started)s, %(ended)s, %(fence)s, %(owner)s, %(error)s)

-- name: load_dead
INSERT INTO {space}_dead (seq, body, number, generation, attempt, due, started, ended, fence, owner, error)
VALUES ((SELECT last + 1 FROM {space}_last_dead), %(body)s, %(number)s, %(generation)s, %(attempt)s, %(due)s, %(started)s,
        %(ended)s, %(fence)s, %(owner)s, %(error)s)

-- name: is_loaded
SELECT 1 FROM {space} b CROSS JOIN {space}_history h ON h.body = b.body
WHERE %(part)s = 'history' AND b.id = %(id)s AND h.generation = %(generation)s AND h.attempt = %(attempt)s
AND h.ended = %(ended)s
UNION ALL
SELECT 1 FROM {space} b CROSS JOIN {space}_dead d ON d.body = b.body WHERE %(part)s = 'dead' AND b.id = %(id)s
UNION ALL
SELECT 1 FROM {space} b CROSS JOIN {space}_ready r ON r.seq = b.seq
WHERE %(part)s = 'live' AND b.id = %(id)s AND b.version = 0

-- === the file ===========================================================================================================

-- name: stored_version
SELECT value FROM {space}_meta WHERE name = 'schema'

-- === links ==============================================================================================================

-- name: links_of_done
-- What waits for entries that are done: how many links that uses up, and how many of them its tally counts.
SELECT target, count(*), sum(kind <> 'open') FROM {space}_links
WHERE source IN (SELECT value FROM json_each(%(sources)s)) GROUP BY +target ORDER BY +target

-- name: drop_links_of_done
DELETE FROM {space}_links WHERE source IN (SELECT value FROM json_each(%(sources)s))

-- name: links_from
SELECT source, target, kind FROM {space}_links WHERE source IN (SELECT value FROM json_each(%(sources)s))

-- name: add_links
-- each
INSERT INTO {space}_links (source, target, kind) VALUES (%(sources)s, %(targets)s, %(kinds)s) ON CONFLICT DO NOTHING

-- name: drop_links
-- The links that ends of these entries consume: all, of a dead letter those that wait for an end of any kind.
DELETE FROM {space}_links
WHERE source IN (SELECT value FROM json_each(%(sources)s))
AND (kind = 'ended' OR source NOT IN (SELECT value FROM json_each(%(dead)s)))

-- name: count_wait
-- Whoever counts the same entry waits until this transaction ends.
UPDATE {space}_waits SET needs = needs + %(needs)s, done = done + %(done)s, dead = dead + %(dead)s,
    cancelled = cancelled + %(cancelled)s, expired = expired + %(expired)s
WHERE id = %(id)s;
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id = %(id)s

-- name: lock_waits
SELECT id FROM {space}_waits WHERE id IN (SELECT value FROM json_each(%(ids)s))

-- name: count_waits
-- each
UPDATE {space}_waits SET needs = needs + %(needs)s, done = done + %(done)s, dead = dead + %(dead)s,
    cancelled = cancelled + %(cancelled)s, expired = expired + %(expired)s WHERE id = %(ids)s

-- name: load_waits
-- each
INSERT INTO {space}_waits (id, needs, done, dead, cancelled, expired)
VALUES (%(ids)s, %(needs)s, %(done)s, %(dead)s, %(cancelled)s, %(expired)s)

-- name: lock_held
-- There is nothing to lock: one transaction writes at a time.
SELECT r.seq, b.id, b.first_due FROM {space}_ready r JOIN {space} b ON b.body = r.body
WHERE r.seq IN (SELECT value FROM json_each(%(seqs)s)) AND r.due = %(due)s AND r.record IS NULL

-- name: set_due
UPDATE {space}_ready SET due = %(due)s WHERE seq IN (SELECT value FROM json_each(%(seqs)s))

-- name: mark_body
UPDATE {space} SET unique_mode = coalesce(unique_mode, '') || '+'
WHERE body = %(body)s AND substr(coalesce(unique_mode, ''), -1) <> '+'

-- name: mark_waiting
-- There is nothing to do: no claim is under way.
SELECT 1 WHERE %(seq)s < 0

-- name: mark_claimed
UPDATE {space}_ready SET special = 2 WHERE seq = %(seq)s

-- name: waits
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: waits_of
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id IN (SELECT value FROM json_each(%(ids)s)) ORDER BY id

-- name: links
SELECT source, target, kind FROM {space}_links WHERE (source, target) > (%(source)s, %(after)s)
ORDER BY source, target LIMIT %(limit)s

-- name: links_to
SELECT source, target, kind FROM {space}_links WHERE target = %(target)s AND source > %(source)s ORDER BY source LIMIT %(limit)s

-- name: load_wait
INSERT INTO {space}_waits (id, needs, done, dead, cancelled, expired)
VALUES (%(id)s, %(needs)s, %(done)s, %(dead)s, %(cancelled)s, %(expired)s)
ON CONFLICT (id) DO UPDATE SET needs = excluded.needs, done = excluded.done, dead = excluded.dead,
    cancelled = excluded.cancelled, expired = excluded.expired

-- name: mark_loaded
UPDATE {space} SET unique_mode = coalesce(unique_mode, '') || '+'
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND version = 0 AND substr(coalesce(unique_mode, ''), -1) <> '+'

-- name: drop_wait
-- Of an entry that nobody remembers any more, and that no link leads to.
DELETE FROM {space}_waits WHERE id = %(id)s AND needs = 0 AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = %(id)s)

-- name: drop_waits
-- Of entries that nobody remembers any more.
DELETE FROM {space}_waits WHERE needs = 0 AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = {space}_waits.id)

-- name: keep_results
-- each
INSERT INTO {space}_results (id, generation, codec, until, value, queue, batch)
VALUES (%(ids)s, %(generations)s, %(codecs)s, %(untils)s, %(values)s, %(queues)s, %(batches)s)
ON CONFLICT (id) DO UPDATE SET generation = excluded.generation, codec = excluded.codec, until = excluded.until,
    value = excluded.value, queue = excluded.queue, batch = excluded.batch

-- name: keep_results_alike
-- Those that differ in nothing but their values: an object of texts by id. One statement takes half the time of one for each.
INSERT INTO {space}_results (id, generation, codec, until, value, queue, batch)
SELECT key, %(generation)s, %(codec)s, %(until)s, CAST(value AS BLOB), %(queue)s, %(batch)s FROM json_each(%(values)s) WHERE true
ON CONFLICT (id) DO UPDATE SET generation = excluded.generation, codec = excluded.codec, until = excluded.until,
    value = excluded.value, queue = excluded.queue, batch = excluded.batch

-- name: result
SELECT generation, codec, until, value, queue, batch FROM {space}_results WHERE id = %(id)s

-- name: results
SELECT id, generation, codec, until, value, queue, batch FROM {space}_results WHERE id > %(after)s
ORDER BY id LIMIT %(limit)s

-- name: results_of_batch
SELECT id, generation, codec, until, value, queue, batch FROM {space}_results WHERE batch = %(batch)s AND id > %(after)s
ORDER BY id LIMIT %(limit)s

-- name: forget_result
DELETE FROM {space}_results WHERE id = %(id)s

-- name: sweep_results
DELETE FROM {space}_results WHERE until <= %(moment)s
