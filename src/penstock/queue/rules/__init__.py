"""The rules of a queue in plain Python, over collections in memory: the memory store's, and ZooKeeper's on its mirror.

rows          what the collections hold: bodies, live entries, claims, attempts, dead letters
table         a dict whose changes can be undone
state         the collections of one space, and the indexes that follow them
ranking       members ordered by a key that may change
queue_order   which entry of a queue is next
ready_queues  which queue is next
put claim settle reap read transfer    what a call does to the collections
endings       what becomes of entries, applied to all collections
repeats       what a step did whose reply was lost
registry      queues' settings, locks, schedules, subscriptions, documents
"""
