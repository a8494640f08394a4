"""Work that is done once: queues of entries with due times, retries, leases and history.

entry      Entry, its states, Lease, Unique, history rows
queue      Queue: the typed handle: put, find, change, lock, handler
unit       UnitOfWork: take N and put K, committed together
handler    Handler and Context: the user's function and what it may ask
worker     Worker: claims, runs handlers, settles
station    where one handler's entries wait and run inside a worker
heartbeat  keeps leases alive while work goes on
reaper     maintenance: takes back run-out leases, fires schedules, prunes history
schedule   cron lines and intervals
store      QueueStore: the contract every store fulfils
stores/    the stores
"""
