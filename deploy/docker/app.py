"""What the worker of compose.yaml runs until you put your own in its place."""

import logging

import penstock

queues = penstock.Queues()
mails = queues.queue("mails")


@mails.handler
def send(mail: object) -> None:
    """Only say what came."""
    logging.getLogger("app").info("sending %r", mail)
