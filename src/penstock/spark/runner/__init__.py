"""Topologies on Spark: the driver plans micro-batches, Spark's tasks compute them, the log commits them.

runner       SparkRunner: what users see
driver       one computation at the driver: its thread, and its restarts
batch_loop   the loop of plan, compute, commit
jobs         Spark: a batch is one job
planner      what the next micro-batch reads, and which path its tasks take
event_time   how far event time is in the tasks, and what others learn of it
micro_batch  what driver and tasks send each other
commit       the log of plans, and the one transaction that makes a batch visible
shipping     computations on their way to Spark's workers
task         where Spark calls in: a task and what its worker still holds of it
code_path    record by record, through the engine that a local runner has
fold_path    counts, sums, least and greatest values of a whole batch at once, in columns
state        the state of a task in a worker: restored from the state log, or brought up to date
appends      what a task has to append: small parts in its result, large ones written aside
"""
