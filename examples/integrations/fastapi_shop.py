"""A FastAPI application: an order and its mail, the handlers in the same event loop, operations under /ops.

uvicorn examples.integrations.fastapi_shop:app          # SHOP_URL says where queues are kept
"""

from __future__ import annotations

import os
import secrets
from typing import Annotated

import msgspec
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

import penstock
from penstock import aio
from penstock.integrations.fastapi import Operations, answer_errors, awaited, lifespan

queues = penstock.Queues()


class Mail(msgspec.Struct):
    """What the handler sends."""

    to: str


class Order(BaseModel):
    """What a customer posts."""

    to: str


mails = queues.queue("mails", Mail)
sent: list[str] = []


@mails.handler
async def send(mail: Mail) -> None:
    """Send a mail."""
    sent.append(mail.to)


def admin(x_admin: Annotated[str, Header()] = "") -> None:
    """Let only administrators through."""
    if not secrets.compare_digest(x_admin.encode(), os.environ.get("SHOP_ADMIN", "change me").encode()):
        raise HTTPException(403, "Only administrators see this.")


app = FastAPI(lifespan=lifespan(queues, lambda: os.environ.get("SHOP_URL", "sqlite:///shop.db"), worker=True))
app.mount("/ops", Operations(dependencies=[Depends(admin)]))
answer_errors(app)


@app.post("/orders", status_code=202)
async def order(body: Order, queue: Annotated[aio.Queue[Mail], Depends(awaited(mails))]) -> dict[str, str]:
    """Take an order; the mail is sent after the answer."""
    result = await queue.put(Mail(to=body.to), labels={"customer": body.to})
    return {"id": result.id}
