"""The lock that redisques' clients know: one per queue, of whoever asked for it last."""

from __future__ import annotations

HOLDER = "redisques"
