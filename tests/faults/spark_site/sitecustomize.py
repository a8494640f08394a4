"""In every Python process of a driver under test: at the n-th reaching of a point the whole driver dies."""

import os
import signal
from pathlib import Path

if "SPARK_STRIKE" in os.environ:
    from penstock import failpoints

    POINT, HIT, BOOK = os.environ["SPARK_STRIKE"].split(",")

    def strike(name: str) -> None:
        if name == POINT:
            with Path(BOOK).open("ab") as book:
                book.write(b".")
            if Path(BOOK).stat().st_size == int(HIT):
                os.killpg(int(os.environ["SPARK_GROUP"]), signal.SIGKILL)  # the driver: its Python and its JVM
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.arm(strike)
    if POINT.startswith("log.adopt"):
        from penstock.log.drivers.files.writing import adoption

        adoption.ADOPT_BYTES = 1  # every file that a task writes becomes a segment
