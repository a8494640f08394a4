"""The suite a log store must pass; docs/log-contract.md says the same in words.

Give the fixtures ``open_logs`` (see :class:`OpenLogs`) and ``clock`` (a FakeClock); then import the test classes of the
modules below into a test file. Register the asserts first, in a conftest:
``pytest.register_assert_rewrite("penstock.testing.log_contract")``.

asking        short ways to ask a store, used by all the others
logs          creating, listing, deleting, settings
appending     routing, batches, lingering, headers, timestamps
reading       tailers: order, turns, seeks, ranges, Arrow
committing    offsets of groups, lag, latency, resets
groups        one owner per partition; subscribers that come and go
producers     exclusive appenders, sequences, fencing
transactions  appends and offsets together
keeping       retention by age, size and consumption
pools         producers and consumers in threads, batches, retries, pills
copying       a log copied to another store
awaiting      penstock.aio over logs
waking        waiting for records and for commits
inputs        what is refused
machine       a state machine that holds a store against a small model
"""

from penstock.testing.log_contract.asking import LogContract, OpenLogs

__all__ = ["LogContract", "OpenLogs"]
