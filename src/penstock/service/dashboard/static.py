"""The style sheet and scripts of the pages, from this package; nothing is loaded from anywhere else."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

FOLDER = Path(__file__).parent.parent / "static"
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

router = APIRouter(include_in_schema=False)


class _Files:
    """The static files, each with a tag that changes with it."""

    def __init__(self) -> None:
        self.known = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.suffix in KINDS}
        self.tags = {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in self.known.items()}


_files = _Files()


@router.get("/ui/static/{name:path}")
def static(request: Request, name: str) -> Response:
    """One file."""
    path = _files.known.get(name)
    if path is None:
        raise HTTPException(404, f"There is no file {name!r}.")
    headers = {"etag": f'"{_files.tags[name]}"', "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(path.read_bytes(), media_type=KINDS[path.suffix], headers=headers)
