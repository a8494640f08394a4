"""Threads of a pool: when they are done."""

import threading

from penstock.log.pools.threads import ThreadedPool


def test_threads_that_are_not_started_yet_are_not_done() -> None:
    pool: ThreadedPool[None] = ThreadedPool([])
    seen: list[bool] = []

    class Late(threading.Thread):
        def start(self) -> None:
            seen.append(pool.done)  # as somebody else may ask in this moment
            super().start()

    assert not pool.done
    pool._launch([Late(), Late()])
    pool.wait("10s")
    assert seen == [False, False]
    assert pool.done
