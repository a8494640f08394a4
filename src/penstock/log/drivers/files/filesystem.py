"""Network file systems, which do not share locks and mapped files between machines."""

from __future__ import annotations

import os
import re
from pathlib import Path

from penstock.errors import CannotOpen

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gfs2", "ocfs2", "gpfs",
     "beegfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "virtiofs")
)  # fmt: skip


def filesystem(path: Path, mounts: Path = MOUNTS) -> str:
    """The type of file system that a path is on; empty if that is not known."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    real_path = os.path.realpath(path)
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda hit: chr(int(hit[1], 8)), fields[4])
        if (real_path == point or real_path.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def refuse_network(path: Path, name: str) -> None:
    """Raise for a network file system, where two machines would not see each other's locks and ends."""
    kind = filesystem(path)
    if kind in NETWORK:
        raise CannotOpen(
            f"{name} is on a network file system ({kind}), where locks and mapped files are not shared.",
            hint="Use a local disk, or Kafka for several machines. If only one machine ever opens it: ?network=allow.",
        )
