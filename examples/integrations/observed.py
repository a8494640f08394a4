"""Failures in Sentry and log lines with structlog: what each handler does is named by its entry.

python examples/integrations/observed.py [DSN]
"""

from __future__ import annotations

import sys

import sentry_sdk
import structlog

import penstock
from penstock import Retry, Worker
from penstock.integrations.sentry import report_failures
from penstock.integrations.structlog import bind_entry

log = structlog.get_logger()
queues = penstock.Queues(middleware=[bind_entry(labels=True), report_failures("last")])
mails = queues.queue("mails", str)


@mails.handler(retry=Retry(attempts=1))
def send(mail: str) -> None:
    """Send a mail, unless it has no address."""
    log.info("sending")
    if "@" not in mail:
        raise ValueError(f"{mail} is not an address")


def main(dsn: str | None = None) -> None:
    """Handle a good one and a bad one."""
    sentry_sdk.init(dsn=dsn)
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, structlog.processors.JSONRenderer()])
    with queues.open("memory://") as store:
        mails.put("ann@example.org", labels={"customer": "ann"})
        mails.put("nobody")
        Worker(store).drain()
        print("dead letters:", [entry.value for entry in mails.dead()])


if __name__ == "__main__":
    main(*sys.argv[1:])
