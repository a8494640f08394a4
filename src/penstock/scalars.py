"""One canonical text for every JSON scalar: how numbers, true, false and null are keys where keys are text.

A text stands for itself. Everything else is its JSON behind ``json:``, and so is a text that begins with that: no two
scalars have the same text, 1, 1.0, "1" and true included.
"""

from __future__ import annotations

import json
import math
from typing import Any

from penstock.errors import BadInput

Scalar = str | int | float | bool | None
MARK = "json:"


def canonical_text(scalar: Scalar) -> str:
    """The text of a scalar.

    >>> [canonical_text(scalar) for scalar in (1, 1.0, "1", True, None)]
    ['json:1', 'json:1.0', '1', 'json:true', 'json:null']
    """
    if isinstance(scalar, str):  # first: nearly all keys are text
        return scalar if not scalar.startswith(MARK) else MARK + json.dumps(scalar, ensure_ascii=False)
    if isinstance(scalar, float):
        if not math.isfinite(scalar):
            raise BadInput(f"{scalar!r} is not JSON and cannot be a key.", hint="Use a finite number, or text.")
        return MARK + repr(scalar or 0.0)  # 0.0 and -0.0 are equal
    if scalar is None or isinstance(scalar, int):
        return MARK + json.dumps(scalar)
    raise BadInput(
        f"{scalar!r} is a {type(scalar).__name__} and cannot be a key.", hint="Use text, a number, True, False or None."
    )


def scalar_of(text: str) -> Any:
    """The scalar of a canonical text; a text that is not canonical stands for itself.

    >>> scalar_of("json:1"), scalar_of("1"), scalar_of("json:")
    (1, '1', 'json:')
    """
    if not text.startswith(MARK):
        return text
    try:
        scalar = json.loads(text[len(MARK) :])
        return scalar if canonical_text(scalar) == text else text
    except (ValueError, RecursionError, BadInput):
        return text
