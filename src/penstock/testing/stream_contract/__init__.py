"""The suite a runner must pass; docs/streams.md says the same in words.

Give the fixtures ``logs`` (a LogStore with a FakeClock), ``clock`` (that clock) and ``runner`` (see :class:`Run`); then
import the test classes of the modules below into a test file. Register the asserts first, in a conftest:
``pytest.register_assert_rewrite("penstock.testing.stream_contract")``.

asking    short ways to fill streams and to read results, used by all the others
running   from start to drain: order, routing, headers, stop and resume
keeping   state and timers that outlive the runner
timing    watermarks, late records, event-time timers, the end of the input
carried   event time from one computation to the next
failing   retries, dead letters, batches, discarded attempts
stubborn  bad and large values, timers that fail at the end, odd times
ready     the ready-made pieces against plain Python
graphs    random topologies and inputs against plain Python
"""

from penstock.testing.stream_contract.asking import Run

__all__ = ["Run"]
