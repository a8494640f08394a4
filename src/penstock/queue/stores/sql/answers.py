"""Answers that are kept: what a call changed is told again when its reply was lost and it is tried again.

Steps, puts and claims are recognised by their ids. The other calls have none, and what they would give if they were
tried again says nothing of what they did. So such a call writes its answer down in its own transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.ids import new_nonce
from penstock.queue.store import REMEMBERED

if TYPE_CHECKING:
    from penstock.queue.stores.sql.operations import Operations

T = TypeVar("T")

_KIND = "answer."


def answering(work: Callable[[Operations], T], kind: Any) -> Callable[[Operations], T]:
    """A call's work that keeps its answer, of a type that JSON can carry, and that gives it again in a repeat."""
    nonce, name = new_nonce(), ""

    def given_before(operations: Operations) -> Any:
        row = operations.db.execute(operations.sql.answer, (name,)).fetchone() if operations.repeat else None
        return None if row is None else msgspec.json.decode(row[0], type=kind)

    def answer(operations: Operations) -> T:
        nonlocal name
        before = given_before(operations)
        if before is not None:
            return before  # type: ignore[no-any-return]
        try:
            result = work(operations)
        except PenstockError:
            # The first try may have been under way until its locks were waited for.
            before = given_before(operations)
            if before is None:
                raise
            return before  # type: ignore[no-any-return]
        if not _changed(result):
            before = given_before(operations)
            return result if before is None else before
        name = _named(operations.now, nonce)
        operations.db.execute(operations.sql.keep_answer, (name, msgspec.json.encode(result).decode()))
        return result

    return answer


def forget_answers(operations: Operations) -> None:
    """Remove those that no repeat asks for any more."""
    operations.db.execute(operations.sql.forget_answers, (_KIND, _named(operations.now - REMEMBERED, "")))


def _changed(result: Any) -> bool:
    return any(msgspec.structs.astuple(result)) if isinstance(result, msgspec.Struct) else bool(result)


def _named(now: Micros, nonce: str) -> str:
    return f"{_KIND}{max(now, 0):020d}.{nonce}"
