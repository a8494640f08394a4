"""The suite a queue store must pass; docs/store-contract.md says the same in words.

Give the fixtures ``open_store`` (see :class:`OpenStore`) and ``clock`` (a FakeClock), and for a transactional store
``connect``; then import the test classes of the modules below into a test file. Register the asserts first, in a
conftest: ``pytest.register_assert_rewrite("penstock.testing.contract")``.

asking        short ways to ask a store, used by all the others
puts          puts, and ids that are sent twice
inputs        what is refused, text, spaces
unique        unique ids
claims        what is handed out, and when to look again
order         priority, FIFO, families, fairness
leases        tokens, fences, extending, heartbeats
settling      outcomes and steps
repeats       calls sent again after a lost reply
doubts        units and workers whose replies were lost, asked again
units         units of work
reaping       run-out leases and suspects
sticky        entries kept for one node
history       rows of ended attempts, pruning
ended         dead letters and replay
ranges        reading in bulk, and how far that is safe
locks         holders and reasons
documents     small versioned values by name
circuits      a breaker: statistics, states, locks, configuration
breaking      handlers behind a breaker
schedules     versions, firing, times
limits        rates and label limits
bus           publishing and subscriptions
changes       cancel, update, reschedule
transactions  calls inside the caller's transaction
waking        the doorbell
handling      results, failures, policies and handlers
contexts      what a handler may ask and put
running       workers in the background
awaiting      penstock.aio: calls, units and workers on an event loop
telling       signals
stubborn      what goes on although something else goes wrong
crowded       several at once: locks, unique ids, lost replies, forks
moving        a space carried from one store to another
model         the contract as a small model in plain Python
pair          a store and the model side by side
machine       a state machine that holds a store against the model
"""

from penstock.testing.contract.asking import Contract, OpenStore

__all__ = ["Contract", "OpenStore"]
