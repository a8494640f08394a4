"""`penstock serve` as a process of its own."""

import subprocess
import sys
import threading
from pathlib import Path


class Served:
    """A process, where it serves, and what it says: read all the time, for a full pipe would hold it up."""

    def __init__(self, *options: str, folder: Path | None = None) -> None:
        # -P: as the installed command, which by itself imports nothing from the current folder.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock", "serve", "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.said = self.url = ""
        while not self.url and (line := self.process.stdout.readline()):
            self.said += line
            self.url = line.split()[0] if line.startswith("http") else ""
        self._later: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            self._later.extend(stream)

    def close(self) -> str:
        """Kill it unless it has ended; what it said after it began to serve."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        return "".join(self._later)
