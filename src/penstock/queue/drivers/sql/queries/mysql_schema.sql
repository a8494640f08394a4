-- The tables of a space on MariaDB. {space} is replaced by the space's name; every statement may be run again.
-- Times are microseconds since 1970. Names and ids compare bytewise, trailing spaces included; MySQL calls that
-- utf8mb4_0900_bin, and gets it instead.

-- name: queues
-- One row per queue, and one per node that has sticky entries in it (node '' is the queue itself).
CREATE TABLE IF NOT EXISTS {space}_queues (
    number int NOT NULL AUTO_INCREMENT PRIMARY KEY,
    queue varchar(128) NOT NULL,
    node varchar(64) NOT NULL DEFAULT '',
    locked int NOT NULL DEFAULT 0,
    fifo tinyint NOT NULL DEFAULT 0,
    in_flight bigint,  -- FIFO: the seq of the entry that is being worked on
    rate_count int,
    rate_period bigint,
    rate_next bigint,
    limit_label varchar(128),
    limit_count int,
    UNIQUE KEY queue (queue, node)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: entries
-- What never changes while an entry lives: its body. Version 0 is the current one; higher ones are what earlier attempts
-- saw before the entry was changed. seq is the entry's place in the order of its queue if that is not its body's number.
CREATE TABLE IF NOT EXISTS {space} (
    body bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id varchar(64) NOT NULL,
    version int NOT NULL DEFAULT 0,
    seq bigint,
    number int NOT NULL,
    priority int NOT NULL,
    created bigint NOT NULL,
    first_due bigint NOT NULL,
    labels mediumtext,
    headers mediumtext,
    unique_key varchar(255),
    unique_mode varchar(8),
    expires bigint,
    codec varchar(32) NOT NULL,
    type mediumtext NOT NULL,
    payload longblob,
    UNIQUE KEY id (id, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: ready
-- What waits. A claim deletes from it, a retry inserts. A special entry needs a look before it is handed out: it may have
-- expired, or it releases its unique id when it starts.
--
-- One index is the order of all queues. line is the queue's number; suspects stand in line 0, those of FIFO queues in
-- line -1. urgency is the priority downwards; in line -1 it is the queue's number. at is when it is due; 0 in FIFO queues,
-- where the seq alone decides.
CREATE TABLE IF NOT EXISTS {space}_ready (
    seq bigint NOT NULL PRIMARY KEY,
    line int NOT NULL,
    urgency int NOT NULL,
    at bigint NOT NULL,
    number int NOT NULL,
    body bigint NOT NULL,
    priority int NOT NULL,
    due bigint NOT NULL,
    generation int NOT NULL,
    attempt int NOT NULL,
    fence bigint NOT NULL,
    suspect tinyint NOT NULL,
    fifo tinyint NOT NULL,
    special tinyint NOT NULL,
    expires bigint,
    error mediumtext,
    KEY in_order (line, urgency, at, seq),
    KEY expires (expires)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: claims
-- Who holds what: one record per claim and queue, with the number of entries it holds.
CREATE TABLE IF NOT EXISTS {space}_claims (
    record bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    claim varchar(64) NOT NULL,
    number int NOT NULL,
    owner varchar(128) NOT NULL,
    claimed bigint NOT NULL,
    until bigint NOT NULL,
    max_attempts int,
    size int NOT NULL,
    split_from bigint,  -- while entries are moved to it: the record they come from
    KEY claim (claim),
    KEY until (until)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: held
-- What the records of claims hold; written once, deleted when it ends.
CREATE TABLE IF NOT EXISTS {space}_held (
    seq bigint NOT NULL PRIMARY KEY,
    claim varchar(64) NOT NULL,
    record bigint NOT NULL,
    body bigint NOT NULL,
    due bigint NOT NULL,
    generation int NOT NULL,
    attempt int NOT NULL,
    fence bigint NOT NULL,
    suspect tinyint NOT NULL,
    error mediumtext,
    limit_value varchar(255),  -- of a queue with a limit per label value: the value that is in flight
    KEY claim (claim)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: history
-- One narrow row per ended attempt.
CREATE TABLE IF NOT EXISTS {space}_history (
    seq bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    body bigint NOT NULL,
    number int NOT NULL,
    generation int NOT NULL,
    attempt int NOT NULL,
    state varchar(16) NOT NULL,
    due bigint NOT NULL,
    started bigint,
    ended bigint NOT NULL,
    fence bigint NOT NULL,
    claim varchar(64),
    owner varchar(128),
    error mediumtext,
    KEY body (body),
    KEY number (number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: dead
CREATE TABLE IF NOT EXISTS {space}_dead (
    seq bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,
    body bigint NOT NULL,
    number int NOT NULL,
    generation int NOT NULL,
    attempt int NOT NULL,
    due bigint NOT NULL,
    started bigint,
    ended bigint NOT NULL,
    fence bigint NOT NULL,
    owner varchar(128),
    error mediumtext,
    UNIQUE KEY body (body),
    KEY number (number)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: settled
-- Endings that leave no history row, so that a repeated call is recognised; kept for 15 minutes.
CREATE TABLE IF NOT EXISTS {space}_settled (
    claim varchar(64) NOT NULL,
    id varchar(64) NOT NULL,
    outcome varchar(16) NOT NULL,
    ended bigint NOT NULL,
    PRIMARY KEY (claim, id),
    KEY ended (ended)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: labels
-- The labels an id ever had: an index of candidates; the labels of the body decide.
CREATE TABLE IF NOT EXISTS {space}_labels (
    name varchar(128) NOT NULL,
    value varchar(255) NOT NULL,
    id varchar(64) NOT NULL,
    PRIMARY KEY (name, value, id),
    KEY id (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: unique
CREATE TABLE IF NOT EXISTS {space}_unique (
    queue varchar(128) NOT NULL,
    unique_key varchar(255) NOT NULL,
    id varchar(64) NOT NULL,
    until bigint,  -- set for a hold that lasts a period
    PRIMARY KEY (queue, unique_key),
    KEY until (until),
    KEY id (id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: locks
CREATE TABLE IF NOT EXISTS {space}_locks (
    queue varchar(128) NOT NULL,
    holder varchar(128) NOT NULL,
    reason mediumtext NOT NULL,
    since bigint NOT NULL,
    PRIMARY KEY (queue, holder)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: schedules
CREATE TABLE IF NOT EXISTS {space}_schedules (
    name varchar(128) NOT NULL PRIMARY KEY,
    version int NOT NULL,
    next_fire bigint NOT NULL,
    definition longblob NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: subscriptions
CREATE TABLE IF NOT EXISTS {space}_subscriptions (
    name varchar(128) NOT NULL PRIMARY KEY,
    queue varchar(128) NOT NULL,
    types mediumtext NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: nodes
CREATE TABLE IF NOT EXISTS {space}_nodes (
    node varchar(64) NOT NULL PRIMARY KEY,
    seen bigint NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: documents
CREATE TABLE IF NOT EXISTS {space}_documents (
    name varchar(255) NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    changed bigint NOT NULL,
    value longblob NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: bell
-- One row per transaction that made something claimable other than by a plain put: waiting workers look here.
CREATE TABLE IF NOT EXISTS {space}_bell (
    number bigint NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE=InnoDB;

-- name: meta
CREATE TABLE IF NOT EXISTS {space}_meta (
    name varchar(128) NOT NULL PRIMARY KEY,
    value longtext NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: waiting
-- The entries that wait, with everything that is known of them.
CREATE OR REPLACE ALGORITHM=MERGE SQL SECURITY INVOKER VIEW {space}_waiting AS
    SELECT r.seq, r.body, b.id, q.queue, q.node, r.number, r.fifo, r.generation, r.priority, b.created, r.due, b.first_due,
           r.attempt, r.fence, r.suspect, r.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
           b.payload, NULL AS record, NULL AS claim, NULL AS owner, NULL AS claimed, NULL AS until, NULL AS max_attempts,
           r.seq AS low, r.seq AS high, q.limit_label IS NOT NULL AS limited
    FROM {space}_ready r JOIN {space} b ON b.body = r.body JOIN {space}_queues q ON q.number = r.number;

-- name: leased
-- The entries that claims hold, in the same columns.
CREATE OR REPLACE ALGORITHM=MERGE SQL SECURITY INVOKER VIEW {space}_leased AS
    SELECT h.seq, h.body, b.id, q.queue, q.node, c.number, q.fifo, h.generation, b.priority, b.created, h.due, b.first_due,
           h.attempt, h.fence, h.suspect, h.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
           b.payload, c.record, c.claim, c.owner, c.claimed, c.until, c.max_attempts,
           h.seq AS low, h.seq AS high, q.limit_label IS NOT NULL AS limited
    FROM {space}_held h JOIN {space}_claims c ON c.record = h.record JOIN {space} b ON b.body = h.body
    JOIN {space}_queues q ON q.number = c.number;
