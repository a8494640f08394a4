-- The statements of the MariaDB and MySQL driver, by name. {space} is replaced by the space's name; nothing else is, but
-- for {tail}, where the conditions of a search stand. %(now)s is the time of a fake clock, NULL otherwise: then the
-- server's clock decides.
--
-- A name may stand for several statements, each ending in a line that ends in ";": they run in order, and the last one
-- gives the result. After a line "-- each" a statement runs once for each value of its lists. After a line "-- hop" it
-- runs again with the first column of its last row as %(after)s until it finds nothing; all its rows together are the
-- result, or %(hopped)s of the next statement.
--
-- Rules that keep InnoDB from locking more than is meant, also in a caller's transaction that reads repeatably:
-- a row is locked by its whole primary key; what a statement has to know of other rows is read before by a SELECT of its
-- own, for inside UPDATE and DELETE every row that is read is locked; and FORCE INDEX, because on a small table the
-- server would rather read, and lock, all of it. A SELECT inside a SELECT that locks does not lock by itself.

-- === put ================================================================================================================

-- name: put_one
-- One new entry without unique id or labels, in one message. It fails if the queue has no row yet, or is FIFO and the
-- entry does not fit it (1048), and if the id is taken (1062).
SELECT max(q.number), max(q.fifo), coalesce(%(now)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6)))
INTO @penstock_number, @penstock_fifo, @penstock_now FROM {space}_queues q
WHERE q.queue = %(queue)s AND q.node = %(node)s AND (q.fifo = 0 OR (%(priority)s = 0 AND q.node = ''));
SELECT coalesce(%(due)s, @penstock_now) + %(delay)s, coalesce(@penstock_now + %(expires_in)s, %(expires)s)
INTO @penstock_due, @penstock_expires;
START TRANSACTION;
INSERT INTO {space} (id, number, priority, created, first_due, headers, expires, codec, type, payload)
VALUES (%(id)s, @penstock_number, %(priority)s, @penstock_now, @penstock_due, %(headers)s, @penstock_expires, %(codec)s,
        %(type)s, %(payload)s);
INSERT INTO {space}_ready (seq, body, line, urgency, at, number, priority, due, generation, attempt, fence, suspect, fifo,
                           special, expires)
VALUES (last_insert_id(), last_insert_id(), @penstock_number, -%(priority)s, if(@penstock_fifo, 0, @penstock_due),
        @penstock_number, %(priority)s, @penstock_due, 1, 0, 0, 0, @penstock_fifo, @penstock_expires IS NOT NULL,
        @penstock_expires);
COMMIT;
SELECT @penstock_due

-- name: put_bodies
-- The first half of putting many; the bodies get their numbers in this order.
-- each
INSERT INTO {space} (id, number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires, codec, type,
                     payload)
VALUES (%(ids)s, %(numbers)s, %(priorities)s, %(moment)s, %(dues)s, %(labels)s, %(headers)s, %(unique_keys)s,
        %(unique_modes)s, %(expires)s, %(codecs)s, %(types)s, %(payloads)s)

-- name: put_waiting
-- The second half: what was just put waits.
INSERT INTO {space}_ready (seq, body, line, urgency, at, number, priority, due, generation, attempt, fence, suspect, fifo,
                           special, expires)
SELECT b.body, b.body, b.number, -b.priority, if(b.number IN %(fifo_numbers)s, 0, b.first_due), b.number, b.priority,
       b.first_due, 1, 0, 0, 0, b.number IN %(fifo_numbers)s, b.expires IS NOT NULL OR left(b.unique_mode, 7) <=> 'started', b.expires
FROM json_table(%(ids)s, '$[*]' COLUMNS (id varchar(64) PATH '$')) g
STRAIGHT_JOIN {space} b FORCE INDEX (id) ON b.id = g.id AND b.version = 0

-- name: taken_ids
SELECT id FROM {space} WHERE id IN %(ids)s AND version = 0

-- name: known
-- The entry that has this id, whether it lives or has ended.
SELECT q.queue, b.payload, b.body, coalesce(b.seq, b.body) FROM {space} b JOIN {space}_queues q ON q.number = b.number
WHERE b.id = %(id)s AND b.version = 0

-- name: is_live
SELECT EXISTS (SELECT 1 FROM {space}_ready WHERE seq = %(seq)s) OR EXISTS (SELECT 1 FROM {space}_held WHERE seq = %(seq)s)

-- name: add_labels
-- each
INSERT IGNORE INTO {space}_labels (name, value, id) VALUES (%(names)s, %(values)s, %(ids)s)

-- name: hold_unique
INSERT IGNORE INTO {space}_unique (queue, unique_key, id, until) VALUES (%(queue)s, %(key)s, %(id)s, %(until)s)

-- name: unique_holder
SELECT id, until FROM {space}_unique WHERE queue = %(queue)s AND unique_key = %(key)s

-- name: unique_holder_now
SELECT id, until FROM {space}_unique WHERE queue = %(queue)s AND unique_key = %(key)s FOR UPDATE

-- name: take_unique
-- Take over a hold whose period is over, unless somebody was faster.
UPDATE {space}_unique SET id = %(id)s, until = %(until)s
WHERE queue = %(queue)s AND unique_key = %(key)s AND until = %(held_until)s

-- name: due_of
SELECT r.due FROM {space} b JOIN {space}_ready r ON r.seq = coalesce(b.seq, b.body) WHERE b.id = %(id)s AND b.version = 0
UNION ALL
SELECT h.due FROM {space} b JOIN {space}_held h ON h.seq = coalesce(b.seq, b.body) WHERE b.id = %(id)s AND b.version = 0

-- name: keep_version
-- Keep the body that ended attempts saw, under the next version, and give the entry a body of its own again.
SELECT (SELECT max(version) + 1 FROM {space} WHERE id = %(id)s) INTO @penstock_version;
SELECT if(EXISTS (SELECT 1 FROM {space}_history WHERE body = %(body)s), %(body)s, NULL) INTO @penstock_body;
UPDATE {space} SET version = @penstock_version WHERE body = @penstock_body;
INSERT INTO {space} (id, seq, number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires, codec,
                     type, payload)
SELECT id, coalesce(seq, body), number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires, codec,
       type, payload FROM {space} b WHERE b.body = @penstock_body;
SELECT last_insert_id() FROM dual WHERE @penstock_body IS NOT NULL

-- name: change_body
UPDATE {space} SET payload = %(payload)s, codec = %(codec)s, type = %(type)s, labels = %(labels)s, headers = %(headers)s,
    priority = %(priority)s, first_due = %(first_due)s, expires = %(expires)s WHERE body = %(body)s

-- name: change_waiting
UPDATE {space}_ready SET body = %(body)s, priority = %(priority)s, due = %(due)s, generation = %(generation)s,
    attempt = %(attempt)s, error = %(error)s, suspect = %(suspect)s, expires = %(expires)s, special = %(special)s,
    line = if(%(suspect)s, if(fifo, -1, 0), number), urgency = if(%(suspect)s, if(fifo, number, 0), -%(priority)s),
    at = if(fifo AND NOT %(suspect)s, 0, %(due)s)
WHERE seq = %(seq)s

-- name: lock_waiting
SELECT 1 FROM {space}_ready FORCE INDEX (PRIMARY) WHERE seq = %(seq)s FOR UPDATE

-- name: lock_claimed
SELECT c.record FROM {space}_held h FORCE INDEX (PRIMARY) STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = h.record
WHERE h.seq = %(seq)s FOR UPDATE

-- name: live_by_seq
SELECT * FROM {space}_waiting WHERE seq = %(seq)s UNION ALL SELECT * FROM {space}_leased WHERE seq = %(seq)s

-- name: live_waiting
-- A waiting entry that is locked, read past the snapshot of a caller's transaction.
SELECT r.seq, r.body, b.id, (SELECT q.queue FROM {space}_queues q WHERE q.number = r.number),
       (SELECT q.node FROM {space}_queues q WHERE q.number = r.number), r.number, r.fifo, r.generation, r.priority, b.created,
       r.due, b.first_due, r.attempt, r.fence, r.suspect, r.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires,
       b.codec, b.type, b.payload, NULL, NULL, NULL, NULL, NULL, NULL, r.seq, r.seq,
       (SELECT q.limit_label IS NOT NULL FROM {space}_queues q WHERE q.number = r.number)
FROM {space}_ready r FORCE INDEX (PRIMARY) STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = r.body
WHERE r.seq = %(seq)s LOCK IN SHARE MODE

-- name: live_claimed
-- The same of one that a claim holds.
SELECT h.seq, h.body, b.id, (SELECT q.queue FROM {space}_queues q WHERE q.number = c.number),
       (SELECT q.node FROM {space}_queues q WHERE q.number = c.number), c.number,
       (SELECT q.fifo FROM {space}_queues q WHERE q.number = c.number), h.generation, b.priority, b.created, h.due, b.first_due,
       h.attempt, h.fence, h.suspect, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
       b.payload, c.record, c.claim, c.owner, c.claimed, c.until, c.max_attempts, h.seq, h.seq,
       (SELECT q.limit_label IS NOT NULL FROM {space}_queues q WHERE q.number = c.number)
FROM {space}_held h FORCE INDEX (PRIMARY) STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = h.record
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = h.body WHERE h.seq = %(seq)s LOCK IN SHARE MODE

-- name: last_end
-- The latest generation of an ended entry and the highest fence it had.
SELECT h.number, h.state, h.generation, h.fence, b.body, b.id, b.unique_key, b.unique_mode, b.priority
FROM {space} v JOIN {space}_history h ON h.body = v.body JOIN {space} b ON b.id = v.id AND b.version = 0
WHERE v.id = %(id)s ORDER BY h.generation DESC, h.fence DESC, h.seq DESC LIMIT 1

-- name: dead_by_id
SELECT d.number, 'dead', d.generation, d.fence, b.body, b.id, b.unique_key, b.unique_mode, b.priority, d.seq
FROM (SELECT * FROM {space} x WHERE x.id = %(id)s AND x.version = 0 LIMIT 1) b
STRAIGHT_JOIN {space}_dead d FORCE INDEX (body) ON d.body = b.body FOR UPDATE

-- name: lock_body
-- Of those who replay an entry at the same time each waits for the one before.
SELECT body FROM {space} WHERE id = %(id)s AND version = 0 FOR UPDATE

-- name: replay
-- A new place at the end of its queue, as the next generation. Its number is drawn as that of a body that is gone at once.
UPDATE {space} SET first_due = %(due)s, expires = NULL WHERE body = %(body)s;
INSERT INTO {space} (id, version, number, priority, created, first_due, codec, type)
SELECT id, -connection_id(), number, priority, created, first_due, codec, '' FROM {space} b WHERE b.body = %(body)s;
SELECT if(row_count() = 1, last_insert_id(), NULL) INTO @penstock_seq;
DELETE FROM {space} WHERE body = @penstock_seq;
UPDATE {space} SET seq = @penstock_seq WHERE body = %(body)s AND @penstock_seq IS NOT NULL;
INSERT INTO {space}_ready (seq, body, line, urgency, at, number, priority, due, generation, attempt, fence, suspect, fifo,
                           special)
SELECT @penstock_seq, body, %(number)s, -priority, if(%(fifo)s, 0, %(due)s), %(number)s, priority, %(due)s, %(generation)s, 0,
       %(fence)s, 0, %(fifo)s, left(unique_mode, 7) <=> 'started' FROM {space} b
WHERE b.body = %(body)s AND @penstock_seq IS NOT NULL

-- === queues =============================================================================================================

-- name: queue_row
SELECT number, queue, node, fifo, in_flight, rate_count, rate_period, rate_next, limit_label, limit_count
FROM {space}_queues WHERE queue = %(queue)s AND node = %(node)s

-- name: queue_of_number
SELECT queue, node FROM {space}_queues WHERE number = %(number)s

-- name: queue_row_now
-- The same past the snapshot of a caller's transaction.
SELECT number, queue, node, fifo, in_flight, rate_count, rate_period, rate_next, limit_label, limit_count
FROM {space}_queues WHERE queue = %(queue)s AND node = %(node)s LOCK IN SHARE MODE

-- name: add_queue
SELECT count(*) INTO @penstock_locked FROM {space}_locks WHERE queue = %(queue)s;
INSERT IGNORE INTO {space}_queues (queue, node, locked, fifo, rate_count, rate_period, limit_label, limit_count)
VALUES (%(queue)s, %(node)s, @penstock_locked, %(fifo)s, %(rate_count)s, %(rate_period)s, %(limit_label)s, %(limit_count)s)

-- name: lock_queue_rows
SELECT number FROM {space}_queues FORCE INDEX (queue) WHERE queue = %(queue)s ORDER BY number FOR UPDATE

-- name: define_queue
UPDATE {space}_queues SET fifo = %(fifo)s, rate_count = %(rate_count)s, rate_period = %(rate_period)s, rate_next = NULL,
    limit_label = %(limit_label)s, limit_count = %(limit_count)s WHERE queue = %(queue)s

-- name: queue_holds_any
SELECT 1 FROM {space}_queues q WHERE q.queue = %(queue)s AND (
    EXISTS (SELECT 1 FROM {space}_ready r WHERE r.line = q.number)
    OR EXISTS (SELECT 1 FROM {space}_ready r WHERE r.line IN (-1, 0) AND r.number = q.number)
    OR EXISTS (SELECT 1 FROM {space}_claims c WHERE c.number = q.number)) LIMIT 1

-- name: count_in_flight_by
-- From now on the claims of a queue tell which label values they hold.
SELECT json_arrayagg(h.seq) INTO @penstock_seqs FROM {space}_claims c
STRAIGHT_JOIN {space}_held h FORCE INDEX (claim) ON h.claim = c.claim AND h.record = c.record WHERE c.number IN %(numbers)s;
UPDATE json_table(coalesce(@penstock_seqs, '[]'), '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = h.body
SET h.limit_value = if(%(label)s IS NULL, NULL, json_unquote(json_extract(b.labels, concat('$."', %(label)s, '"'))))

-- name: set_lock
INSERT INTO {space}_locks (queue, holder, reason, since) VALUES (%(queue)s, %(holder)s, %(reason)s, %(since)s)
ON DUPLICATE KEY UPDATE reason = %(reason)s

-- name: drop_lock
DELETE FROM {space}_locks WHERE queue = %(queue)s AND holder = %(holder)s

-- name: mark_locked
SELECT count(*) INTO @penstock_locked FROM {space}_locks WHERE queue = %(queue)s;
UPDATE {space}_queues SET locked = @penstock_locked WHERE queue = %(queue)s

-- name: locks
SELECT queue, holder, reason, since FROM {space}_locks
WHERE queue >= %(first)s AND queue < %(last)s ORDER BY queue, holder

-- === claim ==============================================================================================================

-- name: peek
-- Whether one queue may have something for a claim: the time, whether it has an order or limits, whether it is
-- locked, whether something suspect or sticky or of several priorities waits there, and when the first is due.
SELECT coalesce(%(now)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))),
       q.fifo = 1 OR q.rate_count IS NOT NULL OR q.limit_label IS NOT NULL,
       q.locked > 0 OR EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue),
       EXISTS (SELECT 1 FROM {space}_ready x FORCE INDEX (in_order) STRAIGHT_JOIN {space}_queues n ON n.number = x.number
               WHERE x.line IN (-1, 0) AND n.queue = %(queue)s)
       OR EXISTS (SELECT 1 FROM {space}_queues n STRAIGHT_JOIN {space}_ready x FORCE INDEX (in_order) ON x.line = n.number
                  WHERE n.queue = %(queue)s AND n.node = %(node)s AND n.node <> '')
       OR (SELECT x.urgency FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number
           ORDER BY x.urgency, x.at, x.seq LIMIT 1)
       <> (SELECT x.urgency FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number
           ORDER BY x.urgency DESC, x.at DESC, x.seq DESC LIMIT 1),
       (SELECT x.at FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number
        ORDER BY x.urgency, x.at, x.seq LIMIT 1)
FROM {space}_queues q WHERE q.queue = %(queue)s AND q.node = ''

-- name: settle_done
-- Ends successes, each under the claim it was settled with, which it names by its place in the list of claims: a token that
-- is over ends nothing. First they and the claims that hold them are locked, then the time is read. How many there were,
-- and their bodies where some were missing.
START TRANSACTION;
SELECT json_arrayagg(json_array(l.record, l.entries)), CAST(coalesce(sum(l.entries), 0) AS signed)
INTO @penstock_left, @penstock_settled FROM (
    SELECT c.record, k.entries FROM (
        SELECT h.record, count(*) AS entries
        FROM json_table(%(endings)s, '$[*]' COLUMNS (seq bigint PATH '$[0]', claim int PATH '$[1]')) g
        STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
        WHERE find_in_set(h.claim, %(claims)s) = g.claim AND h.linked = 0 GROUP BY h.record LOCK IN SHARE MODE) k
    STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record ORDER BY c.record FOR UPDATE) l;
SELECT coalesce(%(now)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))) INTO @penstock_now;
INSERT INTO {space}_history (body, number, generation, attempt, state, due, started, ended, fence, claim, owner)
SELECT h.body, c.number, h.generation, h.attempt, 'done', h.due, coalesce(g.started, c.claimed), @penstock_now, h.fence,
       c.claim, c.owner
FROM json_table(%(endings)s, '$[*]' COLUMNS (seq bigint PATH '$[0]', claim int PATH '$[1]', started bigint PATH '$[2]')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = h.record
WHERE find_in_set(h.claim, %(claims)s) = g.claim AND h.linked = 0;
SELECT json_arrayagg(h.body) INTO @penstock_bodies
FROM json_table(if(@penstock_settled < %(count)s, %(endings)s, '[]'), '$[*]'
                COLUMNS (seq bigint PATH '$[0]', claim int PATH '$[1]')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
WHERE find_in_set(h.claim, %(claims)s) = g.claim AND h.linked = 0;
DELETE h FROM json_table(%(endings)s, '$[*]' COLUMNS (seq bigint PATH '$[0]', claim int PATH '$[1]')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
WHERE find_in_set(h.claim, %(claims)s) = g.claim AND h.linked = 0;
UPDATE json_table(coalesce(@penstock_left, '[]'), '$[*]' COLUMNS (record bigint PATH '$[0]', entries int PATH '$[1]')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record SET c.size = c.size - k.entries;
DELETE c FROM json_table(coalesce(@penstock_left, '[]'), '$[*]' COLUMNS (record bigint PATH '$[0]')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record WHERE c.size = 0

-- name: check_all_are_held
-- Where one is missing, the parts below would do too much: this fails (1048), and each is looked at.
INSERT INTO {space}_claims (claim, number, owner, claimed, until, size)
SELECT NULL, 0, '', 0, 0, 0 FROM dual WHERE @penstock_settled < %(count)s

-- name: keep_results_of_held
-- What handlers returned; a part of the message of settle_done. What many have in common is named once, with a number.
REPLACE INTO {space}_results (id, generation, codec, until, value, queue, batch)
SELECT g.id, p.generation, p.codec, @penstock_now + p.kept, from_base64(g.value), p.queue, p.batch
FROM json_table(%(result_places)s, '$[*]' COLUMNS (place int PATH '$[0]', generation int PATH '$[1]',
    codec varchar(64) PATH '$[2]', kept bigint PATH '$[3]', queue varchar(128) PATH '$[4]', batch varchar(64) PATH '$[5]')) p
STRAIGHT_JOIN json_table(%(results)s, '$[*]' COLUMNS (id varchar(64) PATH '$[0]', value longtext PATH '$[1]',
    place int PATH '$[2]')) g ON g.place = p.place

-- name: consume_links_of_held
-- The links of successes; a part of the message of settle_done. Nobody adds links to these meanwhile: who does so locks what
-- is held, as settle_done has.
--
-- 1. The links are locked and counted by target.
-- 2. What the targets need is locked, in the order of their ids, as everybody does, and so much less; the links are dropped.
-- 3. What needs nothing any more is released where it is still held, and the bell rings. When it is due is read when it is
--    locked: somebody may have put it off meanwhile. What a forgotten entry needed is forgotten, too.
SELECT json_arrayagg(json_array(l.target, l.consumed, l.done)) INTO @penstock_counts FROM (
    SELECT l.target, count(*) AS consumed, sum(l.kind <> 'open') AS done
    FROM json_table(%(linked)s, '$[*]' COLUMNS (id varchar(64) PATH '$')) g
    STRAIGHT_JOIN {space}_links l FORCE INDEX (PRIMARY) ON l.source = g.id
    GROUP BY l.target ORDER BY l.target LIMIT 18446744073709551615 FOR UPDATE) l;
UPDATE json_table(coalesce(@penstock_counts, '[]'), '$[*]' COLUMNS (id varchar(64) PATH '$[0]', consumed int PATH '$[1]',
                  done int PATH '$[2]')) g
STRAIGHT_JOIN {space}_waits w FORCE INDEX (PRIMARY) ON w.id = g.id SET w.needs = w.needs - g.consumed, w.done = w.done + g.done;
DELETE l FROM json_table(%(linked)s, '$[*]' COLUMNS (id varchar(64) PATH '$')) g
STRAIGHT_JOIN {space}_links l FORCE INDEX (PRIMARY) ON l.source = g.id;
SELECT json_arrayagg(if(b.body IS NULL, w.id, NULL)), json_arrayagg(coalesce(b.seq, b.body))
INTO @penstock_forgotten, @penstock_places
FROM json_table(coalesce(@penstock_counts, '[]'), '$[*]' COLUMNS (id varchar(64) PATH '$[0]')) g
STRAIGHT_JOIN {space}_waits w FORCE INDEX (PRIMARY) ON w.id = g.id
LEFT JOIN {space} b FORCE INDEX (id) ON b.id = w.id AND b.version = 0 WHERE w.needs = 0;
SELECT json_arrayagg(json_array(h.seq, h.first_due)) INTO @penstock_released FROM (
    SELECT r.seq, b.first_due FROM json_table(coalesce(@penstock_places, '[]'), '$[*]' COLUMNS (seq bigint PATH '$')) g
    STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq
    STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = r.body WHERE r.due = %(held)s FOR UPDATE) h;
UPDATE json_table(coalesce(@penstock_released, '[]'), '$[*]' COLUMNS (seq bigint PATH '$[0]', due bigint PATH '$[1]')) g
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq
SET r.due = greatest(g.due, @penstock_now), r.at = greatest(g.due, @penstock_now) WHERE r.due = %(held)s;
DELETE w FROM json_table(coalesce(@penstock_forgotten, '[]'), '$[*]' COLUMNS (id varchar(64) PATH '$')) g
STRAIGHT_JOIN {space}_waits w FORCE INDEX (PRIMARY) ON w.id = g.id WHERE w.needs = 0;
INSERT INTO {space}_bell (number) SELECT NULL FROM dual WHERE @penstock_released IS NOT NULL

-- name: claim_plain
-- Claims the next entries of one plain queue.
--
-- 1. The queue's row, shared with other claims; somebody who locks the queue has been seen or waits for us. There is no
--    number unless the queue is plain: neither FIFO nor limited, nothing suspect or sticky there.
-- 2. The time, read when that lock is held.
-- 3. The priority that is taken from: the first that has something, if that is due and, where all priorities are wanted,
--    the only one. With a hint of where the last claim ended (urgency, from_at) only higher priorities are looked at, and
--    what lies before it in its own is not.
-- 4. One record for what is taken. An entry that needs a closer look has no body here, which fails (1048).
-- 5. All is read when it is committed.
SELECT max(q.number) INTO @penstock_number FROM {space}_queues q FORCE INDEX (queue)
WHERE q.queue = %(queue)s AND q.node = '' AND q.fifo = 0 AND q.rate_count IS NULL AND q.limit_label IS NULL AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue)
AND NOT EXISTS (SELECT 1 FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = 0 AND x.number = q.number)
AND NOT EXISTS (SELECT 1 FROM {space}_queues n STRAIGHT_JOIN {space}_ready x FORCE INDEX (in_order)
                ON x.line IN (0, n.number) AND x.number = n.number
                WHERE n.queue = %(queue)s AND n.node = %(node)s AND n.node <> '') LOCK IN SHARE MODE;
SELECT o.moment, f.urgency, f.at,
       (SELECT x.urgency FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = if(%(whole)s, @penstock_number, NULL)
        ORDER BY x.urgency DESC, x.at DESC, x.seq DESC LIMIT 1)
INTO @penstock_now, @penstock_first, @penstock_first_at, @penstock_last
FROM (SELECT coalesce(%(now)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))) AS moment) o
LEFT JOIN (SELECT x.urgency, x.at FROM {space}_ready x FORCE INDEX (in_order)
           WHERE x.line = @penstock_number AND x.urgency < coalesce(%(urgency)s, 1000)
           ORDER BY x.urgency, x.at, x.seq LIMIT 1) f ON TRUE;
SELECT coalesce(@penstock_last <> @penstock_first, 0),
       CASE WHEN @penstock_last <> @penstock_first OR @penstock_number IS NULL THEN NULL
            WHEN @penstock_first_at <= @penstock_now THEN @penstock_first ELSE %(urgency)s END,
       if(@penstock_first_at <= @penstock_now, -4611686018427387904, coalesce(%(from_at)s, 0))
INTO @penstock_several, @penstock_urgency, @penstock_from;
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, size)
SELECT %(claim)s, @penstock_number, %(owner)s, @penstock_now, @penstock_now + %(lease)s, %(max_attempts)s, 0
FROM dual WHERE @penstock_urgency IS NOT NULL;
INSERT INTO {space}_held (seq, claim, record, body, due, generation, attempt, fence, suspect, error)
SELECT x.seq, %(claim)s, last_insert_id(), if(x.special OR x.attempt >= %(attempts)s, NULL, x.body), x.due, x.generation,
       x.attempt + 1, x.fence + 1, x.suspect, x.error
FROM {space}_ready x FORCE INDEX (in_order)
WHERE x.line = @penstock_number AND x.urgency = @penstock_urgency AND x.at >= @penstock_from AND x.at <= @penstock_now
ORDER BY x.at, x.seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED;
UPDATE {space}_claims SET size = row_count() WHERE record = if(@penstock_urgency IS NULL, NULL, last_insert_id());
DELETE FROM {space}_claims WHERE record = if(@penstock_urgency IS NULL, NULL, last_insert_id()) AND size = 0;
DELETE r FROM {space}_held h FORCE INDEX (claim) STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = h.seq
WHERE h.claim = if(@penstock_urgency IS NULL, NULL, %(claim)s);
COMMIT;
SELECT @penstock_now, @penstock_number, @penstock_several, @penstock_settled, @penstock_bodies,
       if(@penstock_first_at > @penstock_now, @penstock_first_at, NULL), @penstock_released IS NOT NULL;
SELECT concat('[', concat_ws(',', h.seq, h.body, b.priority, b.created, h.due, b.first_due, h.generation, h.attempt, h.fence,
                             coalesce(right(b.unique_mode, 1) = '+', 0)), ']'),
       b.id, h.error, b.labels, b.headers, b.unique_key, b.expires, b.codec, b.type, b.payload
FROM {space}_held h FORCE INDEX (claim) STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = h.body
WHERE h.claim = %(claim)s

-- name: claimed_before
-- What a claim holds whose reply was lost.
SELECT * FROM {space}_leased WHERE claim = %(claim)s AND owner = %(owner)s ORDER BY seq

-- name: due_suspects
-- Suspects that may be handed out, the longest due first; those after (due, seq). They are read when they are locked.
SELECT json_arrayagg(c.seq) INTO @penstock_seqs FROM (
    SELECT s.seq FROM {space}_ready s FORCE INDEX (in_order)
    WHERE s.line IN (-1, 0) AND s.due <= %(moment)s
    AND (s.due > %(after_due)s OR (s.due = %(after_due)s AND s.seq > %(after_seq)s))
    AND s.number IN (SELECT q.number FROM {space}_queues q WHERE q.node IN ('', %(node)s) AND q.locked = 0
                     AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue))
    ORDER BY s.due, s.seq LIMIT 100) c;
SELECT json_arrayagg(c.seq) INTO @penstock_seqs FROM (
    SELECT s.seq FROM json_table(coalesce(@penstock_seqs, '[]'), '$[*]' COLUMNS (seq bigint PATH '$')) g
    STRAIGHT_JOIN {space}_ready s FORCE INDEX (PRIMARY) ON s.seq = g.seq
    WHERE s.suspect = 1 AND s.due <= %(moment)s FOR UPDATE SKIP LOCKED) c;
SELECT w.* FROM json_table(coalesce(@penstock_seqs, '[]'), '$[*]' COLUMNS (seq bigint PATH '$')) g
JOIN {space}_waiting w ON w.seq = g.seq ORDER BY w.due, w.seq

-- name: next_suspect
SELECT due FROM {space}_ready FORCE INDEX (in_order) WHERE line IN (-1, 0) AND due > %(moment)s ORDER BY due, seq LIMIT 1

-- name: waiting_by_name
-- Queues asked for by name, with the due time of the first entry of each; NULL if nothing waits there.
SELECT q.number, q.queue, q.node, q.fifo, q.in_flight, q.rate_count, q.rate_period, q.rate_next, q.limit_label,
       q.limit_count, (SELECT x.due FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number
                       ORDER BY x.urgency, x.at, x.seq LIMIT 1)
FROM {space}_queues q FORCE INDEX (queue) WHERE q.queue IN %(queues)s AND q.node IN ('', %(node)s)

-- name: waiting_by_number
SELECT q.number, q.queue, q.node, q.fifo, q.in_flight, q.rate_count, q.rate_period, q.rate_next, q.limit_label,
       q.limit_count, (SELECT x.due FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number
                       ORDER BY x.urgency, x.at, x.seq LIMIT 1)
FROM {space}_queues q FORCE INDEX (PRIMARY) WHERE q.number IN %(numbers)s

-- name: waiting_in_family
-- The queues of a family that hold something: of a queue with many entries some are read, of the others all.
-- hop
SELECT DISTINCT x.line FROM (
    SELECT line FROM {space}_ready FORCE INDEX (in_order) WHERE line > coalesce(%(after)s, 0) ORDER BY line LIMIT 500) x
ORDER BY x.line;
SELECT q.number FROM {space}_queues q FORCE INDEX (PRIMARY)
WHERE q.number IN %(hopped)s AND q.queue >= %(first)s AND q.queue < %(last)s AND q.node IN ('', %(node)s) ORDER BY q.number

-- name: share_queues
-- Hold queues that others may claim from too; who locks a queue waits.
SELECT q.number FROM {space}_queues q FORCE INDEX (queue) WHERE q.queue IN %(queues)s AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue) ORDER BY q.number LOCK IN SHARE MODE

-- name: wait_for_queues
-- Hold queues that one claim at a time takes from.
SELECT q.number FROM {space}_queues q FORCE INDEX (queue) WHERE q.queue IN %(queues)s AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue) ORDER BY q.number FOR UPDATE

-- name: take_free_queues
-- The same, passing over those that another claim holds.
SELECT q.number FROM {space}_queues q FORCE INDEX (queue) WHERE q.queue IN %(queues)s AND q.locked = 0
AND NOT EXISTS (SELECT 1 FROM {space}_locks k WHERE k.queue = q.queue) ORDER BY q.number FOR UPDATE SKIP LOCKED

-- name: heads
-- The earliest due time per priority, hopping from priority to priority.
-- hop
SELECT x.urgency, -x.urgency, x.due FROM {space}_ready x FORCE INDEX (in_order)
WHERE x.line = %(number)s AND x.urgency > coalesce(%(after)s, -1000) ORDER BY x.urgency, x.at, x.seq LIMIT 1

-- name: candidates
-- Due entries of one priority in their order, those after (due, seq). They are read when they are locked.
SELECT json_arrayagg(c.seq) INTO @penstock_seqs FROM (
    SELECT x.seq FROM {space}_ready x FORCE INDEX (in_order)
    WHERE x.line = %(number)s AND x.urgency = -%(priority)s AND x.at >= %(after_due)s AND x.at <= %(moment)s
    AND (x.at > %(after_due)s OR x.seq > %(after_seq)s)
    ORDER BY x.at, x.seq LIMIT %(limit)s FOR UPDATE SKIP LOCKED) c;
SELECT r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence, r.suspect, r.error,
       b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM json_table(coalesce(@penstock_seqs, '[]'), '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = r.body ORDER BY r.due, r.seq

-- name: fifo_places
-- Where the first entries of FIFO queues stand that have none in flight; a suspect is the first of its queue.
SELECT coalesce(
    (SELECT x.seq FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = -1 AND x.urgency = q.number LIMIT 1),
    (SELECT x.seq FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number AND x.fifo = 1
     ORDER BY x.urgency, x.at, x.seq LIMIT 1)) AS seq
FROM {space}_queues q FORCE INDEX (PRIMARY) WHERE q.number IN %(numbers)s AND q.in_flight IS NULL HAVING seq IS NOT NULL

-- name: fifo_heads
-- The first entries of FIFO queues that have none in flight; a suspect is the first of its queue.
SELECT r.number, r.seq, r.body, b.id, r.priority, b.created, r.due, b.first_due, r.generation, r.attempt, r.fence,
       r.suspect, r.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type, b.payload
FROM (SELECT coalesce(
          (SELECT x.seq FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = -1 AND x.urgency = q.number LIMIT 1),
          (SELECT x.seq FROM {space}_ready x FORCE INDEX (in_order) WHERE x.line = q.number AND x.fifo = 1
           ORDER BY x.urgency, x.at, x.seq LIMIT 1)) AS seq
      FROM {space}_queues q FORCE INDEX (PRIMARY) WHERE q.number IN %(numbers)s AND q.in_flight IS NULL LIMIT 1000000) h
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = h.seq STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = r.body

-- name: lock_heads
-- Those of them that are still there.
SELECT r.seq FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq ORDER BY r.seq FOR UPDATE

-- name: adopt_fifo
-- A put that began before its queue became FIFO and was committed afterwards did not know it.
UPDATE {space}_ready r FORCE INDEX (in_order) SET r.fifo = 1, r.urgency = 0, r.at = 0
WHERE r.line IN %(numbers)s AND r.fifo = 0

-- name: take
DELETE r FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq

-- name: lease
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, size)
VALUES (%(claim)s, %(number)s, %(owner)s, %(claimed)s, %(until)s, %(max_attempts)s, json_length(%(seqs)s));
-- each
INSERT INTO {space}_held (seq, claim, record, body, due, generation, attempt, fence, suspect, error, limit_value)
VALUES (%(seqs)s, %(claim)s, last_insert_id(), %(bodies)s, %(dues)s, %(generations)s, %(attempts)s, %(fences)s, %(suspects)s,
        %(errors)s, %(limit_values)s)

-- name: set_in_flight
-- each
UPDATE {space}_queues SET in_flight = %(seqs)s WHERE number = %(numbers)s

-- name: spend_rate
UPDATE {space}_queues SET rate_next = %(rate_next)s WHERE queue = %(queue)s AND node = ''

-- name: label_values_in_flight
SELECT h.limit_value, count(*) FROM {space}_queues q JOIN {space}_claims c ON c.number = q.number
JOIN {space}_held h ON h.claim = c.claim AND h.record = c.record
WHERE q.queue = %(queue)s AND h.limit_value IS NOT NULL GROUP BY h.limit_value

-- === settle =============================================================================================================

-- name: lock_claims
SELECT c.record FROM (
    SELECT DISTINCT h.record FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
    STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq WHERE h.claim IN %(claims)s LOCK IN SHARE MODE) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record ORDER BY c.record FOR UPDATE

-- name: held
-- Read past the snapshot of a caller's transaction, which may be older than the claim.
SELECT h.seq, h.body, b.id, (SELECT q.queue FROM {space}_queues q WHERE q.number = c.number),
       (SELECT q.node FROM {space}_queues q WHERE q.number = c.number), c.number,
       (SELECT q.fifo FROM {space}_queues q WHERE q.number = c.number), h.generation, b.priority, b.created, h.due, b.first_due,
       h.attempt, h.fence, h.suspect, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
       b.payload, c.record, c.claim, c.owner, c.claimed, c.until, c.max_attempts, h.seq, h.seq,
       (SELECT q.limit_label IS NOT NULL FROM {space}_queues q WHERE q.number = c.number)
FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = h.record
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = h.body WHERE h.claim IN %(claims)s LOCK IN SHARE MODE

-- name: let_go
-- Take entries out of the claims that hold them; a claim that holds nothing else goes.
SELECT json_arrayagg(json_array(k.record, k.entries)) INTO @penstock_left FROM (
    SELECT h.record, count(*) AS entries FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
    STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
    WHERE h.claim IN %(claims)s GROUP BY h.record LOCK IN SHARE MODE) k;
DELETE h FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq WHERE h.claim IN %(claims)s;
UPDATE json_table(coalesce(@penstock_left, '[]'), '$[*]' COLUMNS (record bigint PATH '$[0]', entries int PATH '$[1]')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record SET c.size = c.size - k.entries;
DELETE c FROM json_table(coalesce(@penstock_left, '[]'), '$[*]' COLUMNS (record bigint PATH '$[0]')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record WHERE c.size = 0

-- name: record_attempts
-- each
INSERT INTO {space}_history (body, number, generation, attempt, state, due, started, ended, fence, claim, owner, error)
VALUES (%(bodies)s, %(numbers)s, %(generations)s, %(attempts)s, %(states)s, %(dues)s, %(started)s, %(moment)s, %(fences)s,
        %(claims)s, %(owners)s, %(errors)s)

-- name: add_dead
-- each
INSERT INTO {space}_dead (body, number, generation, attempt, due, started, ended, fence, owner, error)
VALUES (%(bodies)s, %(numbers)s, %(generations)s, %(attempts)s, %(dues)s, %(started)s, %(moment)s, %(fences)s, %(owners)s,
        %(errors)s)

-- name: give_back
-- each
INSERT INTO {space}_ready (seq, body, line, urgency, at, number, priority, due, generation, attempt, fence, suspect, fifo,
                           special, expires, error)
SELECT %(seqs)s, b.body, if(%(suspects)s, if(%(fifos)s, -1, 0), %(numbers)s),
       if(%(suspects)s, if(%(fifos)s, %(numbers)s, 0), -b.priority), if(%(fifos)s AND NOT %(suspects)s, 0, %(dues)s),
       %(numbers)s, b.priority, %(dues)s, %(generations)s, %(attempts)s, %(fences)s, %(suspects)s, %(fifos)s,
       b.expires IS NOT NULL OR left(b.unique_mode, 7) <=> 'started', b.expires, %(errors)s
FROM {space} b WHERE b.body = %(bodies)s

-- name: release_unique
-- each
DELETE FROM {space}_unique WHERE queue = %(queues)s AND unique_key = %(keys)s AND id = %(ids)s AND until IS NULL

-- name: clear_in_flight
UPDATE json_table(%(numbers)s, '$[*]' COLUMNS (number int PATH '$')) g
STRAIGHT_JOIN {space}_queues q FORCE INDEX (PRIMARY) ON q.number = g.number SET q.in_flight = NULL
WHERE q.in_flight IN %(seqs)s

-- name: remember
-- each
INSERT IGNORE INTO {space}_settled (claim, id, outcome, ended) VALUES (%(claims)s, %(ids)s, %(outcomes)s, %(moment)s)

-- name: settled_as
-- What became of an entry under a claim: the states of its attempts, and outcomes that left none.
SELECT h.state FROM {space} b JOIN {space}_history h ON h.body = b.body WHERE b.id = %(id)s AND h.claim = %(claim)s
UNION ALL
SELECT outcome FROM {space}_settled WHERE claim = %(claim)s AND id = %(id)s

-- name: answer
SELECT value FROM {space}_meta WHERE name = %(name)s

-- name: keep_answer
INSERT INTO {space}_meta (name, value) VALUES (%(name)s, %(value)s)

-- name: extend
-- Prolong the claims of which everything held is named; the rest is found by its absence. Nobody is waited for: a
-- transaction of a user's that ends one entry must not cost the leases of others.
SELECT json_arrayagg(c.record) INTO @penstock_records FROM (
    SELECT h.record, count(*) AS entries FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
    STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq WHERE h.claim IN %(claims)s GROUP BY h.record) k
JOIN {space}_claims c ON c.record = k.record AND c.size <= k.entries;
SELECT json_arrayagg(m.record) INTO @penstock_records FROM (
    SELECT c.record FROM json_table(coalesce(@penstock_records, '[]'), '$[*]' COLUMNS (record bigint PATH '$')) k
    STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record FOR UPDATE SKIP LOCKED) m;
SELECT coalesce(%(now)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))) INTO @penstock_now;
UPDATE json_table(coalesce(@penstock_records, '[]'), '$[*]' COLUMNS (record bigint PATH '$')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record SET c.until = greatest(c.until, @penstock_now + %(lease)s);
SELECT h.claim, h.seq, @penstock_now + %(lease)s
FROM json_table(coalesce(@penstock_records, '[]'), '$[*]' COLUMNS (record bigint PATH '$')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record
STRAIGHT_JOIN {space}_held h FORCE INDEX (claim) ON h.claim = c.claim AND h.record = c.record

-- name: held_until
-- The leases as they are, also those that a transaction which is under way may end.
SELECT h.claim, h.seq, c.until FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = h.record WHERE h.claim IN %(claims)s

-- name: split_off
-- Move some entries of a claim to a record of their own, which the claim's token is good for too.
SELECT json_arrayagg(c.record) INTO @penstock_records FROM (
    SELECT h.record, count(*) AS entries FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
    STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq WHERE h.claim IN %(claims)s GROUP BY h.record) k
JOIN {space}_claims c ON c.record = k.record AND c.size > k.entries;
SELECT json_arrayagg(m.record) INTO @penstock_records FROM (
    SELECT c.record FROM json_table(coalesce(@penstock_records, '[]'), '$[*]' COLUMNS (record bigint PATH '$')) k
    STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record FOR UPDATE SKIP LOCKED) m;
INSERT INTO {space}_claims (claim, number, owner, claimed, until, max_attempts, size, split_from)
SELECT c.claim, c.number, c.owner, c.claimed, c.until, c.max_attempts,
       (SELECT count(*) FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
        STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq WHERE h.record = c.record), c.record
FROM json_table(coalesce(@penstock_records, '[]'), '$[*]' COLUMNS (record bigint PATH '$')) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record;
SELECT json_arrayagg(json_array(n.record, n.split_from, n.size)) INTO @penstock_records
FROM {space}_claims n WHERE n.claim IN %(claims)s AND n.split_from IS NOT NULL;
SELECT json_arrayagg(json_array(h.seq, k.record)) INTO @penstock_seqs
FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = g.seq
STRAIGHT_JOIN json_table(coalesce(@penstock_records, '[]'), '$[*]'
                         COLUMNS (record bigint PATH '$[0]', whole bigint PATH '$[1]')) k ON k.whole = h.record;
UPDATE json_table(coalesce(@penstock_seqs, '[]'), '$[*]' COLUMNS (seq bigint PATH '$[0]', record bigint PATH '$[1]')) k
STRAIGHT_JOIN {space}_held h FORCE INDEX (PRIMARY) ON h.seq = k.seq SET h.record = k.record;
UPDATE json_table(coalesce(@penstock_records, '[]'), '$[*]'
                  COLUMNS (record bigint PATH '$[0]', whole bigint PATH '$[1]', size int PATH '$[2]')) k
STRAIGHT_JOIN {space}_claims n FORCE INDEX (PRIMARY) ON n.record = k.record
STRAIGHT_JOIN {space}_claims w FORCE INDEX (PRIMARY) ON w.record = k.whole
SET w.size = w.size - k.size, n.split_from = NULL

-- === reap ===============================================================================================================

-- name: run_out
-- Claims whose lease is over, the longest over first.
SELECT c.record, c.claim FROM (
    SELECT record FROM {space}_claims FORCE INDEX (until) WHERE until <= %(moment)s ORDER BY until LIMIT %(limit)s) k
STRAIGHT_JOIN {space}_claims c FORCE INDEX (PRIMARY) ON c.record = k.record WHERE c.until <= %(moment)s FOR UPDATE SKIP LOCKED

-- name: held_by_record
SELECT l.* FROM {space}_leased l WHERE l.claim IN %(claims)s AND l.record IN %(records)s ORDER BY l.until, l.seq

-- name: expired
SELECT r.seq FROM (
    SELECT seq FROM {space}_ready FORCE INDEX (expires) WHERE expires <= %(moment)s LIMIT %(limit)s) g
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq WHERE r.expires <= %(moment)s FOR UPDATE SKIP LOCKED

-- name: overdue_sticky
-- Sticky entries that are overdue: those of silent nodes first, so that a node's own late ones never crowd them out.
SELECT o.id, o.queue, o.node, r.seq, r.due FROM (
    SELECT b.id, q.queue, q.node, r.seq, q.node = %(node)s AS own FROM {space}_queues q
    JOIN {space}_ready r ON r.line IN (q.number, 0) AND r.number = q.number JOIN {space} b ON b.body = r.body
    LEFT JOIN {space}_nodes n ON n.node = q.node
    WHERE q.node <> '' AND r.due <= %(cutoff)s AND (q.node = %(node)s OR n.seen IS NULL OR n.seen <= %(cutoff)s)
    ORDER BY q.node = %(node)s, r.due LIMIT %(limit)s) o
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = o.seq WHERE r.due <= %(cutoff)s
ORDER BY o.own, r.due FOR UPDATE SKIP LOCKED

-- name: move_to_queue
UPDATE {space}_ready SET line = if(line > 0, %(number)s, line), number = %(number)s WHERE seq = %(seq)s

-- name: sweep
-- Unique ids whose period is over, what repeated calls no longer ask for, and rings that everybody has heard.
DELETE FROM {space}_unique WHERE until <= %(moment)s;
DELETE FROM {space}_meta WHERE name >= %(first)s AND name < %(last)s;
SELECT max(number) - 1000 INTO @penstock_ring FROM {space}_bell;
DELETE FROM {space}_bell WHERE number < @penstock_ring;
DELETE FROM {space}_settled WHERE ended <= %(cutoff)s

-- name: oldest_history
-- Rows come in the order in which they ended, so the oldest are the first.
SELECT h.seq, h.body, h.ended FROM {space}_history h FORCE INDEX (PRIMARY) ORDER BY h.seq LIMIT %(limit)s
FOR UPDATE SKIP LOCKED

-- name: delete_history
DELETE h FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_history h FORCE INDEX (PRIMARY) ON h.seq = g.seq

-- name: lock_bodies
-- Wait for whoever is about to put one of them again; then the next statement sees it.
SELECT b.body FROM json_table(%(bodies)s, '$[*]' COLUMNS (body bigint PATH '$')) g
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = g.body ORDER BY b.body FOR UPDATE

-- name: delete_unused
-- Bodies that nothing refers to any more; their ids.
SELECT json_arrayagg(b.body) INTO @penstock_bodies
FROM json_table(%(bodies)s, '$[*]' COLUMNS (body bigint PATH '$')) g
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = g.body
WHERE NOT EXISTS (SELECT 1 FROM {space}_history h WHERE h.body = b.body)
AND NOT EXISTS (SELECT 1 FROM {space}_dead d WHERE d.body = b.body)
AND (b.version <> 0 OR (
    NOT EXISTS (SELECT 1 FROM {space}_ready r WHERE r.seq = coalesce(b.seq, b.body))
    AND NOT EXISTS (SELECT 1 FROM {space}_held h WHERE h.seq = coalesce(b.seq, b.body))
    AND NOT EXISTS (SELECT 1 FROM {space}_unique x WHERE x.id = b.id)));
SELECT json_arrayagg(b.id) INTO @penstock_ids
FROM json_table(coalesce(@penstock_bodies, '[]'), '$[*]' COLUMNS (body bigint PATH '$')) g
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = g.body;
DELETE b FROM json_table(coalesce(@penstock_bodies, '[]'), '$[*]' COLUMNS (body bigint PATH '$')) g
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = g.body;
SELECT g.id FROM json_table(coalesce(@penstock_ids, '[]'), '$[*]' COLUMNS (id varchar(64) PATH '$')) g

-- name: drop_labels
DELETE x FROM json_table(%(ids)s, '$[*]' COLUMNS (id varchar(64) PATH '$')) g
STRAIGHT_JOIN {space}_labels x FORCE INDEX (id) ON x.id = g.id LEFT JOIN {space} b FORCE INDEX (id) ON b.id = x.id
WHERE b.id IS NULL

-- name: bodies_of_dead
SELECT body FROM {space}_dead WHERE seq IN %(seqs)s

-- name: remove_payloads
-- Of purged dead letters, in every version.
UPDATE {space} SET payload = NULL WHERE id IN %(ids)s

-- name: delete_dead
DELETE d FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_dead d FORCE INDEX (PRIMARY) ON d.seq = g.seq

-- === read ===============================================================================================================

-- name: find_live
SELECT e.* FROM (
    (SELECT e.* FROM {space}_waiting e {tail})
    UNION ALL
    (SELECT e.* FROM {space}_leased e {tail})) e
{tail}

-- name: places_of
SELECT coalesce(seq, body) FROM {space} WHERE id IN %(ids)s AND version = 0

-- name: places_now
-- The same, read past the snapshot of a caller's transaction.
SELECT coalesce(seq, body) FROM {space} WHERE id IN %(ids)s AND version = 0 LOCK IN SHARE MODE

-- name: ids_beginning
SELECT DISTINCT id FROM {space} WHERE id >= %(first)s AND id < %(last)s ORDER BY id LIMIT %(limit)s

-- name: ids_ending
SELECT DISTINCT id FROM {space} WHERE right(id, %(size)s) = %(part)s ORDER BY id LIMIT %(limit)s

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
{tail}

-- name: find_history
SELECT h.seq, b.id, q.queue, q.node, h.state, h.started, h.ended, h.generation, b.priority, b.created, h.due, b.first_due,
       h.attempt, h.fence, h.owner, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
       b.payload
FROM {space}_history h JOIN {space} b ON b.body = h.body JOIN {space}_queues q ON q.number = h.number
{tail}

-- name: last_live
SELECT greatest(coalesce((SELECT max(seq) FROM {space}_ready), 0), coalesce((SELECT max(seq) FROM {space}_held), 0))

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
-- Per queue row: ready, delayed, retrying, since when the oldest is ready; held; dead letters. In one statement, so that an
-- entry that goes from one to another meanwhile is counted once.
SELECT r.number, CAST(sum(r.due <= %(moment)s) AS signed),
       CAST(sum(r.due > %(moment)s AND r.attempt = 0 AND NOT r.suspect AND r.due < %(held)s) AS signed),
       CAST(sum(r.due > %(moment)s AND (r.attempt > 0 OR r.suspect) AND r.due < %(held)s) AS signed),
       min(if(r.due <= %(moment)s, r.due, NULL)), 0, 0, CAST(sum(r.due >= %(held)s) AS signed)
FROM {space}_ready r WHERE r.number IN %(numbers)s AND (r.line IN (-1, 0) OR r.line IN %(numbers)s) GROUP BY r.number
UNION ALL
SELECT c.number, 0, 0, 0, NULL, CAST(sum(c.size) AS signed), 0, 0
FROM {space}_claims c WHERE c.number IN %(numbers)s GROUP BY c.number
UNION ALL
SELECT d.number, 0, 0, 0, NULL, 0, count(*), 0 FROM {space}_dead d
WHERE d.number IN %(numbers)s GROUP BY d.number

-- name: was_cancelled
SELECT 1 FROM {space} b JOIN {space}_history h ON h.body = b.body WHERE b.id = %(id)s AND h.state = 'cancelled' LIMIT 1

-- === what a space keeps besides entries =================================================================================

-- name: schedule
SELECT version, next_fire, definition FROM {space}_schedules WHERE name = %(name)s FOR UPDATE

-- name: schedules
SELECT next_fire, definition FROM {space}_schedules ORDER BY name

-- name: set_schedule
INSERT INTO {space}_schedules (name, version, next_fire, definition)
VALUES (%(name)s, %(version)s, %(next_fire)s, %(definition)s)
ON DUPLICATE KEY UPDATE version = %(version)s, next_fire = %(next_fire)s, definition = %(definition)s

-- name: move_schedule
UPDATE {space}_schedules SET next_fire = %(next_fire)s
WHERE name = %(name)s AND next_fire = %(was)s AND version = %(version)s

-- name: drop_schedule
DELETE FROM {space}_schedules WHERE name = %(name)s

-- name: subscriptions
SELECT name, queue, types FROM {space}_subscriptions ORDER BY name

-- name: subscribe
INSERT INTO {space}_subscriptions (name, queue, types) VALUES (%(name)s, %(queue)s, %(types)s)
ON DUPLICATE KEY UPDATE queue = %(queue)s, types = %(types)s

-- name: unsubscribe
DELETE FROM {space}_subscriptions WHERE name = %(name)s

-- name: beat
INSERT INTO {space}_nodes (node, seen)
VALUES (%(node)s, coalesce(%(seen)s, timestampdiff(MICROSECOND, '1970-01-01', utc_timestamp(6))))
ON DUPLICATE KEY UPDATE seen = VALUES(seen)

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
ON DUPLICATE KEY UPDATE version = version + 1, changed = %(moment)s, value = %(value)s

-- name: new_document
INSERT IGNORE INTO {space}_documents (name, version, changed, value) VALUES (%(name)s, 1, %(moment)s, %(value)s)

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
INSERT INTO {space} (id, version, number, priority, created, first_due, labels, headers, unique_key, unique_mode, expires,
                     codec, type, payload)
VALUES (%(id)s, %(version)s, %(number)s, %(priority)s, %(created)s, %(first_due)s, %(labels)s, %(headers)s, %(unique_key)s,
        %(unique_mode)s, %(expires)s, %(codec)s, %(type)s, %(payload)s);
SELECT last_insert_id()

-- name: complete_body
-- What earlier rows of the same entry did not tell.
UPDATE {space} SET priority = %(priority)s, first_due = %(first_due)s, expires = %(expires)s,
    unique_key = %(unique_key)s, unique_mode = %(unique_mode)s WHERE body = %(body)s

-- name: next_version
SELECT (SELECT max(version) + 1 FROM {space} WHERE id = %(id)s) INTO @penstock_version;
UPDATE {space} SET version = @penstock_version WHERE body = %(body)s

-- name: load_waiting
-- Behind what waits here already: its number is drawn as that of a body that is gone at once.
INSERT INTO {space} (id, version, number, priority, created, first_due, codec, type)
SELECT id, -connection_id(), number, priority, created, first_due, codec, '' FROM {space} b WHERE b.body = %(body)s;
SELECT last_insert_id() INTO @penstock_seq;
DELETE FROM {space} WHERE body = @penstock_seq;
UPDATE {space} SET seq = @penstock_seq WHERE body = %(body)s;
INSERT INTO {space}_ready (seq, body, line, urgency, at, number, priority, due, generation, attempt, fence, suspect, fifo,
                           special, expires, error)
SELECT @penstock_seq, body, if(%(suspect)s, if(%(fifo)s, -1, 0), %(number)s),
       if(%(suspect)s, if(%(fifo)s, %(number)s, 0), -priority), if(%(fifo)s AND NOT %(suspect)s, 0, %(due)s), %(number)s,
       priority, %(due)s, %(generation)s, %(attempt)s, %(fence)s, %(suspect)s, %(fifo)s,
       expires IS NOT NULL OR left(unique_mode, 7) <=> 'started', expires, %(error)s FROM {space} b WHERE b.body = %(body)s

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
SELECT 1 FROM {space} b JOIN {space}_ready r ON r.seq = coalesce(b.seq, b.body)
WHERE %(part)s = 'live' AND b.id = %(id)s AND b.version = 0

-- === the server =========================================================================================================

-- name: announce
INSERT INTO {space}_bell () VALUES ()

-- name: stored_version
SELECT value FROM {space}_meta WHERE name = 'schema'

-- name: settings
SHOW VARIABLES WHERE Variable_name IN ('innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'max_allowed_packet',
                                       'version')

-- name: look
-- How many of the newest bodies and rings are there, and which is the last.
SELECT b.entries, b.last, r.rings, r.last
FROM (SELECT count(*) AS entries, coalesce(max(body), 0) AS last FROM {space} WHERE body > %(bodies)s) b,
     (SELECT count(*) AS rings, coalesce(max(number), 0) AS last FROM {space}_bell WHERE number > %(rings)s) r

-- name: sum_live
SELECT count(*), sum(body) FROM {space} WHERE body > %(after)s AND body <= %(last)s

-- name: sum_dead
SELECT count(*), sum(seq) FROM {space}_dead WHERE seq > %(after)s AND seq <= %(last)s

-- name: sum_history
SELECT count(*), sum(seq) FROM {space}_history WHERE seq > %(after)s AND seq <= %(last)s

-- === links ==============================================================================================================

-- name: links_from
SELECT source, target, kind FROM {space}_links WHERE source IN %(sources)s FOR UPDATE

-- name: add_links
-- each
INSERT IGNORE INTO {space}_links (source, target, kind)
VALUES (%(sources)s, %(targets)s, %(kinds)s)

-- name: drop_links
-- The links that ends of these entries consume: all, of a dead letter those that wait for an end of any kind.
DELETE FROM {space}_links WHERE source IN %(sources)s AND (kind = 'ended' OR NOT source IN %(dead)s)

-- name: count_wait
-- Whoever counts the same entry waits until this transaction ends.
UPDATE {space}_waits SET needs = needs + %(needs)s, done = done + %(done)s, dead = dead + %(dead)s,
    cancelled = cancelled + %(cancelled)s, expired = expired + %(expired)s
WHERE id = %(id)s;
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id = %(id)s

-- name: lock_waits
SELECT w.id FROM json_table(%(ids)s, '$[*]' COLUMNS (id varchar(64) PATH '$')) g
STRAIGHT_JOIN {space}_waits w FORCE INDEX (PRIMARY) ON w.id = g.id FOR UPDATE

-- name: count_waits
UPDATE json_table(%(changes)s, '$[*]' COLUMNS (id varchar(64) PATH '$[0]', needs int PATH '$[1]', done int PATH '$[2]',
                  dead int PATH '$[3]', cancelled int PATH '$[4]', expired int PATH '$[5]')) g
STRAIGHT_JOIN {space}_waits w FORCE INDEX (PRIMARY) ON w.id = g.id
SET w.needs = w.needs + g.needs, w.done = w.done + g.done, w.dead = w.dead + g.dead,
    w.cancelled = w.cancelled + g.cancelled, w.expired = w.expired + g.expired

-- name: load_waits
-- each
INSERT INTO {space}_waits (id, needs, done, dead, cancelled, expired)
VALUES (%(ids)s, %(needs)s, %(done)s, %(dead)s, %(cancelled)s, %(expired)s)

-- name: lock_held
SELECT r.seq, b.id, b.first_due FROM json_table(%(seqs)s, '$[*]' COLUMNS (seq bigint PATH '$')) g
STRAIGHT_JOIN {space}_ready r FORCE INDEX (PRIMARY) ON r.seq = g.seq
STRAIGHT_JOIN {space} b FORCE INDEX (PRIMARY) ON b.body = r.body WHERE r.due = %(due)s FOR UPDATE

-- name: set_due
UPDATE {space}_ready SET due = %(due)s, at = %(due)s WHERE seq IN %(seqs)s

-- name: mark_body
UPDATE {space} SET unique_mode = concat(coalesce(unique_mode, ''), '+')
WHERE body = %(body)s AND right(coalesce(unique_mode, ''), 1) <> '+'

-- name: mark_waiting
-- There is nothing to do: the queue's row keeps claims away.
SELECT 1 FROM dual WHERE %(seq)s < 0

-- name: mark_claimed
UPDATE {space}_held SET linked = 1 WHERE seq = %(seq)s

-- name: waits
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: waits_of
SELECT id, needs, done, dead, cancelled, expired FROM {space}_waits WHERE id IN %(ids)s ORDER BY id

-- name: links
SELECT source, target, kind FROM {space}_links WHERE source > %(source)s OR (source = %(source)s AND target > %(after)s)
ORDER BY source, target LIMIT %(limit)s

-- name: links_to
SELECT source, target, kind FROM {space}_links WHERE target = %(target)s AND source > %(source)s ORDER BY source LIMIT %(limit)s

-- name: load_wait
INSERT INTO {space}_waits (id, needs, done, dead, cancelled, expired)
VALUES (%(id)s, %(needs)s, %(done)s, %(dead)s, %(cancelled)s, %(expired)s)
ON DUPLICATE KEY UPDATE needs = VALUES(needs), done = VALUES(done), dead = VALUES(dead),
    cancelled = VALUES(cancelled), expired = VALUES(expired)

-- name: mark_loaded
UPDATE {space} SET unique_mode = concat(coalesce(unique_mode, ''), '+')
WHERE id IN %(ids)s AND version = 0 AND right(coalesce(unique_mode, ''), 1) <> '+'

-- name: drop_wait
-- Of an entry that nobody remembers any more, and that no link leads to.
DELETE FROM {space}_waits WHERE id = %(id)s AND needs = 0 AND NOT EXISTS (SELECT 1 FROM {space} b WHERE b.id = %(id)s)

-- name: drop_waits
-- Of entries that nobody remembers any more.
DELETE w FROM {space}_waits w LEFT JOIN {space} b ON b.id = w.id WHERE w.needs = 0 AND b.id IS NULL

-- name: keep_results
-- each
REPLACE INTO {space}_results (id, generation, codec, until, value, queue, batch)
VALUES (%(ids)s, %(generations)s, %(codecs)s, %(untils)s, %(values)s, %(queues)s, %(batches)s)

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
