-- What version 4 adds to the tables of a space: links between entries, and results. Every statement may be run again.

-- name: links
-- Who waits for whom: the target is held until the source has ended. A link goes in the transaction that consumes it. The
-- unique_mode of a source's body ends in '+'.
CREATE TABLE IF NOT EXISTS {space}_links (
    source text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    kind text NOT NULL,  -- done, ended or open
    PRIMARY KEY (source, target)
);
CREATE INDEX IF NOT EXISTS {space}_links_target ON {space}_links (target, source);

-- name: waits
-- What an entry that waits still needs, and how those it waited for have ended.
CREATE TABLE IF NOT EXISTS {space}_waits (
    id text COLLATE "C" PRIMARY KEY,
    needs int NOT NULL CHECK (needs >= 0),
    done int NOT NULL,
    dead int NOT NULL,
    cancelled int NOT NULL,
    expired int NOT NULL
) WITH (fillfactor = 50);

-- name: claims
-- Linked: somebody began to wait for an entry while it was held, so its end needs a look.
ALTER TABLE {space}_claims ADD COLUMN IF NOT EXISTS linked boolean NOT NULL DEFAULT false;

-- name: results
CREATE TABLE IF NOT EXISTS {space}_results (
    id text COLLATE "C" PRIMARY KEY,
    generation int NOT NULL,
    codec text NOT NULL,
    until bigint NOT NULL,
    value bytea NOT NULL
);
CREATE INDEX IF NOT EXISTS {space}_results_until ON {space}_results (until);
