"""How SparkRunner runs a computation: one streaming query for each, whose batches are turns of its tasks.

The driver decides what a turn is (a *ticket*: ranges of offsets, the time, whether the input ends), and the ticket is
the offset of the query, so that Spark repeats exactly it after a crash. Tasks read their ranges from the log, run the
same code as a local runner, keep state and timers in Spark's state store, and write their outputs aside. The driver
commits outputs and input offsets in one transaction that carries (query id, batch id).

tickets    what driver and workers tell each other
sending    computations on their way to the workers
source     the stream of tickets, as Spark sees it
buckets    state and timers of a task in Spark's state store
desk       the log store as a turn sees it
turn       one turn of one task, in a worker, record by record as a local runner does it
folding    the same for counts and folds, many records at once
processor  where Spark calls in: with state, and without
conductor  one computation at the driver: its query, its tickets, its commits
"""
