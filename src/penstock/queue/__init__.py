"""Work that is done once: queues of entries with due times, retries, leases and history.

entry      Entry, its states, Lease, Unique, history rows
queue      Queue: the typed handle: put, find, change, lock, handler
options    the options of a put, as types
many       many entries that are put together
declarations  what a queue needs of those who declare it before it is opened
batch      Batch, chain: entries that wait for others; what has become of a batch
held       why entries are held, and those held for nothing
linking    links: what one entry's end means for those that wait for it
task       Task: a function whose calls are entries
results    what handlers returned, and how far they have come
unit       UnitOfWork: take N and put K, committed together
handling/  a handler: the user's function, its context, what its outcome means
worker/    Worker: claims, runs handlers, settles
schedule   cron lines and intervals
queues     QueueStore: what open_queues returns; what users hold
driver     Driver: the contract every kind of store fulfils; for the authors of stores
checking   what a driver refuses before anything is sent
announcing Announcer: what a driver's calls tell as signals
scans      answers by paging through a store, for drivers without a shorter way
space_id   which space of which store this is
forgetting how long a store remembers what has ended
changes    who changed what by hand, and how it was before
search     entries of all queues, by id, unique id, label or error
removal    deleting an empty queue
protocol   what is said to a driver, and what it answers
refusals   what a store refuses, in one text for all
wakeup     Bell: how those who wait for work are woken
transfer   Copy: move a whole space to another store
drivers/   what speaks to a database, cut along the verbs put, claim, settle, reap, read, transfer
"""
