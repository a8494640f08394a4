"""What ``penstock doctor`` reports about a folder of logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock.log.drivers.files.filesystem import filesystem
from penstock.log.protocol import Finding

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileDriver


def check(driver: FileDriver) -> list[Finding]:
    """Room, durability, the file system, and staged records."""
    room = os.statvfs(driver.root)
    free = room.f_bavail * room.f_frsize
    kind = filesystem(driver.root) or "unknown"
    profile = "durable" if driver.durable else "fast: a power cut may lose the last 200 ms"
    findings = [
        Finding("good" if driver.durable else "warning", "durability", profile),
        Finding("unknown" if kind == "unknown" else "good", "file system", kind),
        Finding(
            "warning" if free < 4 * driver.min_free else "good",
            "room",
            f"{free:,} bytes free; appends are refused below {driver.min_free:,}",
        ),
    ]
    staged = list((driver.root / "staged").iterdir())
    if staged:
        findings.append(Finding("warning", "staged", f"{len(staged)} sets of records wait for a transaction"))
    return findings
