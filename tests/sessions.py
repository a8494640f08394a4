"""How tests end a ZooKeeper session behind its client's back, as the server does when it hears nothing for too long."""

import socket
import struct
import time
from collections.abc import Callable
from typing import Any

CLOSE = -11


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """Take the session over and close it with one message.

    Its client reconnects at once; if it is faster, the session is its own again and lives on: then try again.
    """
    session, password = client_id
    connect = struct.pack(">iqiqi", 0, 0, 10_000, session, len(password)) + password + b"\x00"
    close = struct.pack(">ii", 1, CLOSE)
    host, _, port = hosts.split(",", maxsplit=1)[0].partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(_framed(connect) + _framed(close))
        while connection.recv(4096):  # until the server has closed it
            pass


def _framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def expire(store: Any, patience: float = 20.0) -> None:
    """End the session of a store, and wait until it has noticed and has another one."""
    before, deadline = store.driver.connection.lost, time.monotonic() + patience
    while store.driver.connection.lost == before:
        assert time.monotonic() < deadline, "the session cannot be ended"
        end_session(store.driver.address.hosts, store.driver.connection.client.client_id)
        _wait(lambda: store.driver.connection.lost > before, 1.0)
    assert _wait(lambda: store.driver.connection.connected, patience), "there is no other session"


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
