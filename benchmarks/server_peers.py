"""Other queues on the same servers, with the same payload and a handler that does nothing: put all, then drain."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from benchmarks.measure import Run, timed
from benchmarks.peers import PAYLOAD

BODY = json.dumps(PAYLOAD).encode()


class Countdown:
    """Counts handled jobs, and tells when all are done."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.done = threading.Event()

    def one(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.done.set()


def measured(count: int, work: Callable[[], object]) -> Run:
    """Like ``timed`` with the loggers of the peers turned down, as one would in production."""
    logging.disable(logging.WARNING)
    try:
        return timed(count, work)
    finally:
        logging.disable(logging.NOTSET)


# --- PostgreSQL ---------------------------------------------------------------------------------------


def pgqueuer_drain(url: str, count: int) -> Run:
    """pgqueuer: its own queue manager with batches of 100."""
    import asyncpg
    from pgqueuer import AsyncpgDriver, Queries, QueueManager

    async def fill() -> None:
        connection = await asyncpg.connect(url)
        queries = Queries(AsyncpgDriver(connection))
        await queries.install()
        await queries.enqueue(["mails"] * count, [BODY] * count, [0] * count)
        await connection.close()

    async def drain() -> None:
        connection = await asyncpg.connect(url)
        manager = QueueManager(Queries(AsyncpgDriver(connection)))
        left = count

        @manager.entrypoint("mails")
        async def handle(job: Any) -> None:
            nonlocal left
            json.loads(job.payload)
            left -= 1
            if left == 0:
                manager.shutdown.set()

        await manager.run(batch_size=100)
        await connection.close()

    asyncio.run(fill())
    return measured(count, lambda: asyncio.run(drain()))


def procrastinate_drain(url: str, count: int) -> Run:
    """procrastinate: its worker, one job after the other, until nothing is left."""
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="handle")
    async def handle(payload: dict[str, Any]) -> None: ...

    async def fill() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            await handle.batch_defer_async(*({"payload": PAYLOAD} for _ in range(count)))

    async def drain() -> None:
        async with app.open_async():
            await app.run_worker_async(wait=False, install_signal_handlers=False)

    asyncio.run(fill())
    return measured(count, lambda: asyncio.run(drain()))


def pgmq_drain(url: str, count: int) -> Run:
    """pgmq: read 100, delete 100, in a bare loop; no handler, no history."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute((files("pgmq") / "sql" / "pgmq.sql").read_text())
        db.execute("SELECT pgmq.create('mails')")
        db.execute(
            "SELECT pgmq.send_batch('mails', array_agg(%s::jsonb)) FROM generate_series(1, %s)", (BODY.decode(), count)
        )

        def drain() -> None:
            while rows := db.execute("SELECT msg_id, message FROM pgmq.read('mails', 60, 100)").fetchall():
                db.execute("SELECT pgmq.delete('mails', %s)", ([row[0] for row in rows],))

        return measured(count, drain)


# --- Redis ----------------------------------------------------------------------------------------------


def rq_drain(url: str, count: int) -> Run:
    """rq: a SimpleWorker (no fork per job) until nothing is left."""
    import redis
    from rq import Queue, SimpleWorker

    connection = redis.Redis.from_url(url)
    queue = Queue("mails", connection=connection)
    queue.enqueue_many([Queue.prepare_data("benchmarks.server_peers.nothing", args=(PAYLOAD,)) for _ in range(count)])
    worker = SimpleWorker([queue], connection=connection)
    return measured(count, lambda: worker.work(burst=True, logging_level="ERROR"))


def nothing(payload: object) -> None:
    """What the jobs do."""


def arq_drain(url: str, count: int) -> Run:
    """arq: its worker, 100 jobs at once, until nothing is left."""
    from arq import create_pool
    from arq.connections import RedisSettings
    from arq.worker import Worker

    settings = RedisSettings.from_dsn(url)

    async def handle(_: object, payload: object) -> None: ...

    async def fill() -> None:
        pool = await create_pool(settings)
        for _ in range(count):
            await pool.enqueue_job("handle", PAYLOAD)
        await pool.aclose()

    async def drain() -> None:
        worker = Worker(
            [handle], redis_settings=settings, burst=True, max_jobs=100, poll_delay=0.01, keep_result=0,
            handle_signals=False,
        )  # fmt: skip
        await worker.async_run()
        await worker.close()

    handle.__qualname__ = "handle"
    asyncio.run(fill())
    return measured(count, lambda: asyncio.run(drain()))


def dramatiq_drain(url: str, count: int) -> Run:
    """dramatiq: its worker with one thread."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url, middleware=[])
    left = Countdown(count)

    def handle(payload: object) -> None:
        left.one()

    actor = dramatiq.actor(handle, broker=broker)
    for _ in range(count):
        actor.send(PAYLOAD)
    worker = dramatiq.Worker(broker, worker_threads=1, worker_timeout=10)

    def drain() -> None:
        worker.start()
        left.done.wait()

    run = measured(count, drain)
    worker.stop()
    return run


def huey_redis_drain(url: str, count: int) -> Run:
    """huey: dequeue and execute one by one, as its worker does."""
    from huey import RedisHuey

    huey = RedisHuey(url=url, blocking=False)

    @huey.task()
    def handle(payload: object) -> None: ...

    for _ in range(count):
        handle(PAYLOAD)

    def drain() -> None:
        while (task := huey.dequeue()) is not None:
            huey.execute(task)

    return measured(count, drain)


def huey_redis_put(url: str, count: int) -> Run:
    """huey: put one by one."""
    from huey import RedisHuey

    huey = RedisHuey(url=url, blocking=False)

    @huey.task()
    def handle(payload: object) -> None: ...

    handle(PAYLOAD)
    return measured(count, lambda: [handle(PAYLOAD) for _ in range(count)])


def celery_drain(url: str, count: int) -> Run:
    """celery: a worker of one thread in this process, without results."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    app = Celery(broker=url)
    app.conf.task_ignore_result = True
    app.conf.worker_prefetch_multiplier = 100
    app.conf.broker_connection_retry_on_startup = True
    left = Countdown(count)

    @app.task(name="handle")
    def handle(payload: object) -> None:
        left.one()

    for _ in range(count):
        handle.delay(PAYLOAD)

    def drain() -> None:
        with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
            left.done.wait()

    return measured(count, drain)


def taskiq_drain(url: str, count: int) -> Run:
    """taskiq on its Redis list broker: its receiver with many tasks at once."""
    from taskiq.receiver import Receiver
    from taskiq_redis import ListQueueBroker

    broker = ListQueueBroker(url)
    broker.is_worker_process = True

    async def play() -> Run:
        finish = asyncio.Event()
        left = count

        @broker.task(task_name="handle")
        async def handle(payload: dict[str, Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                finish.set()

        await broker.startup()
        for _ in range(count):
            await handle.kiq(PAYLOAD)
        cpu, begin = time.process_time(), time.perf_counter()
        receiver = Receiver(broker, max_async_tasks=100, run_startup=False)
        listening = asyncio.create_task(receiver.listen(finish))
        await finish.wait()
        run = Run(count, time.perf_counter() - begin, time.process_time() - cpu)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await broker.shutdown()
        return run

    logging.disable(logging.WARNING)
    try:
        return asyncio.run(play())
    finally:
        logging.disable(logging.NOTSET)


def streaq_drain(url: str, count: int) -> Run:
    """streaq: its worker with batches, until nothing is left."""
    from streaq import Worker

    worker: Any = Worker(redis_url=url, concurrency=100, prefetch=100, handle_signals=False)

    @worker.task(ttl=0)
    async def handle(payload: dict[str, Any]) -> None: ...

    async def fill() -> None:
        async with worker:
            await worker.enqueue_many([handle.enqueue(PAYLOAD) for _ in range(count)])

    asyncio.run(fill())
    return measured(count, lambda: asyncio.run(_burst(worker)))


async def _burst(worker: Any) -> None:
    worker.burst = True
    await worker.run_async()


# --- ZooKeeper -------------------------------------------------------------------------------------------


def kazoo_queue_drain(url: str, backlog: int, count: int) -> Run:
    """kazoo's Queue: get some of a backlog; no acknowledgement."""
    client = _kazoo(url)
    queue = client.Queue("/bench-queue")
    _put_all(client, "/bench-queue/entry-100-", backlog)

    def drain() -> None:
        for _ in range(count):
            queue.get()

    run = measured(count, drain)
    client.stop()
    return run


def kazoo_locking_drain(url: str, backlog: int, count: int) -> Run:
    """kazoo's LockingQueue: get and consume some of a backlog."""
    client = _kazoo(url)
    queue = client.LockingQueue("/bench-locking")
    queue._ensure_paths()  # noqa: SLF001
    _put_all(client, "/bench-locking/entries/entry-100-", backlog)

    def drain() -> None:
        for _ in range(count):
            queue.get(timeout=10)
            queue.consume()

    run = measured(count, drain)
    client.stop()
    return run


def _kazoo(url: str) -> Any:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=urlsplit(url).netloc)
    client.start()
    return client


def _put_all(client: Any, prefix: str, count: int) -> None:
    client.ensure_path(prefix.rpartition("/")[0])
    for start in range(0, count, 500):
        transaction = client.transaction()
        for number in range(start, min(start + 500, count)):
            transaction.create(f"{prefix}{number:010d}", BODY)
        transaction.commit()


def main(name: str, url: str, count: str) -> None:
    """Run one peer in this process and print its run; peers do not agree on versions, so each has an environment."""
    print(json.dumps({**POSTGRES_PEERS, **REDIS_PEERS, **REDIS_PUTS}[name](url, int(count))))


POSTGRES_PEERS = {"pgqueuer": pgqueuer_drain, "procrastinate": procrastinate_drain, "pgmq": pgmq_drain}
REDIS_PEERS = {
    "rq": rq_drain,
    "arq": arq_drain,
    "dramatiq": dramatiq_drain,
    "huey": huey_redis_drain,
    "celery": celery_drain,
    "taskiq": taskiq_drain,
    "streaq": streaq_drain,
}
REDIS_PUTS = {"huey put": huey_redis_put}

if __name__ == "__main__":
    main(*sys.argv[1:])
