"""How tests end a ZooKeeper session behind its client's back, as the server does when it hears nothing for too long."""

import socket
import struct

CLOSE = -11


def end_session(hosts: str, client_id: tuple[int, bytes]) -> None:
    """Take the session over and close it with one message: its client, which reconnects at once, comes too late."""
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
