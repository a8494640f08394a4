"""Check that a framework is installed and new enough; otherwise a typed error says what to install."""

from __future__ import annotations

import importlib
import re
from typing import Any

from penstock.errors import CannotOpen, MissingExtra


def required(module: str, *, extra: str) -> Any:
    """Import a framework's module. If it is missing, the error names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as cause:
        if cause.name is None or cause.name.partition(".")[0] != module.partition(".")[0]:
            raise  # it is installed, but lacks one of its own dependencies
        raise MissingExtra(
            f"this integration needs {module.partition('.')[0]}, which is not installed.",
            hint=f'Run: pip install "penstock[{extra}]"',
        ) from cause


def check_version(name: str, version: str, lowest: tuple[int, ...], *, extra: str) -> None:
    """Refuse a framework that is older than what the integration was written for."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[: len(lowest)])
    if numbers < lowest:
        wanted = ".".join(map(str, lowest))
        raise CannotOpen(
            f"this integration needs {name} {wanted} or newer; {version} is installed.",
            hint=f'Run: pip install --upgrade "penstock[{extra}]"',
        )
