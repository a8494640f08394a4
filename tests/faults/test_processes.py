"""Processes that are killed, stopped and woken too late, on every durable store; sessions that expire."""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.driver import Child
from tests.faults import load
from tests.faults.arena import Arena, wait_steps
from tests.faults.conftest import KINDS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

STORES = ("sqlite", *KINDS)


@pytest.mark.parametrize("kind", STORES)
def test_workers_killed_one_after_the_other(kind: str, arena: Callable[[str], Arena]) -> None:
    play = arena(kind)
    play.ensemble(workers=3)
    seed = random.Random(5)
    for _ in range(12):
        wait_steps(play.folder, 100)
        victim: Child = seed.choice([*play.members(load.work), *play.members(load.cook)])
        victim.kill()
        play.replace(victim)
    play.finish()


@pytest.mark.parametrize("kind", STORES)
def test_all_killed_at_once(kind: str, arena: Callable[[str], Arena]) -> None:
    play = arena(kind)
    play.ensemble(workers=3)
    for _ in range(3):
        wait_steps(play.folder, 300)
        everybody = [*play.members(load.work), *play.members(load.cook), *play.members(load.produce)]
        for one in everybody:
            os.kill(one.pid, signal.SIGKILL)
        for one in everybody:
            one.kill()
            play.replace(one)
    play.finish()


@pytest.mark.parametrize("kind", STORES)
def test_zombies(kind: str, arena: Callable[[str], Arena]) -> None:
    """Stopped for longer than their leases, in the middle of whatever; woken, they have to be refused."""
    play = arena(kind)
    play.ensemble(workers=3)
    wait_steps(play.folder, 300)
    for _ in range(3):
        asleep = [*play.members(load.work)[:2], *play.members(load.cook)]
        for one in asleep:
            os.kill(one.pid, signal.SIGSTOP)
        time.sleep(4.5)  # leases are three seconds
        for one in asleep:
            one.go_on()
        wait_steps(play.folder, 200)
    play.finish()


def test_sessions_that_expire(arena: Callable[[str], Arena]) -> None:
    """X1: whoever sleeps longer than its ZooKeeper session has lost all its locks when it wakes."""
    play = arena("zookeeper")
    play.ensemble(workers=3)
    wait_steps(play.folder, 200)
    for _ in range(3):
        asleep = play.members(load.work)[:2]
        for one in asleep:
            os.kill(one.pid, signal.SIGSTOP)
        time.sleep(7)  # sessions are four seconds
        for one in asleep:
            one.go_on()
        wait_steps(play.folder, 100)
    play.finish()


@pytest.mark.parametrize("kind", ["postgres", "mysql", "redis"])
def test_connections_killed_by_the_server(kind: str, arena: Callable[[str], Arena]) -> None:
    """X1 elsewhere: pg_terminate_backend, KILL, CLIENT KILL."""
    play = arena(kind)
    play.ensemble()
    for _ in range(20):
        wait_steps(play.folder, 40)
        _kill_connections(kind, play.server)
    play.finish()


def _kill_connections(kind: str, server: Any) -> None:
    import psycopg
    import pymysql
    from redis import Redis
    from tests.stores.own_servers import mysql_cursor

    if kind == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'")
    elif kind == "mysql":
        with mysql_cursor(server.port) as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = 'penstock'")
            for (number,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {number}")
                except pymysql.err.MySQLError:
                    continue  # it went by itself
    else:
        with Redis(port=server.port) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
