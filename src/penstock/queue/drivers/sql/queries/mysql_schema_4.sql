-- What version 4 adds to the tables of a space: links between entries, and results. Every statement may be run again; that
-- a column is there already is not an error to whoever runs them.

-- name: links
-- Who waits for whom: the target is held until the source has ended. A link goes in the transaction that consumes it. The
-- unique_mode of a source's body ends in '+'.
CREATE TABLE IF NOT EXISTS {space}_links (
    source varchar(64) NOT NULL,
    target varchar(64) NOT NULL,
    kind varchar(8) NOT NULL,  -- done, ended or open
    PRIMARY KEY (source, target),
    KEY target (target, source)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: waits
-- What an entry that waits still needs, and how those it waited for have ended.
CREATE TABLE IF NOT EXISTS {space}_waits (
    id varchar(64) NOT NULL PRIMARY KEY,
    needs int NOT NULL CHECK (needs >= 0),
    done int NOT NULL,
    dead int NOT NULL,
    cancelled int NOT NULL,
    expired int NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;

-- name: held
-- Linked: somebody began to wait for the entry while it was held, so its end needs a look.
ALTER TABLE {space}_held ADD COLUMN linked tinyint NOT NULL DEFAULT 0;

-- name: results
CREATE TABLE IF NOT EXISTS {space}_results (
    id varchar(64) NOT NULL PRIMARY KEY,
    generation int NOT NULL,
    codec varchar(64) NOT NULL,
    until bigint NOT NULL,
    value longblob NOT NULL,
    KEY until (until)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_nopad_bin;
