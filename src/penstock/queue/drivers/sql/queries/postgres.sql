-- The statements of the PostgreSQL driver, by name. {space} is replaced by the space's name; nothing else is.
-- %(now)s is the time of a fake clock, NULL otherwise: then the server's clock decides.

-- === put ================================================================================================================

-- name: put_one
-- One new entry without unique id or labels, in one round trip. No number: the queue has no row yet, or is FIFO and the
-- entry does not fit it. No body: the id is taken.
WITH
moment AS MATERIALIZED (
    SELECT coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now),
line AS (
    SELECT q.number, q.fifo FROM {space}_queues q
    WHERE q.queue = %(queue)s AND q.node = %(node)s AND (NOT q.fifo OR (%(priority)s = 0 AND q.node = ''))),
place AS MATERIALIZED (
    SELECT nextval('{space}_numbers') AS seq, line.number, line.fifo, moment.now,
           coalesce(%(due)s::bigint, moment.now) + %(delay)s AS due,
           coalesce(moment.now + %(expires_in)s::bigint, %(expires)s::bigint) AS expires
    FROM line, moment),
body AS (
    INSERT INTO {space} (body, id, seq, number, priority, created, first_due, headers, expires, codec, type, payload)
    SELECT seq, %(id)s, seq, number, %(priority)s, now, due, %(headers)s, expires, %(codec)s, %(type)s, %(payload)s FROM place
    ON CONFLICT (id, version) DO NOTHING RETURNING body),
waiting AS (
    INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires)
    SELECT seq, seq, number, %(priority)s, due, 1, 0, 0, false, fifo, expires IS NOT NULL, expires
    FROM place WHERE EXISTS (SELECT 1 FROM body))
SELECT moment.now, place.number, body.body, place.due, CASE WHEN body.body IS NOT NULL THEN pg_notify(%(channel)s, '') END
FROM moment LEFT JOIN place ON true LEFT JOIN body ON true

-- name: put_many
-- New entries in their order. Returns how many did not exist before.
WITH
place AS MATERIALIZED (
    SELECT nextval('{space}_numbers') AS seq, g.* FROM (
        SELECT * FROM unnest(
            %(ids)s::text[], %(numbers)s::int[], %(fifos)s::bool[], %(priorities)s::int[], %(dues)s::bigint[],
            %(labels)s::text[], %(headers)s::text[], %(unique_keys)s::text[], %(unique_modes)s::text[],
            %(expires)s::bigint[], %(codecs)s::text[], %(types)s::text[], %(payloads)s::bytea[])
        WITH ORDINALITY given (id, number, fifo, priority, due, labels, headers, unique_key, unique_mode, expires, codec,
                               type, payload, ordinality)
        ORDER BY ordinality) g),
bodies AS (
    INSERT INTO {space} (body, id, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode,
                         expires, codec, type, payload)
    SELECT seq, id, seq, number, priority, %(moment)s, due, labels, headers, unique_key, unique_mode, expires, codec, type,
           payload FROM place
    ON CONFLICT (id, version) DO NOTHING RETURNING body)
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires)
SELECT seq, seq, number, priority, due, 1, 0, 0, false, fifo, expires IS NOT NULL OR left(unique_mode, 7) IS NOT DISTINCT FROM 'started',
       expires
FROM place JOIN bodies ON bodies.body = place.seq

-- name: known
-- The entry that has this id, whether it lives or has ended.
SELECT q.queue, b.payload, b.body, b.seq FROM {space} b JOIN {space}_queues q ON q.number = b.number
WHERE b.id = %(id)s AND b.version = 0

-- name: is_live
SELECT EXISTS (SELECT 1 FROM {space}_ready WHERE seq = %(seq)s)
    OR EXISTS (SELECT 1 FROM {space}_claims WHERE low <= %(seq)s AND high >= %(seq)s AND seqs @> ARRAY[%(seq)s::bigint])

-- name: add_labels
INSERT INTO {space}_labels (name, value, id)
SELECT * FROM unnest(%(names)s::text[], %(values)s::text[], %(ids)s::text[]) ON CONFLICT DO NOTHING

-- name: hold_unique
INSERT INTO {space}_unique (queue, unique_key, id, until) VALUES (%(queue)s, %(key)s, %(id)s, %(until)s)
ON CONFLICT DO NOTHING

-- name: unique_holder
SELECT id, until FROM {space}_unique WHERE queue = %(queue)s AND unique_key = %(key)s

-- name: unique_holder_now
SELECT id, until FROM {space}_unique WHERE queue = %(queue)s AND unique_key = %(key)s FOR UPDATE

-- name: take_unique
-- Take over a hold whose period is over, unless somebody was faster.
UPDATE {space}_unique SET id = %(id)s, until = %(until)s
WHERE queue = %(queue)s AND unique_key = %(key)s AND until = %(held_until)s

-- name: due_of
SELECT l.due FROM {space} b JOIN {space}_live l ON l.seq = b.seq AND l.low <= b.seq AND l.high >= b.seq
WHERE b.id = %(id)s AND b.version = 0

-- name: keep_version
-- Keep the body that ended attempts saw, under the next version, and give the entry a body of its own again.
WITH kept AS (
    UPDATE {space} SET version = (SELECT max(version) + 1 FROM {space} WHERE id = %(id)s)
    WHERE body = %(body)s AND EXISTS (SELECT 1 FROM {space}_history h WHERE h.body = %(body)s) RETURNING *)
INSERT INTO {space} (body, id, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires,
                     codec, type, payload)
SELECT nextval('{space}_numbers'), id, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode,
       expires, codec, type, payload FROM kept RETURNING body

-- name: change_body
UPDATE {space} SET payload = %(payload)s, codec = %(codec)s, type = %(type)s, labels = %(labels)s, headers = %(headers)s,
    priority = %(priority)s, first_due = %(first_due)s, expires = %(expires)s WHERE body = %(body)s

-- name: change_waiting
UPDATE {space}_ready SET body = %(body)s, priority = %(priority)s, due = %(due)s, generation = %(generation)s,
    attempt = %(attempt)s, error = %(error)s, suspect = %(suspect)s, expires = %(expires)s, special = %(special)s
WHERE seq = %(seq)s

-- name: lock_waiting
SELECT 1 FROM {space}_ready WHERE seq = %(seq)s FOR UPDATE

-- name: lock_claimed
SELECT record FROM {space}_claims
WHERE low <= %(seq)s AND high >= %(seq)s AND seqs @> ARRAY[%(seq)s::bigint] FOR UPDATE

-- name: live_by_seq
SELECT * FROM {space}_live WHERE seq = %(seq)s AND low <= %(seq)s AND high >= %(seq)s

-- name: last_end
-- The latest generation of an ended entry and the highest fence it had.
SELECT h.number, h.state, h.generation, h.fence, b.body, b.id, b.unique_key, b.unique_mode, b.priority
FROM {space}_history h JOIN {space} v ON v.body = h.body JOIN {space} b ON b.id = v.id AND b.version = 0
WHERE v.id = %(id)s ORDER BY h.generation DESC, h.fence DESC, h.seq DESC LIMIT 1

-- name: dead_by_id
SELECT d.number, 'dead', d.generation, d.fence, b.body, b.id, b.unique_key, b.unique_mode, b.priority, d.seq
FROM {space}_dead d JOIN {space} b ON b.body = d.body WHERE b.id = %(id)s FOR UPDATE OF d

-- name: lock_body
-- Of those who replay an entry at the same time each waits for the one before.
SELECT body FROM {space} WHERE id = %(id)s AND version = 0 FOR UPDATE

-- name: replay
-- A new place at the end of its queue, as the next generation.
WITH place AS (
    UPDATE {space} SET seq = nextval('{space}_numbers'), first_due = %(due)s, expires = NULL WHERE body = %(body)s
    RETURNING body, seq, priority, unique_mode)
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires)
SELECT seq, body, %(number)s, priority, %(due)s, %(generation)s, 0, %(fence)s, false, %(fifo)s,
       left(unique_mode, 7) IS NOT DISTINCT FROM 'started', NULL FROM place

-- === queues =============================================================================================================

-- name: queue_row
SELECT number, queue, node, fifo, in_flight, rate_count, rate_period, rate_next, limit_label, limit_count
FROM {space}_queues WHERE queue = %(queue)s AND node = %(node)s

-- name: queue_of_number
SELECT queue, node FROM {space}_queues WHERE number = %(number)s

-- name: queue_row_now
-- The same past the snapshot of a caller's transaction.
SELECT number, queue, node, fifo, in_flight, rate_count, rate_period, rate_next, limit_label, limit_count
FROM {space}_queues WHERE queue = %(queue)s AND node = %(node)s FOR SHARE

-- name: add_queue
INSERT INTO {space}_queues (queue, node, locked, fifo, rate_count, rate_period, limit_label, limit_count)
VALUES (%(queue)s, %(node)s, (SELECT count(*) FROM {space}_locks WHERE queue = %(queue)s), %(fifo)s, %(rate_count)s,
        %(rate_period)s, %(limit_label)s, %(limit_count)s)
ON CONFLICT DO NOTHING

-- name: lock_queue_rows
SELECT number FROM {space}_queues WHERE queue = %(queue)s ORDER BY number FOR UPDATE

-- name: define_queue
UPDATE {space}_queues SET fifo = %(fifo)s, rate_count = %(rate_count)s, rate_period = %(rate_period)s, rate_next = NULL,
    limit_label = %(limit_label)s, limit_count = %(limit_count)s WHERE queue = %(queue)s

-- name: queue_holds_any
SELECT 1 FROM {space}_queues q WHERE q.queue = %(queue)s AND (
    EXISTS (SELECT 1 FROM {space}_ready r WHERE r.number = q.number)
    OR EXISTS (SELECT 1 FROM {space}_claims c WHERE c.number = q.number)) LIMIT 1

-- name: count_in_flight_by
-- From now on the claims of a queue tell which label values they hold.
UPDATE {space}_claims c SET limit_values = CASE WHEN %(label)s::text IS NOT NULL THEN ARRAY(
    SELECT b.labels::json ->> %(label)s::text FROM unnest(c.bodies) WITH ORDINALITY u (body, ordinality)
    JOIN {space} b ON b.body = u.body ORDER BY u.ordinality) END
WHERE c.number = ANY(%(numbers)s::int[])

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

-- === claim ==============================================================================================================

-- name: round_trip
-- Ends successes and claims the next entries of one plain queue, all in one statement.
--
-- 1. given: what is settled, claim by claim: seqs and started hold one claim after the other. ended, part: the claim
--    records that hold it; a record that holds nothing else goes, another one keeps the rest. Mostly all of a claim ends
--    in its order, and comparing two arrays is quicker than looking for each member of one in the other. Each entry is
--    looked for under the claim it was settled with: a token that is over ends nothing. What neither finds is missing
--    from settled; it takes the longer way.
-- 2. line: the queue's row, shared with other claims; somebody who locks the queue has been seen or waits for us. No
--    row comes back unless the queue is plain: neither FIFO nor limited, nothing suspect due, nothing sticky here.
-- 3. moment: the time, read when all these locks are held.
-- 4. past: the attempts go to the history; then the parts below, where results are kept, and where others wait for what ends.
-- 5. heads: the priorities that have something, and where each begins, hopping from one to the next: what was deleted and
--    cannot be vacuumed is stepped over once only; taken: due entries in their order. A hint
--    (above, from_due, from_seq) says where the last claim ended: what lies before it in its priority is not looked at.
-- 6. lease: one record for all of them.
WITH RECURSIVE
given AS MATERIALIZED (
    SELECT g.claim, g.first, g.last, (%(seqs)s::bigint[])[g.first:g.last] AS seqs
    FROM unnest(%(claims)s::text[], %(firsts)s::int[], %(lasts)s::int[]) g (claim, first, last)),
ended AS (
    DELETE FROM {space}_claims c WHERE c.claim = ANY(%(claims)s::text[]) AND NOT c.linked
    AND (c.seqs = (SELECT g.seqs FROM given g WHERE g.claim = c.claim)
         OR c.seqs <@ (SELECT g.seqs FROM given g WHERE g.claim = c.claim))
    RETURNING c.*),
part AS MATERIALIZED (
    SELECT c.* FROM {space}_claims c WHERE c.claim = ANY(%(claims)s::text[]) AND NOT c.linked
    AND c.seqs <> (SELECT g.seqs FROM given g WHERE g.claim = c.claim)
    AND c.seqs && (SELECT g.seqs FROM given g WHERE g.claim = c.claim)
    AND NOT c.seqs <@ (SELECT g.seqs FROM given g WHERE g.claim = c.claim)
    FOR UPDATE),
rest AS (
    UPDATE {space}_claims c
    SET (low, high, seqs, bodies, dues, generations, attempts, fences, suspects, errors, limit_values) = (
        SELECT min(u.seq), max(u.seq), array_agg(u.seq), array_agg(u.body), array_agg(u.due), array_agg(u.generation),
               array_agg(u.attempt), array_agg(u.fence), array_agg(u.suspect), array_agg(u.error),
               CASE WHEN p.limit_values IS NOT NULL THEN array_agg(u.limit_value) END
        FROM unnest(p.seqs, p.bodies, p.dues, p.generations, p.attempts, p.fences, p.suspects, p.errors, p.limit_values)
             u (seq, body, due, generation, attempt, fence, suspect, error, limit_value)
        WHERE u.seq <> ALL ((SELECT g.seqs FROM given g WHERE g.claim = p.claim)::bigint[]))
    FROM part p WHERE c.claim = p.claim AND c.record = p.record),
line AS MATERIALIZED (
    SELECT q.number FROM {space}_queues q
    WHERE q.queue = %(queue)s AND q.node = '' AND NOT q.fifo AND q.rate_count IS NULL AND q.limit_label IS NULL
    AND q.locked = 0 AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue)
    AND NOT EXISTS (SELECT 1 FROM {space}_ready x JOIN {space}_queues n ON n.number = x.number
                    WHERE x.suspect AND n.queue = q.queue AND n.node IN ('', %(node)s)
                    AND x.due <= coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
    AND NOT EXISTS (SELECT 1 FROM {space}_queues n WHERE n.queue = q.queue AND n.node = %(node)s AND n.node <> ''
                    AND (SELECT x.seq FROM {space}_ready x WHERE x.number = n.number AND NOT x.suspect
                         ORDER BY x.priority DESC, x.due, x.seq LIMIT 1) IS NOT NULL)
    FOR SHARE OF q),
moment AS MATERIALIZED (
    SELECT coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now
    WHERE (SELECT count(*) FROM line) + (SELECT count(*) FROM part) + (SELECT count(*) FROM ended) >= 0),
past AS (
    INSERT INTO {space}_history (body, number, generation, attempt, state, due, started, ended, fence, claim, owner)
    SELECT h.body, h.number, h.generation, h.attempt, 'done', h.due, coalesce(g.started, h.claimed), moment.now, h.fence,
           h.claim, h.owner
    FROM moment, (
        SELECT c.number, c.claim, c.owner, c.claimed, g.first, g.last, u.*
        FROM (SELECT * FROM ended UNION ALL SELECT * FROM part) c JOIN given g ON g.claim = c.claim
        CROSS JOIN LATERAL unnest(c.seqs, c.bodies, c.dues, c.generations, c.attempts, c.fences)
            u (seq, body, due, generation, attempt, fence)
        OFFSET 0) h  -- each record is taken apart once, and not again for each entry that it holds
    JOIN unnest(%(seqs)s::bigint[], %(started)s::bigint[]) WITH ORDINALITY g (seq, started, place)
        ON g.seq = h.seq AND g.place BETWEEN h.first AND h.last
    RETURNING body),
{results}
{links}
heads (priority, due, seq) AS (
    (SELECT * FROM (
        (SELECT x.priority, x.due, x.seq FROM {space}_ready x
         WHERE x.number = (SELECT number FROM line) AND NOT x.suspect AND x.priority > %(above)s
         ORDER BY x.priority DESC, x.due, x.seq LIMIT 1)
        UNION ALL
        SELECT %(above)s::int, %(from_due)s::bigint, %(from_seq)s::bigint
        WHERE %(from_seq)s::bigint IS NOT NULL AND EXISTS (SELECT 1 FROM line)) first LIMIT 1)
    UNION ALL
    SELECT n.* FROM heads CROSS JOIN LATERAL (
        SELECT x.priority, x.due, x.seq FROM {space}_ready x
        WHERE x.number = (SELECT number FROM line) AND NOT x.suspect AND x.priority < heads.priority
        ORDER BY x.priority DESC, x.due, x.seq LIMIT 1) n),
picked AS MATERIALIZED (
    SELECT r.place, r.odd FROM heads CROSS JOIN LATERAL (
        SELECT x.ctid AS place, x.special OR x.attempt >= %(attempts)s AS odd FROM {space}_ready x
        WHERE x.number = (SELECT number FROM line) AND NOT x.suspect AND x.priority = heads.priority
        AND x.due <= (SELECT now FROM moment) AND (x.due, x.seq) >= (heads.due, heads.seq)
        ORDER BY x.due, x.seq LIMIT %(limit)s FOR UPDATE OF x SKIP LOCKED) r
    LIMIT %(limit)s),
taken AS (
    DELETE FROM {space}_ready r
    WHERE r.ctid = ANY(ARRAY(SELECT place FROM picked WHERE NOT EXISTS (SELECT 1 FROM picked WHERE odd))) RETURNING r.*),
lease AS (
    INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, low, high, seqs, bodies, dues,
                                generations, attempts, fences, suspects, errors)
    SELECT %(claim)s, min(t.number), %(owner)s, min(moment.now), min(moment.now) + %(lease)s, %(max_attempts)s, min(t.seq),
           max(t.seq), array_agg(t.seq), array_agg(t.body), array_agg(t.due), array_agg(t.generation),
           array_agg(t.attempt + 1), array_agg(t.fence + 1), array_agg(t.suspect), array_agg(t.error)
    FROM taken t, moment HAVING count(*) > 0)
SELECT moment.now, (SELECT number FROM line), EXISTS (SELECT 1 FROM picked WHERE odd),
       CASE WHEN (SELECT count(*) FROM past) < cardinality(%(seqs)s::bigint[])
            THEN (SELECT coalesce(array_agg(body), '{}') FROM past) END,
       CASE WHEN (SELECT count(*) FROM picked) < %(limit)s THEN least(
           (SELECT min(n.due) FROM heads CROSS JOIN LATERAL (
                SELECT x.due FROM {space}_ready x
                WHERE x.number = (SELECT number FROM line) AND NOT x.suspect AND x.priority = heads.priority
                AND x.due > (SELECT now FROM moment) ORDER BY x.due, x.seq LIMIT 1) n),
           (SELECT x.due FROM {space}_ready x WHERE x.suspect AND x.due > (SELECT now FROM moment)
            ORDER BY x.due, x.seq LIMIT 1)) END,
       t.seq, t.body, b.id, t.priority, b.created, t.due, b.first_due, t.generation, t.attempt, t.fence, t.suspect, t.error,
       b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload{rings}
FROM moment LEFT JOIN (taken t JOIN {space} b ON b.body = t.body) ON true
ORDER BY t.priority DESC, t.due, t.seq

-- name: keep_results_of_past
-- The part of a round trip that keeps what handlers returned. Whether an entry is among those that have ended is looked up
-- in a hash: as a join, each would be compared with all others.
kept AS (
    INSERT INTO {space}_results AS r (id, generation, codec, until, value, queue, batch)
    SELECT (SELECT b.id FROM {space} b WHERE b.body = g.body), (%(generations)s::int[])[g.place], (%(codecs)s::text[])[g.place],
           moment.now + (%(lasting)s::bigint[])[g.place], g.value, (%(result_queues)s::text[])[g.place],
           (%(batches)s::text[])[g.place]
    FROM unnest(%(result_bodies)s::bigint[], %(result_places)s::int[], %(values)s::bytea[]) g (body, place, value), moment
    WHERE (g.body IN (SELECT body FROM past)) IS TRUE
    ON CONFLICT (id) DO UPDATE SET generation = excluded.generation, codec = excluded.codec, until = excluded.until,
        value = excluded.value, queue = excluded.queue, batch = excluded.batch),

-- name: consume_links
-- The part of a round trip that ends what others wait for.
--
-- 1. unlinked, consumed: the links of what has ended go, and are counted.
-- 2. locked, counted: what waited needs so much less. Whoever counts the same entries locks them in the same order.
-- 3. held, bodies: what needs nothing any more, where it is still held, and when it is due, read when both are locked:
--    somebody may have put it off while this statement waited.
-- 4. released: it is due, and the bell rings. What a forgotten entry needed is forgotten with the history.
-- 5. follow: an entry that is not held, or held again only since this statement began, cannot be seen here. That fails
--    (22012), and nothing of the statement happens.
unlinked AS (
    DELETE FROM {space}_links l WHERE l.source = ANY(ARRAY(
        SELECT g.source FROM unnest(%(linked_bodies)s::bigint[], %(sources)s::text[]) g (body, source)
        WHERE (g.body IN (SELECT body FROM past)) IS TRUE))
    RETURNING l.target, l.kind),
consumed AS (
    SELECT target, count(*)::int AS links, (count(*) FILTER (WHERE kind <> 'open'))::int AS done FROM unlinked GROUP BY target),
locked AS MATERIALIZED (
    SELECT w.id FROM {space}_waits w WHERE w.id IN (SELECT target FROM consumed) ORDER BY w.id FOR UPDATE),
counted AS (
    UPDATE {space}_waits w SET needs = w.needs - c.links, done = w.done + c.done
    FROM consumed c JOIN locked ON locked.id = c.target WHERE w.id = c.target RETURNING w.id, w.needs),
held AS MATERIALIZED (
    SELECT r.seq, r.body FROM counted c JOIN {space} b ON b.id = c.id AND b.version = 0 JOIN {space}_ready r ON r.seq = b.seq
    WHERE c.needs = 0 AND r.due = %(held)s ORDER BY r.seq FOR UPDATE OF r),
bodies AS MATERIALIZED (
    SELECT h.seq, b.first_due FROM held h JOIN {space} b ON b.body = h.body FOR SHARE OF b),
released AS (
    UPDATE {space}_ready r SET due = greatest(b.first_due, (SELECT now FROM moment))
    FROM bodies b WHERE r.seq = b.seq RETURNING pg_notify(%(channel)s, '')::text),
follow (rings) AS (
    SELECT CASE WHEN n.wanted = n.released THEN n.wanted > 0 ELSE 1 / (n.wanted - n.wanted) > 0 END
    FROM (SELECT (SELECT count(*) FROM counted WHERE needs = 0) AS wanted, (SELECT count(*) FROM released) AS released) n),

-- name: claimed_before
-- What a claim holds whose reply was lost.
SELECT * FROM {space}_live WHERE claim = %(claim)s AND owner = %(owner)s ORDER BY seq

-- name: due_suspects
-- Suspects that may be handed out, the longest due first; those after (due, seq).
-- The columns of the view of live entries, without a look into the claims for each of them. Rows that were changed while
-- this statement ran are left out, as above.
WITH locked AS MATERIALIZED (
    SELECT x.ctid AS place FROM {space}_ready x JOIN {space}_queues q ON q.number = x.number
    WHERE x.suspect AND x.due <= %(moment)s AND (x.due, x.seq) > (%(after_due)s, %(after_seq)s)
    AND q.node IN ('', %(node)s) AND q.locked = 0 AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue)
    ORDER BY x.due, x.seq LIMIT 100 FOR UPDATE OF x SKIP LOCKED)
SELECT s.seq, s.body, b.id, q.queue, q.node, s.number, s.fifo, s.generation, s.priority, b.created, s.due, b.first_due,
       s.attempt, s.fence, s.suspect, s.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
       b.payload, NULL, NULL, NULL, NULL, NULL, NULL, s.seq, s.seq, q.limit_label IS NOT NULL
FROM {space}_ready s
CROSS JOIN LATERAL (SELECT * FROM {space} e WHERE e.body = s.body OFFSET 0) b
JOIN {space}_queues q ON q.number = s.number
WHERE s.ctid = ANY(ARRAY(SELECT place FROM locked)) ORDER BY s.due, s.seq

-- name: next_suspect
SELECT due FROM {space}_ready WHERE suspect AND due > %(moment)s ORDER BY due, seq LIMIT 1

-- name: waiting_by_name
-- Queues asked for by name, with the due time of the first entry of each; NULL if nothing waits there.
SELECT q.number, q.queue, q.node, q.fifo, q.in_flight, q.rate_count, q.rate_period, q.rate_next, q.limit_label,
       q.limit_count, (SELECT x.due FROM {space}_ready x WHERE x.number = q.number AND NOT x.suspect
                       ORDER BY x.priority DESC, x.due, x.seq LIMIT 1)
FROM {space}_queues q WHERE q.queue = ANY(%(queues)s::text[]) AND q.node IN ('', %(node)s)

-- name: waiting_by_number
SELECT q.number, q.queue, q.node, q.fifo, q.in_flight, q.rate_count, q.rate_period, q.rate_next, q.limit_label,
       q.limit_count, (SELECT x.due FROM {space}_ready x WHERE x.number = q.number AND NOT x.suspect
                       ORDER BY x.priority DESC, x.due, x.seq LIMIT 1)
FROM {space}_queues q WHERE q.number = ANY(%(numbers)s::int[])

-- name: waiting_in_family
-- The queues of a family that hold something, found by hopping from queue to queue: the cost is per such queue.
WITH RECURSIVE hop (number) AS (
    SELECT (SELECT x.number FROM {space}_ready x WHERE NOT x.suspect ORDER BY x.number LIMIT 1)
    UNION ALL
    SELECT (SELECT x.number FROM {space}_ready x WHERE NOT x.suspect AND x.number > hop.number ORDER BY x.number LIMIT 1)
    FROM hop WHERE hop.number IS NOT NULL)
SELECT q.number FROM hop JOIN {space}_queues q ON q.number = hop.number
WHERE q.queue >= %(first)s AND q.queue < %(last)s AND q.node IN ('', %(node)s)

-- name: share_queues
-- Hold queues that others may claim from too; who locks a queue waits.
SELECT q.number FROM {space}_queues q WHERE q.queue = ANY(%(queues)s::text[]) AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue) ORDER BY q.number FOR SHARE OF q

-- name: wait_for_queues
-- Hold queues that one claim at a time takes from.
SELECT q.number FROM {space}_queues q WHERE q.queue = ANY(%(queues)s::text[]) AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue) ORDER BY q.number FOR UPDATE OF q

-- name: take_free_queues
-- The same, passing over those that another claim holds.
SELECT q.number FROM {space}_queues q WHERE q.queue = ANY(%(queues)s::text[]) AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue) ORDER BY q.number FOR UPDATE OF q SKIP LOCKED

-- name: heads
-- The earliest due time per priority, hopping from priority to priority.
WITH RECURSIVE heads (priority, due) AS (
    (SELECT x.priority, x.due FROM {space}_ready x WHERE x.number = %(number)s AND NOT x.suspect
     ORDER BY x.priority DESC, x.due, x.seq LIMIT 1)
    UNION ALL
    SELECT n.priority, n.due FROM heads CROSS JOIN LATERAL (
        SELECT x.priority, x.due FROM {space}_ready x
        WHERE x.number = %(number)s AND NOT x.suspect AND x.priority < heads.priority
        ORDER BY x.priority DESC, x.due, x.seq LIMIT 1) n)
SELECT priority, due FROM heads

-- name: candidates
-- Due entries of one priority in their order, those after (due, seq). A row that was changed while this statement ran is
-- locked at a place that the statement does not see, so it is left to the next claim: its body here would be the old one.
WITH locked AS MATERIALIZED (
    SELECT x.ctid AS place FROM {space}_ready x
    WHERE x.number = %(number)s AND NOT x.suspect AND x.priority = %(priority)s AND x.due <= %(moment)s
    AND (x.due, x.seq) > (%(after_due)s, %(after_seq)s) ORDER BY x.due, x.seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
SELECT r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence, r.suspect, r.error,
       b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM {space}_ready r JOIN {space} b ON b.body = r.body
WHERE r.ctid = ANY(ARRAY(SELECT place FROM locked)) ORDER BY r.due, r.seq

-- name: fifo_places
-- Where the first entries of FIFO queues stand that have none in flight.
SELECT r.seq FROM {space}_queues q CROSS JOIN LATERAL (
    SELECT x.seq FROM {space}_ready x WHERE x.number = q.number AND x.fifo ORDER BY x.seq LIMIT 1) r
WHERE q.number = ANY(%(numbers)s::int[]) AND q.in_flight IS NULL

-- name: fifo_heads
-- The first entries of FIFO queues that have none in flight.
SELECT q.number, r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence,
       r.suspect, r.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM {space}_queues q CROSS JOIN LATERAL (
    SELECT x.* FROM {space}_ready x WHERE x.number = q.number AND x.fifo ORDER BY x.seq LIMIT 1) r
JOIN {space} b ON b.body = r.body
WHERE q.number = ANY(%(numbers)s::int[]) AND q.in_flight IS NULL

-- name: lock_heads
-- Those of them that are still there.
SELECT seq FROM {space}_ready WHERE seq = ANY(%(seqs)s::bigint[]) ORDER BY seq FOR UPDATE

-- name: adopt_fifo
-- A put that began before its queue became FIFO and was committed afterwards did not know it.
UPDATE {space}_ready r SET fifo = true WHERE r.number = ANY(%(numbers)s::int[]) AND NOT r.fifo

-- name: take
DELETE FROM {space}_ready WHERE seq = ANY(%(seqs)s::bigint[])

-- name: lease
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, low, high, seqs, bodies, dues, generations,
                            attempts, fences, suspects, errors, limit_values)
VALUES (%(claim)s, %(number)s, %(owner)s, %(claimed)s, %(until)s, %(max_attempts)s, %(low)s, %(high)s, %(seqs)s::bigint[],
        %(bodies)s::bigint[], %(dues)s::bigint[], %(generations)s::int[], %(attempts)s::int[], %(fences)s::bigint[],
        %(suspects)s::boolean[], %(errors)s::text[], %(limit_values)s::text[])

-- name: set_in_flight
UPDATE {space}_queues q SET in_flight = g.seq FROM unnest(%(numbers)s::int[], %(seqs)s::bigint[]) g (number, seq)
WHERE q.number = g.number

-- name: spend_rate
UPDATE {space}_queues SET rate_next = %(rate_next)s WHERE queue = %(queue)s AND node = ''

-- name: label_values_in_flight
SELECT v.value, count(*) FROM {space}_queues q JOIN {space}_claims c ON c.number = q.number
CROSS JOIN LATERAL unnest(c.limit_values) v (value)
WHERE q.queue = %(queue)s AND c.limit_values IS NOT NULL AND v.value IS NOT NULL GROUP BY v.value

-- === settle =============================================================================================================

-- name: lock_claims
SELECT record FROM {space}_claims WHERE claim = ANY(%(claims)s::text[]) AND seqs && %(seqs)s::bigint[] ORDER BY record
FOR UPDATE

-- name: held
SELECT l.* FROM {space}_live l WHERE l.claim = ANY(%(claims)s::text[]) AND l.seq = ANY(%(seqs)s::bigint[])

-- name: let_go
-- Take entries out of the claims that hold them; a claim that holds nothing else goes.
WITH gone AS (
    DELETE FROM {space}_claims c WHERE c.claim = ANY(%(claims)s::text[]) AND c.seqs <@ %(seqs)s::bigint[])
UPDATE {space}_claims c
SET (low, high, seqs, bodies, dues, generations, attempts, fences, suspects, errors, limit_values) = (
    SELECT min(u.seq), max(u.seq), array_agg(u.seq), array_agg(u.body), array_agg(u.due), array_agg(u.generation),
           array_agg(u.attempt), array_agg(u.fence), array_agg(u.suspect), array_agg(u.error),
           CASE WHEN c.limit_values IS NOT NULL THEN array_agg(u.limit_value) END
    FROM unnest(c.seqs, c.bodies, c.dues, c.generations, c.attempts, c.fences, c.suspects, c.errors, c.limit_values)
         u (seq, body, due, generation, attempt, fence, suspect, error, limit_value)
    WHERE NOT u.seq = ANY(%(seqs)s::bigint[]))
WHERE c.claim = ANY(%(claims)s::text[]) AND c.seqs && %(seqs)s::bigint[] AND NOT c.seqs <@ %(seqs)s::bigint[]

-- name: record_attempts
INSERT INTO {space}_history (body, number, generation, attempt, state, due, started, ended, fence, claim, owner, error)
SELECT body, number, generation, attempt, state, due, started, %(moment)s, fence, claim, owner, error
FROM unnest(%(bodies)s::bigint[], %(numbers)s::int[], %(generations)s::int[], %(attempts)s::int[], %(states)s::text[],
            %(dues)s::bigint[], %(started)s::bigint[], %(fences)s::bigint[], %(claims)s::text[], %(owners)s::text[],
            %(errors)s::text[])
     g (body, number, generation, attempt, state, due, started, fence, claim, owner, error)

-- name: add_dead
INSERT INTO {space}_dead (body, number, generation, attempt, due, started, ended, fence, owner, error)
SELECT body, number, generation, attempt, due, started, %(moment)s, fence, owner, error
FROM unnest(%(bodies)s::bigint[], %(numbers)s::int[], %(generations)s::int[], %(attempts)s::int[], %(dues)s::bigint[],
            %(started)s::bigint[], %(fences)s::bigint[], %(owners)s::text[], %(errors)s::text[])
     g (body, number, generation, attempt, due, started, fence, owner, error)

-- name: give_back
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires,
                           error)
SELECT g.seq, g.body, g.number, b.priority, g.due, g.generation, g.attempt, g.fence, g.suspect, g.fifo,
       b.expires IS NOT NULL OR left(b.unique_mode, 7) IS NOT DISTINCT FROM 'started', b.expires, g.error
FROM unnest(%(seqs)s::bigint[], %(bodies)s::bigint[], %(numbers)s::int[], %(dues)s::bigint[], %(generations)s::int[],
            %(attempts)s::int[], %(fences)s::bigint[], %(suspects)s::boolean[], %(fifos)s::boolean[], %(errors)s::text[])
     g (seq, body, number, due, generation, attempt, fence, suspect, fifo, error)
JOIN {space} b ON b.body = g.body

-- name: release_unique
DELETE FROM {space}_unique x
USING unnest(%(queues)s::text[], %(keys)s::text[], %(ids)s::text[]) g (queue, unique_key, id)
WHERE x.queue = g.queue AND x.unique_key = g.unique_key AND x.id = g.id AND x.until IS NULL

-- name: clear_in_flight
UPDATE {space}_queues SET in_flight = NULL
WHERE number = ANY(%(numbers)s::int[]) AND in_flight = ANY(%(seqs)s::bigint[])

-- name: remember
INSERT INTO {space}_settled (claim, id, outcome, ended)
SELECT claim, id, outcome, %(moment)s FROM unnest(%(claims)s::text[], %(ids)s::text[], %(outcomes)s::text[])
     g (claim, id, outcome)
ON CONFLICT (claim, id) DO NOTHING

-- name: settled_as
-- What became of an entry under a claim: the states of its attempts, and outcomes that left none.
SELECT h.state FROM {space}_history h JOIN {space} b ON b.body = h.body WHERE b.id = %(id)s AND h.claim = %(claim)s
UNION ALL
SELECT outcome FROM {space}_settled WHERE claim = %(claim)s AND id = %(id)s

-- name: answer
SELECT value FROM {space}_meta WHERE name = %(name)s

-- name: keep_answer
INSERT INTO {space}_meta (name, value) VALUES (%(name)s, %(value)s)

-- name: extend
-- Prolong the claims of which everything held is named; the rest is found by its absence. Nobody is waited for: a
-- transaction of a user's that ends one entry must not cost the leases of others.
WITH moment AS MATERIALIZED (
    SELECT coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now),
mine AS MATERIALIZED (
    SELECT c.claim, c.record FROM {space}_claims c
    WHERE c.claim = ANY(%(claims)s::text[]) AND c.seqs <@ %(seqs)s::bigint[] FOR UPDATE SKIP LOCKED),
prolonged AS (
    UPDATE {space}_claims c SET until = greatest(c.until, moment.now + %(lease)s) FROM moment, mine
    WHERE c.claim = mine.claim AND c.record = mine.record
    RETURNING c.claim, c.seqs, moment.now + %(lease)s AS until)
SELECT claim, unnest(seqs), until FROM prolonged

-- name: held_until
-- The leases as they are, also those that a transaction which is under way may end.
SELECT c.claim, unnest(c.seqs), c.until FROM {space}_claims c
WHERE c.claim = ANY(%(claims)s::text[]) AND c.seqs && %(seqs)s::bigint[]

-- name: split_off
-- Move some entries of a claim to a record of their own, which the claim's token is good for too.
WITH whole AS MATERIALIZED (
    SELECT c.* FROM {space}_claims c
    WHERE c.claim = ANY(%(claims)s::text[]) AND c.seqs && %(seqs)s::bigint[] AND NOT c.seqs <@ %(seqs)s::bigint[]
    FOR UPDATE SKIP LOCKED),
rest AS (
    UPDATE {space}_claims c
    SET (low, high, seqs, bodies, dues, generations, attempts, fences, suspects, errors, limit_values) = (
        SELECT min(u.seq), max(u.seq), array_agg(u.seq), array_agg(u.body), array_agg(u.due), array_agg(u.generation),
               array_agg(u.attempt), array_agg(u.fence), array_agg(u.suspect), array_agg(u.error),
               CASE WHEN w.limit_values IS NOT NULL THEN array_agg(u.limit_value) END
        FROM unnest(w.seqs, w.bodies, w.dues, w.generations, w.attempts, w.fences, w.suspects, w.errors, w.limit_values)
             u (seq, body, due, generation, attempt, fence, suspect, error, limit_value)
        WHERE NOT u.seq = ANY(%(seqs)s::bigint[]))
    FROM whole w WHERE c.claim = w.claim AND c.record = w.record)
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, low, high, seqs, bodies, dues, generations,
                            attempts, fences, suspects, errors, limit_values, linked)
SELECT w.claim, w.number, w.owner, w.claimed, w.until, w.max_attempts, s.*, w.linked
FROM whole w CROSS JOIN LATERAL (
    SELECT min(u.seq), max(u.seq), array_agg(u.seq), array_agg(u.body), array_agg(u.due), array_agg(u.generation),
           array_agg(u.attempt), array_agg(u.fence), array_agg(u.suspect), array_agg(u.error),
           CASE WHEN w.limit_values IS NOT NULL THEN array_agg(u.limit_value) END
    FROM unnest(w.seqs, w.bodies, w.dues, w.generations, w.attempts, w.fences, w.suspects, w.errors, w.limit_values)
         u (seq, body, due, generation, attempt, fence, suspect, error, limit_value)
    WHERE u.seq = ANY(%(seqs)s::bigint[])) s

-- === reap ===============================================================================================================

-- name: run_out
-- Claims whose lease is over, the longest over first.
SELECT record, claim FROM {space}_claims WHERE until <= %(moment)s ORDER BY until LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: held_by_record
SELECT l.* FROM {space}_live l WHERE l.claim = ANY(%(claims)s::text[]) AND l.record = ANY(%(records)s::bigint[])
ORDER BY l.until, l.seq

-- name: expired
SELECT seq FROM {space}_ready WHERE expires <= %(moment)s LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: overdue_sticky
-- Sticky entries that are overdue: those of silent nodes first, so that a node's own late ones never crowd them out.
SELECT b.id, q.queue, q.node, r.seq, r.due
FROM {space}_queues q JOIN {space}_ready r ON r.number = q.number AND r.due <= %(cutoff)s
JOIN {space} b ON b.body = r.body LEFT JOIN {space}_nodes n ON n.node = q.node
WHERE q.node <> '' AND (q.node = %(node)s OR n.seen IS NULL OR n.seen <= %(cutoff)s)
ORDER BY q.node = %(node)s, r.due LIMIT %(limit)s FOR UPDATE OF r SKIP LOCKED

-- name: move_to_queue
UPDATE {space}_ready SET number = %(number)s WHERE seq = %(seq)s

-- name: sweep
-- Unique ids whose period is over, and what repeated calls no longer ask for.
WITH
free AS (DELETE FROM {space}_unique WHERE until <= %(moment)s),
answered AS (DELETE FROM {space}_meta WHERE name >= %(first)s AND name < %(last)s)
DELETE FROM {space}_settled WHERE ended <= %(cutoff)s

-- name: oldest_history
-- Rows come in the order in which they ended, so the oldest are the first.
SELECT h.seq, h.body, h.ended FROM {space}_history h ORDER BY h.seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: delete_history
DELETE FROM {space}_history WHERE seq = ANY(%(seqs)s::bigint[])

-- name: lock_bodies
-- Wait for whoever is about to put one of them again; then the next statement sees it.
SELECT body FROM {space} WHERE body = ANY(%(bodies)s::bigint[]) ORDER BY body FOR UPDATE

-- name: delete_unused
-- Bodies that nothing refers to any more; their ids.
DELETE FROM {space} b WHERE b.body = ANY(%(bodies)s::bigint[])
AND NOT EXISTS (SELECT 1 FROM {space}_history h WHERE h.body = b.body)
AND NOT EXISTS (SELECT 1 FROM {space}_dead d WHERE d.body = b.body)
AND (b.version <> 0 OR (
    NOT EXISTS (SELECT 1 FROM {space}_ready r WHERE r.seq = b.seq)
    AND NOT EXISTS (SELECT 1 FROM {space}_claims c WHERE c.low <= b.seq AND c.high >= b.seq AND c.seqs @> ARRAY[b.seq])
    AND NOT EXISTS (SELECT 1 FROM {space}_unique x WHERE x.id = b.id)))
RETURNING b.id

-- name: drop_labels
DELETE FROM {space}_labels x WHERE x.id = ANY(%(ids)s::text[])
AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = x.id)

-- name: bodies_of_dead
SELECT body FROM {space}_dead WHERE seq = ANY(%(seqs)s::bigint[])

-- name: remove_payloads
-- Of purged dead letters, in every version.
UPDATE {space} SET payload = NULL WHERE id = ANY(%(ids)s::text[])

-- name: delete_dead
DELETE FROM {space}_dead WHERE seq = ANY(%(seqs)s::bigint[])

-- === read ===============================================================================================================

-- name: find_live
SELECT e.* FROM {space}_live e

-- name: places_of
SELECT seq FROM {space} WHERE id = ANY(%(ids)s::text[]) AND version = 0

-- name: ids_beginning
SELECT DISTINCT id FROM {space} WHERE id >= %(first)s AND id < %(last)s ORDER BY id LIMIT %(limit)s

-- name: ids_ending
SELECT DISTINCT id FROM {space} WHERE right(id, %(size)s::int) = %(part)s ORDER BY id LIMIT %(limit)s

-- name: ids_with_unique
-- Of the dead letters only the newest are looked through: nothing leads from a unique id to those that held it.
SELECT id FROM {space}_unique WHERE unique_key = %(key)s
UNION SELECT b.id FROM {space}_dead d JOIN {space} b ON b.body = d.body
WHERE d.seq > (SELECT coalesce(max(seq), 0) FROM {space}_dead) - %(dead)s AND b.unique_key = %(key)s
ORDER BY id LIMIT %(limit)s

-- name: find_dead
SELECT h.seq, b.id, q.queue, q.node, 'dead' AS state, h.started, h.ended, h.generation, b.priority, b.created, h.due,
       b.first_due, h.attempt, h.fence, h.owner, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec,
       b.type, b.payload
FROM {space}_dead h JOIN {space} b ON b.body = h.body JOIN {space}_queues q ON q.number = h.number

-- name: find_history
SELECT h.seq, b.id, q.queue, q.node, h.state, h.started, h.ended, h.generation, b.priority, b.created, h.due, b.first_due,
       h.attempt, h.fence, h.owner, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
       b.payload
FROM {space}_history h JOIN {space} b ON b.body = h.body JOIN {space}_queues q ON q.number = h.number

-- name: last_live
SELECT greatest((SELECT max(seq) FROM {space}_ready), (SELECT max(high) FROM {space}_claims), 0)

-- name: last_dead
SELECT coalesce(max(seq), 0) FROM {space}_dead

-- name: last_history
SELECT coalesce(max(seq), 0) FROM {space}_history

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
-- Per queue row: ready, delayed, retrying, since when the oldest is ready; leased; dead letters; held. In one statement, so
-- that an entry that goes from one to another meanwhile is counted once.
-- By the two indexes of what waits: a scan would compare every entry with every queue.
SELECT r.number, count(*) FILTER (WHERE r.due <= %(moment)s),
       count(*) FILTER (WHERE r.due > %(moment)s AND r.attempt = 0 AND r.due < %(held)s),
       count(*) FILTER (WHERE r.due > %(moment)s AND r.attempt > 0 AND r.due < %(held)s),
       min(r.due) FILTER (WHERE r.due <= %(moment)s), 0, 0, count(*) FILTER (WHERE r.due >= %(held)s)
FROM {space}_ready r WHERE r.number = ANY(%(numbers)s::int[]) AND NOT r.suspect GROUP BY r.number
UNION ALL
SELECT r.number, count(*) FILTER (WHERE r.due <= %(moment)s), 0,
       count(*) FILTER (WHERE r.due > %(moment)s AND r.due < %(held)s), min(r.due) FILTER (WHERE r.due <= %(moment)s), 0, 0,
       count(*) FILTER (WHERE r.due >= %(held)s)
FROM {space}_ready r WHERE r.number = ANY(%(numbers)s::int[]) AND r.suspect GROUP BY r.number
UNION ALL
SELECT c.number, 0, 0, 0, NULL, sum(cardinality(c.seqs))::bigint, 0, 0
FROM {space}_claims c WHERE c.number = ANY(%(numbers)s::int[]) GROUP BY c.number
UNION ALL
SELECT d.number, 0, 0, 0, NULL, 0, count(*), 0 FROM {space}_dead d
WHERE d.number = ANY(%(numbers)s::int[]) GROUP BY d.number

-- name: was_cancelled
SELECT 1 FROM {space}_history h JOIN {space} b ON b.body = h.body WHERE b.id = %(id)s AND h.state = 'cancelled' LIMIT 1

-- === what a space keeps besides entries =================================================================================

-- name: schedule
SELECT version, next_fire, definition FROM {space}_schedules WHERE name = %(name)s FOR UPDATE

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
INSERT INTO {space}_nodes (node, seen)
VALUES (%(node)s, coalesce(%(seen)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
ON CONFLICT (node) DO UPDATE SET seen = excluded.seen

-- name: nodes
SELECT node, seen FROM {space}_nodes ORDER BY node

-- name: forget_node
DELETE FROM {space}_nodes WHERE node = %(node)s AND seen <= %(cutoff)s

-- name: document
SELECT version, value FROM {space}_documents WHERE name = %(name)s FOR UPDATE

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
SELECT place, %(id)s, %(version)s, place, %(number)s, %(priority)s, %(created)s, %(first_due)s, %(labels)s, %(headers)s,
       %(unique_key)s, %(unique_mode)s, %(expires)s, %(codec)s, %(type)s, %(payload)s
FROM (SELECT nextval('{space}_numbers') AS place) n RETURNING body

-- name: complete_body
-- What earlier rows of the same entry did not tell.
UPDATE {space} SET priority = %(priority)s, first_due = %(first_due)s, expires = %(expires)s,
    unique_key = %(unique_key)s, unique_mode = %(unique_mode)s WHERE body = %(body)s

-- name: next_version
UPDATE {space} SET version = (SELECT max(version) + 1 FROM {space} WHERE id = %(id)s) WHERE body = %(body)s

-- name: load_waiting
WITH place AS (UPDATE {space} SET seq = nextval('{space}_numbers') WHERE body = %(body)s
               RETURNING body, seq, priority, expires, unique_mode)
INSERT INTO {space}_ready (seq, body, number, priority, due, generation, attempt, fence, suspect, fifo, special, expires,
                           error)
SELECT seq, body, %(number)s, priority, %(due)s, %(generation)s, %(attempt)s, %(fence)s, %(suspect)s, %(fifo)s,
       expires IS NOT NULL OR left(unique_mode, 7) IS NOT DISTINCT FROM 'started', expires, %(error)s FROM place

-- name: load_history
INSERT INTO {space}_history (body, number, generation, attempt, state, due, started, ended, fence, owner, error)
VALUES (%(body)s, %(number)s, %(generation)s, %(attempt)s, %(state)s, %(due)s, %(started)s, %(ended)s, %(fence)s, %(owner)s,
        %(error)s)

-- name: load_dead
INSERT INTO {space}_dead (body, number, generation, attempt, due, started, ended, fence, owner, error)
VALUES (%(body)s, %(number)s, %(generation)s, %(attempt)s, %(due)s, %(started)s, %(ended)s, %(fence)s, %(owner)s, %(error)s)

-- name: is_loaded
SELECT 1 FROM {space}_history h JOIN {space} b ON b.body = h.body
WHERE %(part)s = 'history' AND b.id = %(id)s AND h.generation = %(generation)s AND h.attempt = %(attempt)s
AND h.ended = %(ended)s
UNION ALL
SELECT 1 FROM {space}_dead d JOIN {space} b ON b.body = d.body WHERE %(part)s = 'dead' AND b.id = %(id)s
UNION ALL
SELECT 1 FROM {space}_ready r JOIN {space} b ON b.seq = r.seq AND b.version = 0 WHERE %(part)s = 'live' AND b.id = %(id)s

-- === the server =========================================================================================================

-- name: announce
SELECT pg_notify(%(channel)s, '')

-- name: writers
-- Transactions that have written into a table and are not over; a prepared one has no process.
SELECT l.virtualtransaction FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE c.relname = %(table)s AND pg_table_is_visible(c.oid) AND l.mode = 'RowExclusiveLock'
AND l.pid IS DISTINCT FROM pg_backend_pid()
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())

-- name: stored_version
SELECT value FROM {space}_meta WHERE name = 'schema'

-- name: standbys
-- How many standbys there are, of how many we may know how they replicate, and how many commits wait for.
SELECT count(*), count(sync_state), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication

-- name: doctor
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('full_page_writes'),
       (SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname = %(ready)s),
       (SELECT coalesce(extract(epoch FROM max(now() - xact_start)), 0)::bigint FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid())

-- === links ==============================================================================================================

-- name: links_from
SELECT source, target, kind FROM {space}_links WHERE source = ANY(%(sources)s::text[])

-- name: add_links
INSERT INTO {space}_links (source, target, kind)
SELECT * FROM unnest(%(sources)s::text[], %(targets)s::text[], %(kinds)s::text[]) ON CONFLICT DO NOTHING

-- name: drop_links
-- The links that ends of these entries consume: all, of a dead letter those that wait for an end of any kind.
DELETE FROM {space}_links
WHERE source = ANY(%(sources)s::text[]) AND (kind = 'ended' OR NOT source = ANY(%(dead)s::text[]))

-- name: count_wait
-- Whoever counts the same entry waits until this transaction ends.
UPDATE {space}_waits SET needs = needs + %(needs)s, done = done + %(done)s, dead = dead + %(dead)s,
    cancelled = cancelled + %(cancelled)s, expired = expired + %(expired)s
WHERE id = %(id)s RETURNING id, needs, done, dead, cancelled, expired

-- name: lock_waits
SELECT id FROM {space}_waits WHERE id = ANY(%(ids)s::text[]) ORDER BY id FOR UPDATE

-- name: count_waits
UPDATE {space}_waits w SET needs = w.needs + g.needs, done = w.done + g.done, dead = w.dead + g.dead,
    cancelled = w.cancelled + g.cancelled, expired = w.expired + g.expired
FROM unnest(%(ids)s::text[], %(needs)s::int[], %(done)s::int[], %(dead)s::int[], %(cancelled)s::int[], %(expired)s::int[])
    g (id, needs, done, dead, cancelled, expired)
WHERE w.id = g.id

-- name: load_waits
INSERT INTO {space}_waits (id, needs, done, dead, cancelled, expired)
SELECT * FROM unnest(%(ids)s::text[], %(needs)s::int[], %(done)s::int[], %(dead)s::int[], %(cancelled)s::int[], %(expired)s::int[])

-- name: lock_places
-- Before they are read: what a statement reads of other tables is from before it waited for a lock.
SELECT seq FROM {space}_ready WHERE seq = ANY(%(seqs)s::bigint[]) ORDER BY seq FOR UPDATE

-- name: lock_held
SELECT r.seq, b.id, b.first_due FROM {space}_ready r JOIN {space} b ON b.body = r.body
WHERE r.seq = ANY(%(seqs)s::bigint[]) AND r.due = %(due)s ORDER BY r.seq

-- name: set_due
UPDATE {space}_ready SET due = %(due)s WHERE seq = ANY(%(seqs)s::bigint[])

-- name: mark_body
UPDATE {space} SET unique_mode = concat(unique_mode, '+')
WHERE body = %(body)s AND right(coalesce(unique_mode, ''), 1) <> '+'

-- name: mark_waiting
-- A claim that began before this must not take the entry with the body it saw: the row becomes another one.
UPDATE {space}_ready SET special = special WHERE seq = %(seq)s

-- name: mark_claimed
UPDATE {space}_claims SET linked = true WHERE record = %(record)s

-- name: waits
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: waits_of
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id = ANY(%(ids)s::text[]) ORDER BY id

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
UPDATE {space} SET unique_mode = concat(unique_mode, '+')
WHERE id = ANY(%(ids)s::text[]) AND version = 0 AND right(coalesce(unique_mode, ''), 1) <> '+'

-- name: drop_wait
-- Of an entry that nobody remembers any more, and that no link leads to.
DELETE FROM {space}_waits WHERE id = %(id)s AND needs = 0 AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = %(id)s)

-- name: drop_waits
-- Of entries that nobody remembers any more.
DELETE FROM {space}_waits w WHERE w.needs = 0 AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = w.id)

-- name: keep_results
INSERT INTO {space}_results AS r (id, generation, codec, until, value, queue, batch)
SELECT * FROM unnest(%(ids)s::text[], %(generations)s::int[], %(codecs)s::text[], %(untils)s::bigint[], %(values)s::bytea[],
                     %(queues)s::text[], %(batches)s::text[])
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
