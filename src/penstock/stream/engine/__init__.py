"""The engine of streams: fed batches of records, it gives checkpoints. No threads, no store, no Spark.

engine         Engine: feed, step, committed: the story of a record and of a checkpoint
input_queue    the records that were fed and are not processed yet
task           one partition of a computation: its state, timers, watermark and outputs
checkpoint     what the engine is fed and what it gives: InputBatch, Checkpoint, Counts
folding        windows fold the records between two checkpoints, and touch the state of a key once
retry          what becomes of a record or timer whose processing fails
failed_timers  timers after one of them has failed: one at a time
permanent      errors that end a computation, because another attempt would meet them again
ending         the end of a task's input
state_store    what a task stores of one state: entries, expiry
cells          a list or a map for each key
blocks         the values of many keys as entries of a state log, which values and windows share
value_cell     a value for each key, in blocks
window_cell    the windows of all keys, in blocks: held, closed and written together
changelog      state and timers as records: made with a checkpoint, restored, rewritten, versioned
watermark      how far event time has come in a task
watermark_log  how event time comes from one computation to the next: reports, and who waits for them
event_time     what the engine asks of its runner about event time
reporting      what the tasks of an engine report, and from which offsets it holds
resolved       a computation with what the store says about its streams
"""
