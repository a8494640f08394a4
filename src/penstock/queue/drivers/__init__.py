"""What speaks to a database: one driver per store, cut along the six verbs put, claim, settle, reap, read, transfer."""
