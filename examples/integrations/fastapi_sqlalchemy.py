"""FastAPI with async SQLAlchemy: an order and its mail are committed together or not at all.

QUEUES_URL=postgresql://… DATABASE_URL=postgresql+asyncpg://… uvicorn examples.integrations.fastapi_sqlalchemy:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import penstock
from penstock import aio
from penstock.integrations.fastapi import awaited, lifespan

queues = penstock.Queues()
mails = queues.queue("mails", str)


class Table(DeclarativeBase):
    """The tables of the shop."""


class Order(Table):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


@asynccontextmanager
async def database(app: FastAPI) -> AsyncIterator[None]:
    """The shop's own engine, on the database that keeps the queues."""
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(Table.metadata.create_all)
    app.state.engine = engine
    yield
    await engine.dispose()


async def session(request: Request) -> AsyncIterator[AsyncSession]:
    """A session for one request."""
    async with AsyncSession(request.app.state.engine) as opened:
        yield opened


app = FastAPI(lifespan=lifespan(queues, lambda: os.environ["QUEUES_URL"], inside=database))


@app.post("/orders/{customer}")
async def order(
    customer: str,
    db: Annotated[AsyncSession, Depends(session)],
    queue: Annotated[aio.Queue[str], Depends(awaited(mails))],
    *,
    pays: bool = True,
) -> None:
    """Take an order from whoever pays."""
    db.add(Order(customer=customer))
    await queue.put(f"to {customer}: thank you", connection=db)
    if not pays:
        raise HTTPException(402)  # the session is rolled back, and the mail with it
    await db.commit()
