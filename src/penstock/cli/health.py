"""``penstock health PATH|URL``: asks a worker or a service how it is. It loads neither an application nor a store.

Exit codes: 0 live (with ``--ready``: ready); 1 not; 2 wrong input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

EXAMPLES = """examples:
  penstock health /run/penstock/health            a file that `penstock worker --health-file` writes
  penstock health http://127.0.0.1:9300 --ready   the port of `penstock worker --port`, or a service
"""
TIMEOUT = 5.0
WITHIN = 15.0


def main(arguments: list[str]) -> int:
    """Ask, print the answer, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="penstock health", description="Is a worker or a service live, is it ready?", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("target", metavar="PATH|URL", help="A health file, or the address of a worker or a service.")
    parser.add_argument("--ready", action="store_true", help="Ask whether it is ready, not only live.")
    parser.add_argument(
        "--within", type=float, default=WITHIN, metavar="SECONDS", help="How old a health file may be (default: 15)."
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="SECONDS", help="How long to wait for an answer (default: 5)."
    )
    given = parser.parse_args(arguments)
    wanted = "ready" if given.ready else "live"
    if given.target.startswith(("http://", "https://")):
        why = _ask_address(given.target, wanted, given.timeout)
    else:
        why = _look_at_file(given.target, wanted, given.within)
    print(f"{given.target} is {wanted}" if why is None else f"{given.target} is not {wanted}: {why}")
    return 0 if why is None else 1


def _look_at_file(path: str, wanted: str, within: float) -> str | None:
    """Why it is not healthy, or None if it is."""
    from datetime import UTC, datetime

    try:
        with open(path, "rb") as file:
            age = datetime.now(UTC).timestamp() - os.fstat(file.fileno()).st_mtime
            state: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return "there is no such file; the worker has not started, or has ended"
    except (OSError, ValueError) as error:
        return f"its file cannot be read: {error}"
    if not isinstance(state, dict):
        return "its file says nothing"
    if age > within:
        return f"its file was last written {age:.0f}s ago"
    return None if state.get(wanted) else str(state.get("why") or "it says so")


def _ask_address(url: str, wanted: str, timeout: float) -> str | None:
    """Why it is not healthy, or None if it is."""
    from contextlib import closing
    from http.client import HTTPConnection, HTTPException, HTTPSConnection
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    path = parts.path.rstrip("/") or ""
    if path.rpartition("/")[2] not in ("live", "ready"):
        path = f"{path}/{wanted}"
    try:
        with closing(kind(parts.netloc, timeout=timeout)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            status, body = response.status, response.read(10_000)
    except (OSError, HTTPException, ValueError) as error:
        return f"no answer: {type(error).__name__}: {error}"
    if status == 200:
        return None
    try:
        said = json.loads(body)
        return str(said.get("why") or said.get("detail") or said.get("status"))
    except (ValueError, AttributeError):
        return f"status {status}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
