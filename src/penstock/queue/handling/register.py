"""Register: the type of ``@queue.handler(...)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context

T = TypeVar("T")
R = TypeVar("R")


class Register(Protocol[T]):
    """What ``@queue.handler(...)`` gives: it takes the function and gives it back."""

    @overload
    def __call__(self, function: Callable[[T], R], /) -> Callable[[T], R]: ...

    @overload
    def __call__(self, function: Callable[[T, Context[T]], R], /) -> Callable[[T, Context[T]], R]: ...
