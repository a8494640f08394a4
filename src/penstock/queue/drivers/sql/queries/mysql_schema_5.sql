-- What version 5 adds to the tables of a space: where a result comes from. Every statement may be run again; that a column
-- is there already is not an error to whoever runs them.

-- name: results
-- The queue of the entry, and the batch of which it was a member.
ALTER TABLE {space}_results ADD COLUMN queue varchar(128) NOT NULL DEFAULT '';
ALTER TABLE {space}_results ADD COLUMN batch varchar(64), ADD KEY batch (batch, id);
