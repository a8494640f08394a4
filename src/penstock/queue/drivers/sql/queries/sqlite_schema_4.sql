-- What version 4 adds to the tables of a space: links between entries, and results. Every statement may be run again.

-- name: links
-- Who waits for whom: the target is held until the source has ended. A link goes in the transaction that consumes it. The
-- unique_mode of a source's body ends in '+'; the row of one that is being worked on meanwhile has special = 2.
CREATE TABLE IF NOT EXISTS {space}_links (
    source TEXT NOT NULL,
    target TEXT NOT NULL,
    kind TEXT NOT NULL,  -- done, ended or open
    PRIMARY KEY (source, target)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {space}_links_target ON {space}_links (target, source);

-- name: waits
-- What an entry that waits still needs, and how those it waited for have ended.
CREATE TABLE IF NOT EXISTS {space}_waits (
    id TEXT NOT NULL PRIMARY KEY,
    needs INTEGER NOT NULL CHECK (needs >= 0),
    done INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    expired INTEGER NOT NULL
) WITHOUT ROWID;

-- name: results
CREATE TABLE IF NOT EXISTS {space}_results (
    id TEXT NOT NULL PRIMARY KEY,
    generation INTEGER NOT NULL,
    codec TEXT NOT NULL,
    until INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS {space}_results_until ON {space}_results (until);
