"""ProcessPool: runs a sync handler in processes, one for each slot."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from penstock.queue.entry import Entry
from penstock.queue.handling.attempt import Attempt
from penstock.queue.handling.handler import Handler
from penstock.queue.worker.pool import Shared
from penstock.queue.worker.pools.threads import ThreadPool

if TYPE_CHECKING:
    # Imported when the first process starts: a worker without such handlers starts without multiprocessing.
    from penstock.queue.worker.processes import HandlerProcess


class ProcessPool(ThreadPool):
    """A sync handler in processes, one for each slot: what is late is killed, what dies is replaced."""

    def __init__(self, handler: Handler, shared: Shared) -> None:
        """Start without processes."""
        super().__init__(handler, shared)
        self._processes: dict[int, HandlerProcess] = {}  # by thread

    def abandon(self) -> list[Entry[Any]]:
        """Kill what still runs: its entries go to others now."""
        running = super().abandon()
        if running:
            for process in list(self._processes.values()):
                process.kill()
        return running

    def close(self) -> None:
        """End the slots and their processes."""
        super().close()
        process = self._processes.pop(threading.get_ident(), None)  # of a drain
        if process is not None:
            process.close()

    def _attempt(self, entry: Entry[Any]) -> Attempt:
        attempt = Attempt(self.handler, entry, self._around, self._layers)
        attempt.call = self._call_in_process
        return attempt

    def _call_in_process(self, value: Any, _: Any) -> Any:
        thread = threading.get_ident()
        process = self._processes.get(thread)
        if process is None:
            from penstock.queue.worker.processes import HandlerProcess

            process = self._processes[thread] = HandlerProcess(self.handler.function, self.handler.title)
        return process.call(value, self.handler.timeout)

    def _slot(self) -> None:
        try:
            super()._slot()
        finally:
            process = self._processes.pop(threading.get_ident(), None)
            if process is not None:
                process.close()
