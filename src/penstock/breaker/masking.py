"""What must not be read in logs and audits: passwords in URLs, and values under telling names."""

from __future__ import annotations

import re
from typing import Any

_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_TELLING = re.compile(r"password|passwd|secret|token|authorization|api[-_]?key|cookie", re.IGNORECASE)
MASK = "***"


def masked(value: Any) -> Any:
    """The value with everything secret in it replaced.

    >>> masked({"url": "http://ann:pw@crm/", "token": "t"})
    {'url': 'http://***@crm/', 'token': '***'}
    """
    if isinstance(value, dict):
        return {masked(key): MASK if _TELLING.search(str(key)) else masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return _IN_URL.sub(MASK, value) if isinstance(value, str) else value
