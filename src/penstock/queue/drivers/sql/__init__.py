"""Queues in SQL databases.

callers       what is given as connection=
clocks        what the time is inside a transaction
schema        the tables' version and the steps to it
migrations    how steps are taken
statements    the named statements of the ``.sql`` files
guidance      conditions that change nothing but the way a search takes
session       one transaction on one connection
transactions  begin, commit, try again, repeat after a lost reply
pool          connections of this process
rows          rows as entries, leases and history, and back
put claim settle reap read transfer    what a call does inside its transaction
round_trip    settle and claim in one statement
endings       what becomes of entries, applied to all collections
repeats       what a call did whose reply was lost
registry      queues' settings, locks, schedules, subscriptions, nodes, documents
driver        the contract of a store, in terms of these
server        what the modules below give the driver
postgres      what is PostgreSQL's own: errors, tables, doctor
postgres_connection    connecting to it, and being woken
postgres_async         transactions of async drivers, joined by calls that await nothing
mysql         what is MariaDB's and MySQL's own: errors, tables, doctor
mysql_connection       connecting to it, and polling for what others put
mysql_statements       its statements: several in a message, lists, many rows at once
mysql_round_trip       puts and round trips in one message
sqlite        what is SQLite's own: the file's tables, waking, doctor
sqlite_file sqlite_turns    the file as several processes may trust it, and how they take turns
sqlite_transactions sqlite_calls    transactions on it; those of several threads share a commit
sqlite_script    scripts as it takes them fastest
sqlite_round_trip    a put and a round trip with the fewest statements
sqlite_errors    what its errors mean
"""
