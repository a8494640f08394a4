"""Threads of a pool: when they are done."""

import threading

from penstock.log.pools.threads import Crew


def test_threads_that_are_not_started_yet_are_not_done() -> None:
    crew: Crew[None] = Crew([])
    seen: list[bool] = []

    class Late(threading.Thread):
        def start(self) -> None:
            seen.append(crew.done)  # as somebody else may ask in this moment
            super().start()

    assert not crew.done
    crew._launch([Late(), Late()])
    crew.wait("10s")
    assert seen == [False, False]
    assert crew.done
