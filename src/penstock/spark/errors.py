"""Find the error that Penstock raised in Spark's stack traces; of an error in a worker only the text survives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from penstock import errors
from penstock.errors import BadInput, PenstockError

_OURS = re.compile(r"penstock\.errors\.(\w+): (.+)")
# Spark's own: a name in capitals, then sentences.
_SPARKS = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\] (.+)")
_FILE = re.compile(r"FAILED_READ_FILE(?:\.\w+)?\] Encountered error while reading file (.+?)\. (.*)")
_CAUSES = re.compile(r"Caused by: (?:[\w.$]+: )*(.+)")
_WRAPPINGS = ("FOREACH_BATCH_USER_FUNCTION_ERROR", "STREAM_FAILED")
LONGEST = 300  # characters of what Spark says


def explain(error: BaseException | None) -> PenstockError | None:
    """Find the Penstock error inside Spark's.

    Args:
        error: what Spark raised, or ``query.exception()``

    Returns:
        None if there is none
    """
    while error is not None:
        if isinstance(error, PenstockError):
            return error
        for kind, text in reversed(_OURS.findall(str(error))):
            error_type = getattr(errors, kind, None)
            if isinstance(error_type, type) and issubclass(error_type, PenstockError):
                return error_type(text.strip())
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def plain_errors() -> Iterator[None]:
    """Wrap calls of Spark: raise Penstock's own error, in one line, instead of Spark's stack trace."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        ours = explain(error)
        if ours is None:
            raise
        raise ours from None


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Wrap a query that is entirely ours: Spark's own errors become one line, too."""
    try:
        with plain_errors():
            yield
    except PenstockError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise _sparks(error, what) from error


def one_line(error: BaseException) -> str:
    """The sentence that names the cause, without class names and stacks."""
    texts = [text for name, text in _SPARKS.findall(str(error)) if name not in _WRAPPINGS]
    if texts:
        return _short(texts[-1])
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = [lines[1].removeprefix(": ").partition("Exception: ")[2] or lines[1].removeprefix(": ")]  # py4j's own
    return _short(lines[0])


def _short(said: str) -> str:
    said = said.partition("SQLSTATE:")[0].strip()
    return said if len(said) <= LONGEST else f"{said[:LONGEST]} …"


def _sparks(error: BaseException, what: str) -> PenstockError:
    text = str(error)
    file = _FILE.search(text)
    if file is None:
        return PenstockError(
            f"{what} failed in Spark: {one_line(error)}", hint="Put it right and run again; what was done stays done."
        )
    path = unquote(re.sub(r"^file:/*", "/", file[1].strip("`'\"")))
    causes = _CAUSES.findall(text)
    return BadInput(
        f"{path} cannot be read: {_short(file[2]) or _short(causes[-1] if causes else 'it is broken.')}",
        hint="Put a good file in its place, or move it away, and run again; what was taken is not taken twice.",
    )
