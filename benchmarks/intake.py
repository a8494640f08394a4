"""The service: taking queued requests in, against an application that writes one row by hand; and pages of queues.

python -m benchmarks.intake [--quick]
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import penstock
from benchmarks.measure import Bar, conditions, folder, report

QUICK = "--quick" in sys.argv
COUNT = 800 if QUICK else 4_000
CLIENTS = 16
REPEATS = 1 if QUICK else 3
BODY = json.dumps({"to": "ann@example.org", "subject": "hello", "body": "x" * 100}).encode()

# The same framework, server and durability: one row, one commit, in a thread as a blocking call has to be.
BY_HAND = """
import sqlite3, sys, threading, uvicorn
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
from penstock.service.protocol import protocol
path, port = sys.argv[1], int(sys.argv[2])
local = threading.local()
def connection():
    if not hasattr(local, "db"):
        local.db = sqlite3.connect(path, isolation_level=None, timeout=30)
        local.db.execute("PRAGMA journal_mode=WAL")
        local.db.execute("PRAGMA synchronous=FULL")
        local.db.execute("CREATE TABLE IF NOT EXISTS requests (method, uri, headers, body)")
    return local.db
def write(*row):
    db = connection()
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO requests VALUES (?, ?, ?, ?)", row)
    db.execute("COMMIT")
app = FastAPI()
@app.put("/{rest:path}")
async def take(request: Request, rest: str):
    body = await request.body()
    await run_in_threadpool(write, request.method, request.url.path, repr(request.headers.raw), body)
    return Response(status_code=202)
uvicorn.run(app, host="127.0.0.1", port=port, http=protocol(10), log_level="error", access_log=False)
"""


def sent(port: int, count: int) -> float:
    """Requests per second over some connections that stay open."""
    left = iter(range(count))
    lock = threading.Lock()

    def client(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        headers = {"x-queue": f"q{number}", "content-type": "application/json"}
        while True:
            with lock:
                if next(left, None) is None:
                    return
            connection.request("PUT", f"/crm/{number}", BODY, headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 202, answer.status

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - begin)


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def up(port: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=1).connect()
        except OSError:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.05)
        else:
            return


def measured(command: list[str], port: int) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        up(port)
        sent(port, 100)
        return sent(port, COUNT)
    finally:
        process.terminate()
        process.wait()


def intake(path: Path) -> tuple[list[Bar], list[str]]:
    routes = path / "routes.json"
    routes.write_text(json.dumps({"/crm/(.*)": "http://127.0.0.1:9/$1"}))
    ours, theirs = [], []
    for number in range(REPEATS):
        port = free_port()
        url = f"sqlite:///{path / f'ours{number}.db'}"
        command = ["-m", "penstock", "serve", "--url", url, "--routes", str(routes), "--no-deliver"]
        ours.append(measured([sys.executable, *command, "--port", str(port)], port))
        port = free_port()
        by_hand = [sys.executable, "-c", BY_HAND, str(path / f"hand{number}.db"), str(port)]
        theirs.append(measured(by_hand, port))
    mine, other = statistics.median(ours), statistics.median(theirs)
    return (
        [Bar("queued requests taken in vs one row by hand", ">= 0.5x", f"{mine / other:.2f}x", mine / other >= 0.5)],
        [f"ours {mine:,.0f}/s, by hand {other:,.0f}/s, {CLIENTS} clients, one process each"],
    )


def pages(path: Path) -> tuple[list[Bar], list[str]]:
    times = {}
    for number in (100, 10_000):
        with penstock.open_queues(f"sqlite:///{path / f'pages{number}.db'}?durability=fast") as store:
            for start in range(0, number, 1000):
                names = range(start, min(number, start + 1000))
                store.driver.put([store.queue(f"q{name:05}").new({"n": name}) for name in names])
            laps = []
            for _ in range(30):
                begin = time.perf_counter()
                assert len(store.driver.page(after="q00010", limit=50)) == 50
                laps.append(time.perf_counter() - begin)
            times[number] = statistics.median(laps) * 1000
    slower = times[10_000] / times[100]
    return (
        [Bar("a page of 50 queues out of 10,000 vs out of 100", "<= 2x", f"{slower:.2f}x", slower <= 2)],
        [f"a page takes {times[100]:.2f} ms and {times[10_000]:.2f} ms"],
    )


def main() -> int:
    print(f"Conditions: {conditions()}", flush=True)
    with folder() as path:
        bars, notes = intake(path)
        more, said = pages(path)
    good = report("Service", bars + more, notes + said)
    print("Ratios decide; absolute figures are for this machine and this moment.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
