"""The same with await: handlers may be async, and so may puts."""

import asyncio

from penstock import aio


async def main() -> None:
    async with await aio.open_queues("sqlite:///shop.db") as store:
        mails = await store.queue("mails", str)

        @mails.handler(concurrency=50)
        async def send(to: str) -> None:
            await asyncio.sleep(0.01)
            print("mail to", to)

        await mails.put_many(["ann@example.org", "ben@example.org"])
        assert await aio.Worker(store).drain() == 2


asyncio.run(main())
