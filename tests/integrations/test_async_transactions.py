"""Puts inside transactions of async drivers: SQLAlchemy's AsyncSession and AsyncConnection, psycopg, asyncpg."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import msgspec
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from tests.store_urls import Place

from penstock import aio
from penstock.errors import BadInput, Conflict, UniqueHeld
from penstock.policy import Reject
from penstock.queue.entry import Unique

DRIVERS = ["psycopg", "asyncpg"]
SQLALCHEMY = ["session", "connection"]


class Paid(msgspec.Struct):
    """An event."""

    amount: int


class Shop:
    """A queue, and ways into transactions of the database that keeps it."""

    def __init__(self, place: Place, driver: str) -> None:
        parts = urlsplit(place.url)
        self.url = place.url
        self.address = f"{parts.username}@{parts.hostname}:{parts.port}{parts.path}"
        self.schema = parse_qs(parts.query)["options"][0].partition("search_path=")[2]
        self.driver = driver

    def engine(self, **options: Any) -> AsyncEngine:
        if self.driver == "asyncpg":
            arguments: dict[str, Any] = {"server_settings": {"search_path": self.schema}}
        else:
            arguments = {"options": f"-csearch_path={self.schema}"}
        return create_async_engine(f"postgresql+{self.driver}://{self.address}", connect_args=arguments, **options)

    @contextlib.asynccontextmanager
    async def transaction(self, kind: str, **options: Any) -> AsyncIterator[Any]:
        """What a program holds while it is in a transaction that it has not begun yet."""
        if kind == "driver":
            connection = await self.connect()
            try:
                yield connection
            finally:
                await connection.close()
            return
        engine = self.engine(**options)
        try:
            async with AsyncSession(engine) if kind == "session" else engine.connect() as held:
                yield held
        finally:
            await engine.dispose()

    async def connect(self) -> Any:
        if self.driver == "asyncpg":
            return await asyncpg.connect(
                f"postgresql://{self.address}", server_settings={"search_path": self.schema}, ssl=False
            )
        return await psycopg.AsyncConnection.connect(
            f"postgresql://{self.address}", options=f"-csearch_path={self.schema}"
        )


@pytest.fixture(params=DRIVERS)
def shop(request: pytest.FixtureRequest, postgres: Place) -> Shop:
    return Shop(postgres, request.param)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main(), debug=True)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_a_put_lives_and_dies_with_the_transaction(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            mails = await store.queue("mails", str)
            await mails.put("undone", connection=held)
            await held.rollback()
            await mails.put("dear ann", connection=held, labels={"customer": "ann"}, delay="1h")
            assert await mails.find() == []
            await held.commit()
            [entry] = await mails.find(labels={"customer": "ann"})
            assert (entry.value, entry.labels) == ("dear ann", {"customer": "ann"})

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_the_programs_own_rows_and_the_entries_commit_together(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            mails = await store.queue("mails", str)
            await held.execute(sqlalchemy.text("CREATE TABLE orders (id int)"))
            await held.commit()
            for value, ends in ((1, held.rollback), (2, held.commit)):
                await held.execute(sqlalchemy.text("INSERT INTO orders VALUES (:value)"), {"value": value})
                await mails.put(f"order {value}", connection=held)
                await ends()
            assert (await held.execute(sqlalchemy.text("SELECT id FROM orders"))).scalars().all() == [2]
            assert [entry.value for entry in await mails.find()] == ["order 2"]

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_every_transactional_call_joins(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            numbers = await store.queue("numbers", int)
            bus = aio.Bus(store)
            heard = await bus.subscribe("heard", Paid)
            results = await numbers.put_many(range(30), connection=held)
            await bus.publish(Paid(7), connection=held)
            first, second, third = (result.id for result in results[:3])
            await numbers.update(first, 100, connection=held)
            await numbers.reschedule(second, delay="2h", connection=held)
            assert await numbers.cancel(third, connection=held) == 1
            assert len(await numbers.find(connection=held)) == 29
            assert await numbers.find() == []
            await held.commit()
            assert sorted(entry.value for entry in await numbers.find())[-1] == 100
            assert [entry.value for entry in await heard.find()] == [Paid(7)]

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_a_unique_id_that_is_held_leaves_the_transaction_usable(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            mails = await store.queue("mails", str)
            await mails.put("first", unique="order-1")
            with pytest.raises(UniqueHeld):
                await mails.put("second", unique=Unique("order-1", on_conflict="raise"), connection=held)
            assert not (await mails.put("third", unique="order-1", connection=held)).created
            await mails.put("fourth", connection=held)
            await held.commit()
            assert [entry.value for entry in await mails.find()] == ["first", "fourth"]

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_the_synchronous_put_works_inside_run_sync(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            mails = await store.queue("mails", str)
            for value, ends in (("undone", held.rollback), ("kept", held.commit)):
                await held.run_sync(
                    lambda inner, value=value: mails.sync.put(value, connection=inner, labels={"a": "b"})
                )
                await ends()
            assert [entry.value for entry in await mails.find()] == ["kept"]

    run(main)


def test_the_drivers_own_connection_is_taken_too(shop: Shop) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction("driver") as held:
            mails = await store.queue("mails", str)
            async with held.transaction():
                await mails.put("kept", connection=held)
            with contextlib.suppress(ZeroDivisionError):
                async with held.transaction():
                    await mails.put("undone", connection=held)
                    raise ZeroDivisionError
            assert [entry.value for entry in await mails.find()] == ["kept"]

    run(main)


def test_a_handler_finishes_its_entry_in_the_transaction_of_its_session(shop: Shop) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store:
            mails = await store.queue("mails", str)

            @mails.handler
            async def send(mail: str, ctx: Any) -> Reject | None:
                async with shop.transaction("session") as session:
                    await aio.run(ctx.finish, connection=session)
                    await (session.commit() if mail == "kept" else session.rollback())
                return None if mail == "kept" else Reject("rolled back")

            await mails.put_many(["kept", "undone"])
            await aio.Worker(store).drain()
            assert [row.state for row in await mails.history() if row.state == "done"] == ["done"]
            assert [entry.value for entry in await mails.dead()] == ["undone"]

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_a_connection_that_commits_by_itself_is_refused(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with (
            await aio.open_queues(shop.url) as store,
            shop.transaction(kind, isolation_level="AUTOCOMMIT") as held,
        ):
            mails = await store.queue("mails", str)
            with pytest.raises(BadInput, match="commits every statement by itself"):
                await mails.put("x", connection=held)

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_a_transaction_that_has_failed_is_named(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            mails = await store.queue("mails", str)
            with pytest.raises(sqlalchemy.exc.DBAPIError):
                await held.execute(sqlalchemy.text("SELECT 1 / 0"))
            with pytest.raises(Conflict, match="has failed already"):
                await mails.put("x", connection=held)

    run(main)


@pytest.mark.parametrize("kind", SQLALCHEMY)
def test_a_synchronous_call_on_the_loop_says_what_to_await(shop: Shop, kind: str) -> None:
    async def main() -> None:
        async with await aio.open_queues(shop.url) as store, shop.transaction(kind) as held:
            mails = await store.queue("mails", str)
            with pytest.raises(BadInput, match=r"only an event loop.*penstock\.aio.*run_sync"):
                mails.sync.put("x", connection=held)

    run(main)


@pytest.mark.parametrize("kind", [*SQLALCHEMY, "driver"])
def test_puts_at_once_on_one_connection_do_not_undo_each_other(shop: Shop, kind: str) -> None:
    """A put that is refused rolls back to where it began, and nothing that another one has put meanwhile."""

    async def main() -> None:
        async with await aio.open_queues(shop.url) as store:
            mails = await store.queue("mails", str)
            await mails.put("holder", unique="held")
            for number in range(5):
                async with shop.transaction(kind) as held:
                    begun = held.transaction() if kind == "driver" and shop.driver == "asyncpg" else None
                    if begun is not None:
                        await begun.start()
                    else:
                        await held.execute("SELECT 1" if kind == "driver" else sqlalchemy.text("SELECT 1"))
                    refused, *put = await asyncio.gather(
                        mails.put("no", connection=held, unique=Unique("held", on_conflict="raise")),
                        *(mails.put(f"{number}-{rank}", connection=held) for rank in range(3)),
                        return_exceptions=True,
                    )
                    assert isinstance(refused, UniqueHeld)
                    assert [result.created for result in put] == [True] * 3
                    await (held if begun is None else begun).commit()
            wanted = {"holder", *(f"{number}-{rank}" for number in range(5) for rank in range(3))}
            assert {entry.value for entry in await mails.find()} == wanted

    run(main)


def test_a_connection_of_asyncpgs_pool(postgres: Place) -> None:
    shop = Shop(postgres, "asyncpg")

    async def main() -> None:
        async with (
            await aio.open_queues(shop.url) as store,
            asyncpg.create_pool(
                f"postgresql://{shop.address}", server_settings={"search_path": shop.schema}, ssl=False, min_size=1
            ) as pool,
        ):
            mails = await store.queue("mails", str)
            async with pool.acquire() as connection:
                with contextlib.suppress(ZeroDivisionError):
                    async with connection.transaction():
                        await mails.put("undone", connection=connection)
                        raise ZeroDivisionError
                async with connection.transaction():
                    await mails.put("kept", connection=connection)
            assert [entry.value for entry in await mails.find()] == ["kept"]

    run(main)
