"""From a page of JVM stack to the error that Penstock raised: in a worker, its words are all that is left of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock import errors
from penstock.errors import PenstockError

_OURS = re.compile(r"penstock\.errors\.(\w+): (.+)")


def explain(error: BaseException | None) -> PenstockError | None:
    """The Penstock error inside an error of Spark's (also of ``query.exception()``); None if there is none."""
    while error is not None:
        if isinstance(error, PenstockError):
            return error
        for kind, text in reversed(_OURS.findall(str(error))):
            found = getattr(errors, kind, None)
            if isinstance(found, type) and issubclass(found, PenstockError):
                return found(text.strip())
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def plain_errors() -> Iterator[None]:
    """Around calls of Spark: raises what Penstock said, in one line, in place of Spark's account of it."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        ours = explain(error)
        if ours is None:
            raise
        raise ours from None
