-- What version 5 adds to the tables of a space: where a result comes from. Every statement may be run again.

-- name: results
-- The queue of the entry, and the batch of which it was a member.
ALTER TABLE {space}_results ADD COLUMN IF NOT EXISTS queue text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE {space}_results ADD COLUMN IF NOT EXISTS batch text COLLATE "C";
CREATE INDEX IF NOT EXISTS {space}_results_batch ON {space}_results (batch, id) WHERE batch IS NOT NULL;
