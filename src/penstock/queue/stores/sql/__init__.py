"""Queues in SQL: one schema, statements common to all, one module per database.

schema      the tables of a space, defined once
migrations  numbered steps from one schema version to the next
dialect     what the databases say differently
statements  the fixed SQL, by name
clocks      what the time is inside a transaction
rows        rows of the tables as entries and back
steps       what a step does, in terms of those statements
operations  steps, and what people and the reaper do to entries
claiming    how due entries are found and leased
finding     searches and counts
ranges      reading in bulk, by ranges of sequence numbers
moving      what is carried to and from another store
store       the contract in terms of all these, for every SQL store
server      what stores on a server share: pool, retries, repeats
server_db   statements as the drivers of servers want them
server_claiming  claims where there are many writers
mysql       the store on MariaDB and MySQL
sqlite      the embedded store
sqlite_file its file: one writer per process with group commit, readers, guarded checkpoints
sqlite_errors    its errors, as ours
answers          answers of calls that may be repeated
repeats          what a repeated step did before
"""
