"""State: a value, a list or a map per key or per task, declared by a computation, stored with its checkpoints."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from penstock.clock import Duration, Micros, duration_micros
from penstock.codec import Codec, codec_for
from penstock.names import check_name

if TYPE_CHECKING:
    from penstock.stream.engine.cells import ListCell, MapCell
    from penstock.stream.engine.state_store import Cell
    from penstock.stream.engine.value_cell import ValueCell
    from penstock.stream.engine.window_cell import WindowCell

T = TypeVar("T")
S = TypeVar("S")

IN_BLOCKS = ", in blocks"  # behind the shape of what is written so


class Declared(Generic[T]):
    """A state that a computation keeps per key.

    Throughout:
        name: of the state
        type: of the values
        ttl: drop what was not written for so long (processing time)
        keyed: False: a task has it once, whatever the key of a record: for what all instances have read, such as a
            broadcast input
    """

    kind: ClassVar[str] = ""

    @overload
    def __init__(self, name: str, type: type[T], *, ttl: Duration | None = None, keyed: bool = True) -> None: ...

    @overload
    def __init__(
        self: Declared[Any], name: str, type: Any = ..., *, ttl: Duration | None = None, keyed: bool = True
    ) -> None: ...

    def __init__(self, name: str, type: Any = Any, *, ttl: Duration | None = None, keyed: bool = True) -> None:
        """Declare a state of this name."""
        self.keyed = keyed
        self.name = check_name(name, kind="state")
        self.type = type
        self._codec: Codec[Any] | None = codec_for(type)
        self.ttl: Micros = 0 if ttl is None else duration_micros(ttl, name="ttl")

    @property
    def codec(self) -> Codec[Any]:
        """The codec of its values; a process it was sent to makes its own."""
        if self._codec is None:
            self._codec = codec_for(self.type)
        return self._codec

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the codec, which cannot be sent to another process."""
        return {**self.__dict__, "_codec": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Declared[T]:
        """Return itself: it never changes."""
        return self

    @property
    def shape(self) -> str:
        """What must not change between versions."""
        return f"{self.kind} of {self.codec.type_name}" + ("" if self.keyed else ", one per task")

    @property
    def written(self) -> str:
        """Its shape and how it is written: a version that cannot read that refuses it."""
        return self.shape

    def fits(self, written: str) -> bool:
        """Whether what was written so can be read."""
        return written == self.shape

    def cell(self) -> Cell:
        """The cell that holds it for one task."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Name and shape."""
        return f"<state {self.name}: {self.shape}>"


class Value(Declared[T]):
    """One value per key.

    Args:
        default: what a key without a value has
    """

    kind = "value"

    @overload
    def __init__(
        self, name: str, type: type[T], default: T, *, ttl: Duration | None = None, keyed: bool = True
    ) -> None: ...

    @overload
    def __init__(
        self: Value[S | None], name: str, type: type[S], *, ttl: Duration | None = None, keyed: bool = True
    ) -> None: ...

    @overload
    def __init__(
        self: Value[Any],
        name: str,
        type: Any = ...,
        default: Any = None,
        *,
        ttl: Duration | None = None,
        keyed: bool = True,
    ) -> None: ...

    def __init__(
        self, name: str, type: Any = Any, default: Any = None, *, ttl: Duration | None = None, keyed: bool = True
    ) -> None:
        """See :class:`Declared`."""
        super().__init__(name, type, ttl=ttl, keyed=keyed)
        self.default = default

    @property
    def written(self) -> str:
        """In blocks, unless each value has an end of its own."""
        return self.shape if self.ttl else self.shape + IN_BLOCKS

    def fits(self, written: str) -> bool:
        """Both ways of writing can be read."""
        return written.removesuffix(IN_BLOCKS) == self.shape

    def cell(self) -> ValueCell[T]:
        """The cell that holds it."""
        from penstock.stream.engine.value_cell import ValueCell

        return ValueCell(self, self.default)


class List(Declared[T]):
    """A list per key; appending costs as much as what is appended."""

    kind = "list"

    def cell(self) -> ListCell[T]:
        """The cell that holds it."""
        from penstock.stream.engine.cells import ListCell

        return ListCell(self)


class Map(Declared[T]):
    """A map from text to values per key; reading or changing an item costs as much as that item."""

    kind = "map"

    def cell(self) -> MapCell[T]:
        """The cell that holds it."""
        from penstock.stream.engine.cells import MapCell

        return MapCell(self)


class Windows(Declared[T]):
    """A value per key and window, for windows that close for all keys together; ``type`` has start, end and value."""

    kind = "windows"

    def cell(self) -> WindowCell:
        """The cell that holds them."""
        from penstock.stream.engine.window_cell import WindowCell

        return WindowCell(self)


_IMMUTABLE = (int, float, str, bytes, type(None))


def fresh(value: Any) -> Any:
    """A copy of an initial value, so that changing it in place never changes where other keys begin."""
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


# Keys of a map state that begin with a time, so that a range of times is a range of keys.

TIME_DIGITS = 16
_ZERO = 1 << 63  # so that times before 1970 sort too
_LAST = (1 << 64) - 1


def text_of_time(time: Micros) -> str:
    """A time as text that sorts as times do."""
    return f"{min(max(time + _ZERO, 0), _LAST):0{TIME_DIGITS}x}"


def time_of_text(text: str) -> Micros:
    """The time that a text begins with."""
    return int(text[:TIME_DIGITS], 16) - _ZERO
