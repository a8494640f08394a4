"""The hash that names a circuit: MurmurHash3 (x64, 128 bits, seed 0) of its trimmed text, as gateleen computes it."""

from __future__ import annotations

from functools import lru_cache

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


@lru_cache(maxsize=4096)
def circuit_hash(circuit: str) -> str:
    """32 hexadecimal digits for a circuit's name.

    >>> circuit_hash("/playground/img/(.*)")
    'ff0d1a0607368dd20baf689c91dc02ba'
    """
    first, second = _murmur(circuit.strip().encode())
    return first.to_bytes(8, "little").hex() + second.to_bytes(8, "little").hex()


def _murmur(data: bytes) -> tuple[int, int]:
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 = _rotate(h1 ^ _mix1(int.from_bytes(data[at : at + 8], "little")), 27) + h2
        h1 = (h1 * 5 + 0x52DCE729) & _MASK
        h2 = _rotate(h2 ^ _mix2(int.from_bytes(data[at + 8 : at + 16], "little")), 31) + h1
        h2 = (h2 * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _finish(h1), _finish(h2)
    h1 = (h1 + h2) & _MASK
    return h1, (h2 + h1) & _MASK


def _mix1(value: int) -> int:
    return _rotate(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(value: int) -> int:
    return _rotate(value * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _finish(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
