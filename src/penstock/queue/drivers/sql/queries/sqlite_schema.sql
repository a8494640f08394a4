-- The tables of a space in a SQLite file. {space} is replaced by the space's name; every statement may be run again.
-- Times are microseconds since 1970. Text compares bytewise, as SQLite does by itself. A statement ends with its line.

-- name: meta
CREATE TABLE IF NOT EXISTS {space}_meta (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- name: queues
-- One row per queue, and one per node that has sticky entries in it (node '' is the queue itself).
CREATE TABLE IF NOT EXISTS {space}_queues (
    number INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    node TEXT NOT NULL DEFAULT '',
    locked INTEGER NOT NULL DEFAULT 0,
    fifo INTEGER NOT NULL DEFAULT 0,
    in_flight INTEGER,  -- FIFO: the seq of the entry that is being worked on
    rate_count INTEGER,
    rate_period INTEGER,
    rate_next INTEGER,
    limit_label TEXT,
    limit_count INTEGER,
    UNIQUE (queue, node)
);

-- name: entries
-- What never changes while an entry lives: its body. Version 0 is the current one; higher ones are what earlier attempts
-- saw before the entry was changed. seq is the entry's place in the order of its queue.
CREATE TABLE IF NOT EXISTS {space} (
    body INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL,
    number INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created INTEGER NOT NULL,
    first_due INTEGER NOT NULL,
    labels TEXT,
    headers TEXT,
    unique_key TEXT,
    unique_mode TEXT,
    expires INTEGER,
    codec TEXT NOT NULL,
    type TEXT NOT NULL,
    payload BLOB,
    UNIQUE (id, version)
);

-- name: ready
-- Where live entries stand. A row without a record waits and is in the index of the order; a claim writes its record's
-- number into the row, which takes it out of that index and touches no other: SQLite does that with fewer pages than
-- moving the row to the claim and back, and who holds an entry is one look at its row. A special entry needs a look before
-- it is handed out: it may have expired, or it releases its unique id when it starts.
CREATE TABLE IF NOT EXISTS {space}_ready (
    seq INTEGER PRIMARY KEY,
    body INTEGER NOT NULL,
    number INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    due INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    suspect INTEGER NOT NULL,
    fifo INTEGER NOT NULL,
    special INTEGER NOT NULL,
    expires INTEGER,
    error TEXT,
    record INTEGER,  -- of the claim that holds it
    limit_value TEXT  -- while it is held in a queue with a limit per label value: the value
);
CREATE INDEX IF NOT EXISTS {space}_ready_order ON {space}_ready (number, priority DESC, due, seq)
    WHERE record IS NULL AND suspect = 0;
CREATE INDEX IF NOT EXISTS {space}_ready_suspects ON {space}_ready (due, seq) WHERE suspect = 1;
CREATE INDEX IF NOT EXISTS {space}_ready_fifo ON {space}_ready (number, seq) WHERE fifo = 1;
CREATE INDEX IF NOT EXISTS {space}_ready_expiring ON {space}_ready (expires) WHERE expires IS NOT NULL;
CREATE INDEX IF NOT EXISTS {space}_ready_limited ON {space}_ready (number, limit_value) WHERE limit_value IS NOT NULL;

-- name: claims
-- One record per claim and queue. seqs is a JSON list of what it was given; what it still holds has its number.
CREATE TABLE IF NOT EXISTS {space}_claims (
    record INTEGER PRIMARY KEY,
    claim TEXT NOT NULL,
    number INTEGER NOT NULL,
    owner TEXT NOT NULL,
    claimed INTEGER NOT NULL,
    until INTEGER NOT NULL,
    max_attempts INTEGER,
    seqs TEXT NOT NULL
);

-- name: history
-- One narrow row per ended attempt. It has no index by queue: that would be one more page in every commit, and a queue's
-- rows are found fast enough by reading on from the newest or the oldest.
CREATE TABLE IF NOT EXISTS {space}_history (
    seq INTEGER PRIMARY KEY,
    body INTEGER NOT NULL,
    number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT NOT NULL,
    due INTEGER NOT NULL,
    started INTEGER,
    ended INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    claim TEXT,
    owner TEXT,
    error TEXT
);
CREATE INDEX IF NOT EXISTS {space}_history_body ON {space}_history (body);

-- name: dead
CREATE TABLE IF NOT EXISTS {space}_dead (
    seq INTEGER PRIMARY KEY,
    body INTEGER NOT NULL UNIQUE,
    number INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    due INTEGER NOT NULL,
    started INTEGER,
    ended INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT,
    error TEXT
);
CREATE INDEX IF NOT EXISTS {space}_dead_queue ON {space}_dead (number, seq);

-- name: numbers
-- The last number that was given to a body or a place, to an ended attempt and to a dead letter. None is given twice:
-- readers continue from the last one they saw. So whoever deletes the newest row, be it by hand, notes its number; nobody
-- else has to, and a put writes no counter.
CREATE VIEW IF NOT EXISTS {space}_last_entry AS SELECT max(coalesce((SELECT max(body) FROM {space}), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM {space}_meta WHERE name = 'last.entry'), 0)) AS last;
CREATE VIEW IF NOT EXISTS {space}_last_history AS SELECT max(coalesce((SELECT max(seq) FROM {space}_history), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM {space}_meta WHERE name = 'last.history'), 0)) AS last;
CREATE VIEW IF NOT EXISTS {space}_last_dead AS SELECT max(coalesce((SELECT max(seq) FROM {space}_dead), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM {space}_meta WHERE name = 'last.dead'), 0)) AS last;
CREATE TRIGGER IF NOT EXISTS {space}_note_entry AFTER DELETE ON {space}
    WHEN OLD.body > (SELECT last FROM {space}_last_entry)
    BEGIN INSERT OR REPLACE INTO {space}_meta (name, value) VALUES ('last.entry', OLD.body); END;
CREATE TRIGGER IF NOT EXISTS {space}_note_history AFTER DELETE ON {space}_history
    WHEN OLD.seq > (SELECT last FROM {space}_last_history)
    BEGIN INSERT OR REPLACE INTO {space}_meta (name, value) VALUES ('last.history', OLD.seq); END;
CREATE TRIGGER IF NOT EXISTS {space}_note_dead AFTER DELETE ON {space}_dead
    WHEN OLD.seq > (SELECT last FROM {space}_last_dead)
    BEGIN INSERT OR REPLACE INTO {space}_meta (name, value) VALUES ('last.dead', OLD.seq); END;

-- name: settled
-- Endings that leave no history row, so that a repeated call is recognised; kept for 15 minutes.
CREATE TABLE IF NOT EXISTS {space}_settled (
    claim TEXT NOT NULL,
    id TEXT NOT NULL,
    outcome TEXT NOT NULL,
    ended INTEGER NOT NULL,
    PRIMARY KEY (claim, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {space}_settled_ended ON {space}_settled (ended);

-- name: labels
-- The labels an id ever had: an index of candidates; the labels of the body decide.
CREATE TABLE IF NOT EXISTS {space}_labels (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (name, value, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {space}_labels_id ON {space}_labels (id);

-- name: unique
CREATE TABLE IF NOT EXISTS {space}_unique (
    queue TEXT NOT NULL,
    unique_key TEXT NOT NULL,
    id TEXT NOT NULL,
    until INTEGER,  -- set for a hold that lasts a period
    PRIMARY KEY (queue, unique_key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {space}_unique_until ON {space}_unique (until) WHERE until IS NOT NULL;
CREATE INDEX IF NOT EXISTS {space}_unique_id ON {space}_unique (id);

-- name: locks
CREATE TABLE IF NOT EXISTS {space}_locks (
    queue TEXT NOT NULL,
    holder TEXT NOT NULL,
    reason TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (queue, holder)
) WITHOUT ROWID;

-- name: schedules
CREATE TABLE IF NOT EXISTS {space}_schedules (
    name TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    next_fire INTEGER NOT NULL,
    definition BLOB NOT NULL
);

-- name: subscriptions
CREATE TABLE IF NOT EXISTS {space}_subscriptions (
    name TEXT NOT NULL PRIMARY KEY,
    queue TEXT NOT NULL,
    types TEXT NOT NULL
);

-- name: nodes
CREATE TABLE IF NOT EXISTS {space}_nodes (
    node TEXT NOT NULL PRIMARY KEY,
    seen INTEGER NOT NULL
);

-- name: documents
CREATE TABLE IF NOT EXISTS {space}_documents (
    name TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    value BLOB NOT NULL
);

-- name: live
-- Every live entry with its lease, if it has one.
CREATE VIEW IF NOT EXISTS {space}_live AS
    SELECT r.seq, r.body, b.id, q.queue, q.node, r.number, r.fifo, r.generation, r.priority, b.created, r.due, b.first_due,
           r.attempt, r.fence, r.suspect, r.error, b.labels, b.headers, b.unique_key, b.unique_mode, b.expires, b.codec, b.type,
           b.payload, r.record, c.claim, c.owner, c.claimed, c.until, c.max_attempts, r.seq AS low, r.seq AS high,
           q.limit_label IS NOT NULL AS limited
    FROM {space}_ready r JOIN {space} b ON b.body = r.body AND b.seq = r.seq JOIN {space}_queues q ON q.number = r.number
    LEFT JOIN {space}_claims c ON c.record = r.record;

-- name: unused
-- Bodies that nothing refers to any more.
CREATE VIEW IF NOT EXISTS {space}_unused AS
    SELECT b.body, b.id FROM {space} b
    WHERE NOT EXISTS (SELECT 1 FROM {space}_history h WHERE h.body = b.body)
    AND NOT EXISTS (SELECT 1 FROM {space}_dead d WHERE d.body = b.body)
    AND (b.version <> 0 OR (
        NOT EXISTS (SELECT 1 FROM {space}_ready r WHERE r.seq = b.seq)
        AND NOT EXISTS (SELECT 1 FROM {space}_unique x WHERE x.id = b.id)));
