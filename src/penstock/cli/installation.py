"""``penstock doctor --install``: what is installed here, and whether every extra has what it needs."""

from __future__ import annotations

import platform
import re
import sqlite3
import sys
from importlib import metadata

import msgspec

from penstock.queue.protocol import Finding
from penstock.version import VERSION

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*([^;]*)(?:;(.*))?$")
_BOUND = re.compile(r"(>=|<)\s*([0-9][0-9.]*)")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")
_PYTHON = re.compile(r"python_version < ['\"]([0-9.]+)['\"]")
OLDEST_PYTHON = (3, 11)
GROUPS = ("standard", "all")  # extras that only combine others


class Requirement(msgspec.Struct, frozen=True):
    """A distribution that Penstock, or one of its extras, asks for."""

    name: str
    bounds: tuple[tuple[str, str], ...]
    extra: str | None

    def fault(self) -> str | None:
        """What is wrong with the installed version, or None."""
        try:
            version = metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return f"{self.name} is missing"
        for sign, bound in self.bounds:
            is_below = _numbers(version) < _numbers(bound)
            if is_below == (sign == ">="):
                return f"{self.name} {version} is installed, {sign}{bound} is needed"
        return None


def findings() -> list[Finding]:
    """Findings about this installation, the base first and then extra by extra."""
    results = [_python(), Finding("good", "penstock", VERSION), _sqlite()]
    try:
        requirements = read_requirements(metadata.requires("penstock") or [])
    except metadata.PackageNotFoundError:
        return [*results, Finding("unknown", "requirements", "penstock runs from its sources and was not installed")]
    base = [requirement for requirement in requirements if requirement.extra is None]
    results.append(_judged("base", base))
    extras = dict.fromkeys(requirement.extra for requirement in requirements if requirement.extra is not None)
    named = [extra for extra in extras if extra not in GROUPS]
    return results + [
        _judged(extra, [requirement for requirement in requirements if requirement.extra == extra]) for extra in named
    ]


def read_requirements(lines: list[str]) -> list[Requirement]:
    """The requirements that hold for this Python; extras that only name other extras are left out."""
    read = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        name, bounds, marker = match[1], match[2], match[3] or ""
        extra = _EXTRA.search(marker)
        below = _PYTHON.search(marker)
        if name == "penstock" or (below and sys.version_info[:2] >= _numbers(below[1])[:2]):
            continue
        read.append(Requirement(name, tuple(_BOUND.findall(bounds)), extra[1] if extra else None))
    return read


def _judged(what: str, requirements: list[Requirement]) -> Finding:
    """Judge the base, which must be complete, or an extra, which may be missing but not half installed."""
    title = "base" if what == "base" else f"extra {what}"
    faults = [fault for requirement in requirements if (fault := requirement.fault()) is not None]
    if not faults:
        names = ", ".join(f"{requirement.name} {metadata.version(requirement.name)}" for requirement in requirements)
        return Finding("good", title, names)
    missing = all(fault.endswith("is missing") for fault in faults)
    if what == "base":
        return Finding("bad", title, f"{'; '.join(faults)}. Run: pip install --upgrade penstock")
    hint = f'pip install --upgrade "penstock[{what}]"'
    if missing:
        return Finding("unknown", title, f"not installed ({'; '.join(faults)}): {hint}")
    return Finding("bad", title, f"{'; '.join(faults)}. Run: {hint}")


def _python() -> Finding:
    text = f"{platform.python_implementation()} {platform.python_version()} at {sys.prefix}"
    return Finding("good" if sys.version_info[:2] >= OLDEST_PYTHON else "bad", "python", text)


def _sqlite() -> Finding:
    return Finding("good", "sqlite library", sqlite3.sqlite_version)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a release: 2.0rc1 counts as 2.0."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
