-- What version 5 adds to the tables of a space: where a result comes from. Every statement may be run again; that a column
-- is there already is not an error to whoever runs them.

-- name: results
-- The queue of the entry, and the batch of which it was a member.
ALTER TABLE {space}_results ADD COLUMN queue TEXT NOT NULL DEFAULT '';
ALTER TABLE {space}_results ADD COLUMN batch TEXT;
CREATE INDEX IF NOT EXISTS {space}_results_batch ON {space}_results (batch, id) WHERE batch IS NOT NULL;
