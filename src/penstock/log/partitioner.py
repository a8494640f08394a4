"""Partitioners: three fixed hash functions from a key to a partition; a log's settings name one of them.

========  ============================================================  ==========================================
name      partition                                                     the same as
========  ============================================================  ==========================================
crc32     ``zlib.crc32(key) % n``                                       librdkafka ``consistent``, Spark ``pmod(crc32(key), n)``
java      ``(String.hashCode(key) & 0x7fffffff) % n``                   nuxeo-mqueues
murmur2   ``(murmur2(key) & 0x7fffffff) % n``                           Java Kafka clients
========  ============================================================  ==========================================
"""  # noqa: E501 - a table

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from penstock.errors import BadInput
from penstock.log.record import key_bytes

Partitioner = Callable[[str | bytes, int], int]

DEFAULT = "crc32"


def crc32(key: str | bytes, partitions: int) -> int:
    """CRC-32, the default."""
    return zlib.crc32(key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key) % partitions


def java(key: str | bytes, partitions: int) -> int:
    """Java's String.hashCode: 31-based, 32 bits, over UTF-16 code units."""
    text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    raw = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for (unit,) in struct.iter_unpack("<H", raw):
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % partitions


def murmur2(key: str | bytes, partitions: int) -> int:
    """The 32-bit murmur2 of Java Kafka clients."""
    data = key_bytes(key)
    length = len(data)
    mask, m, r = 0xFFFFFFFF, 0x5BD1E995, 24
    h = (0x9747B28C ^ length) & mask
    whole = length // 4 * 4
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = (k * m) & mask  # noqa: PLW2901
        k ^= k >> r  # noqa: PLW2901
        k = (k * m) & mask  # noqa: PLW2901
        h = ((h * m) & mask) ^ k
    rest = data[whole:]
    if rest:
        h ^= int.from_bytes(rest, "little")
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions


PARTITIONERS: dict[str, Partitioner] = {"crc32": crc32, "java": java, "murmur2": murmur2}


def partitioner(name: str) -> Partitioner:
    """The function of this name."""
    try:
        return PARTITIONERS[name]
    except KeyError:
        raise BadInput(f"partitioner {name!r} is unknown.", hint=f"Known: {', '.join(PARTITIONERS)}.") from None
