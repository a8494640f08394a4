"""Types are read by many threads at once, some of them for the first time."""

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as shapes
import pytest

import penstock
from penstock.codec import _PREPARED

ROOT = Path(penstock.__file__).parent
READS = re.compile(r"(?:decode|convert)\([^\n]*?(?:type=|, )(?:list\[|dict\[str, )?([A-Za-z_][\w.]*)\]?\)")

RACE = """
import sys, threading, types
import msgspec
from penstock.codec import codec_for
sys.setswitchinterval(1e-6)
text = "import msgspec\\nclass In(msgspec.Struct):\\n  a: int = 0\\n"
text += "class Out(msgspec.Struct):\\n  one: In\\n  two: int = 0"
for number in range(1500):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    exec(text, module.__dict__)
    together = threading.Barrier(4)
    def read():
        together.wait()
        assert codec_for(module.Out).decode(b'{"one": {"a": 5}}').one.a == 5
    threads = [threading.Thread(target=read) for _ in range(4)]
    for one in threads: one.start()
    for one in threads: one.join()
"""


def test_a_type_that_several_threads_see_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


def nested(type_: Any) -> bool:
    """Whether a struct holds what is worked out apart."""
    parts = (shapes.StructType, shapes.DataclassType, shapes.TypedDictType, shapes.NamedTupleType, shapes.EnumType)

    def holds(one: Any) -> bool:
        if isinstance(one, parts):
            return True
        inside = [getattr(one, name, None) for name in ("item_type", "key_type", "value_type")]
        inside += [*getattr(one, "types", ()), *getattr(one, "item_types", ())]
        return any(holds(part) for part in inside if part is not None)

    found = shapes.type_info(type_)
    return isinstance(found, shapes.StructType) and any(holds(field.type) for field in found.fields)


def read_types() -> list[Any]:
    """The structs that our modules read from bytes."""
    found = []
    for info in pkgutil.walk_packages([str(ROOT)], "penstock."):
        if info.name.endswith("__main__") or ".testing" in info.name:
            continue
        if ".integrations.django." in info.name:  # Django wants its settings first; what it reads goes through codecs
            continue
        module = importlib.import_module(info.name)
        source = Path(str(module.__file__)).read_text(encoding="utf-8")
        for name in READS.findall(source):
            type_ = getattr(module, name, None)
            if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
                found.append(pytest.param(type_, id=f"{info.name}.{name}"))
    return found


@pytest.mark.parametrize("type_", read_types())
def test_structs_of_structs_are_prepared(type_: type) -> None:
    assert not nested(type_) or type_ in _PREPARED, f"decorate {type_.__name__} with @prepared"
