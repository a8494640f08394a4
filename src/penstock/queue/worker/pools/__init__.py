"""The kinds of pools: how the entries of one handler are run.

threads     ThreadPool: a sync handler in threads of its own
processes   ProcessPool: a sync handler in processes, one for each slot
event_loop  LoopPool: an async handler in the worker's event loop
executor    ExecutorPool: a sync handler in the user's own executor
"""
