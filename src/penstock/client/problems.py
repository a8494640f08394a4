"""From an answer that is a problem to the error that it was in the service."""

from __future__ import annotations

import msgspec

from penstock import errors
from penstock.errors import BadInput, EntryNotFound, NotAllowed, PayloadTooLarge, PenstockError, StoreUnavailable

PREFIX = "urn:penstock:problem:"

_BY_STATUS: dict[int, type[PenstockError]] = {
    401: NotAllowed, 403: NotAllowed, 404: EntryNotFound, 408: StoreUnavailable, 413: PayloadTooLarge,
    429: StoreUnavailable,
}  # fmt: skip


class _Problem(msgspec.Struct):
    type: str = "about:blank"
    detail: str = ""
    hint: str = ""


def error_of(status: int, content: bytes, what: str) -> PenstockError:
    """The error of an answer; ``what`` names the request, for answers that say nothing themselves."""
    try:
        problem = msgspec.json.decode(content, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = _Problem()  # from something in between that knows nothing of us
    detail = problem.detail or f"{what} was answered with status {status}."
    return _class_of(problem.type, status)(detail, hint=problem.hint)


def _class_of(kind: str, status: int) -> type[PenstockError]:
    name = "".join(part.capitalize() for part in kind.removeprefix(PREFIX).split("-"))
    class_ = getattr(errors, name, None) if kind.startswith(PREFIX) else None
    if isinstance(class_, type) and issubclass(class_, PenstockError):
        return class_
    if status >= 500:
        return StoreUnavailable if status in (502, 503, 504) else PenstockError
    return _BY_STATUS.get(status, BadInput)
