"""For the tests of programs that use Penstock: clocks that stand still, draining, and looking at what was put.

drained    drain: handle all due work in the calling thread
looking    assert_put, refute_put, all_put: what a queue holds
fixtures   a pytest plugin: ``pytest_plugins = ["penstock.testing.fixtures"]`` gives clock, queues and drain
"""

from penstock.clock import FakeClock, FileClock
from penstock.testing.drained import drain
from penstock.testing.looking import all_put, assert_put, refute_put

__all__ = ["FakeClock", "FileClock", "all_put", "assert_put", "drain", "refute_put"]
