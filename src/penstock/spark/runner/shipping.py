"""Sends computations to Spark's workers: as references to modules where possible, else by value.

Spark's own way (cloudpickle) makes empty shells of msgspec's structs that are defined in a script, a notebook or a
function. Here they are defined again on the other side, once in each process: what is sent twice is one type there, as
other classes are.
"""

from __future__ import annotations

import inspect
import io
import sys
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
from pyspark import cloudpickle

from penstock.ids import new_nonce
from penstock.stream.engine.watermark_log import Writers
from penstock.stream.topology import Topology

_SETTINGS = (
    "frozen", "eq", "order", "array_like", "gc", "repr_omit_defaults", "omit_defaults", "forbid_unknown_fields",
    "weakref", "dict", "cache_hash", "tag", "tag_field",
)  # fmt: skip

# What a class has of Python's making. All else in it is the user's: methods, also special ones, and version upcasters.
_OWN = frozenset({
    "__module__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__slots__",
    "__struct_fields__", "__dict__", "__weakref__", "__static_attributes__", "__firstlineno__",
})  # fmt: skip
_CONSTRAINTS = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz", "title", "description",
    "examples", "extra_json_schema", "extra",
)  # fmt: skip

# Structs that were sent from here, and those that came. A class that cloudpickle sends again changes under the tasks
# that have it already, so the structs that it names have to stay the same.
_sent: WeakKeyDictionary[type, str] = WeakKeyDictionary()
_defined: WeakValueDictionary[str, type] = WeakValueDictionary()

STATE_IN_MEMORY = 2_000_000  # entries, about 1 GB


class TaskSpec(msgspec.Struct):
    """What a worker needs of a computation."""

    id: str  # of this start of the computation
    url: str
    topology: Topology  # of this one computation
    name: str
    writers: Writers | None = None  # of the whole topology
    state_in_memory: int = STATE_IN_MEMORY  # entries that a worker process holds between batches


def packed(spec: TaskSpec) -> bytes:
    """Pickle it. Raises if it cannot be sent."""
    with io.BytesIO() as out:
        _Pickler(out).dump(spec)  # type: ignore[no-untyped-call]
        return out.getvalue()


@lru_cache(maxsize=64)
def unpacked(blob: bytes) -> TaskSpec:
    """Unpickle it, once in a worker, so that types stay the same."""
    spec: TaskSpec = cloudpickle.loads(blob)
    return spec


class _Pickler(cloudpickle.CloudPickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and isinstance(obj, type(msgspec.Struct)) and not _is_importable(obj):
            return _struct, (_id_of(obj), obj.__name__, *_parts(obj))
        if isinstance(obj, msgspec.Meta):
            return _meta, ({name: getattr(obj, name) for name in _CONSTRAINTS if getattr(obj, name) is not None},)
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]


def _is_importable(kind: type) -> bool:
    by_value = cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    if kind.__module__ == "__main__" or kind.__module__ in by_value:
        return False
    importable: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        importable = getattr(importable, name, None)
    return importable is kind


def _parts(kind: Any) -> tuple[Any, ...]:
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    own = [known[name] for name in inspect.get_annotations(kind) if name in known]  # in the order of the class
    fields = [(field.name, field.type, field.default, field.default_factory) for field in own]
    is_kw_only = any(field.name not in kind.__match_args__ for field in own)
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind) if field.encode_name != field.name}
    settings = {name: getattr(kind.__struct_config__, name) for name in _SETTINGS}
    space = {name: value for name, value in vars(kind).items() if name not in {*_OWN, *kind.__struct_fields__}}
    return kind.__bases__, kind.__module__, fields, names, {**settings, "kw_only": is_kw_only}, space


def _id_of(kind: type) -> str:
    id_ = _sent.get(kind)
    if id_ is None:
        id_ = _sent[kind] = new_nonce()
    return id_


def _meta(constraints: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**constraints)


def _struct(  # noqa: PLR0917 - as it was packed
    id_: str, name: str, bases: tuple[type, ...], module: str, fields: list[Any], names: dict[str, str], settings: Any,
    space: Any,
) -> type:  # fmt: skip
    known = _defined.get(id_)
    if known is None:
        known = _defined[id_] = _define(name, bases, module, fields, names, settings, space)
        _sent[known] = id_
    return known


def _define(  # noqa: PLR0917
    name: str, bases: tuple[type, ...], module: str, fields: list[Any], names: dict[str, str], settings: Any, space: Any
) -> type:
    members: list[Any] = []
    for member, kind, default, factory in fields:
        if factory is not msgspec.NODEFAULT:
            members.append((member, kind, msgspec.field(default_factory=factory)))
        elif default is not msgspec.NODEFAULT:
            members.append((member, kind, default))
        else:
            members.append((member, kind))
    return msgspec.defstruct(
        name,
        members,
        bases=bases,
        module=module,
        namespace=space,
        rename=names or None,
        **settings,
    )
