"""Runs the code of a documentation page, in order, in a folder of its own.

A block ```` ```python ```` is executed; all of a page share one namespace. With ``title="name.py"`` it is written to
that file instead. In a ```` ```console ```` block every line that begins with ``$`` is run as a command and has to
end with exit code 0. Blocks of other kinds are for reading only.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^```(?P<kind>[a-z]+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)

# The page runs as __main__ of a fresh interpreter; line numbers of its errors are those of the page.
RUNNER = """
import json, pathlib, subprocess, sys

sys.path.insert(0, "")
page, steps = sys.argv[1], json.loads(sys.argv[2])
for kind, title, line, text in steps:
    if title:
        pathlib.Path(title).write_text(text)
    elif kind == "python":
        exec(compile("\\n" * line + text, page, "exec"), globals())
    else:
        for command in (one[2:] for one in text.splitlines() if one.startswith("$ ")):
            print("$", command, flush=True)
            subprocess.run(command, shell=True, check=True)
"""


def steps(page: Path) -> list[tuple[str, str | None, int, str]]:
    """The blocks of a page that are run: kind, title, line, text."""
    text = page.read_text()
    return [
        (found["kind"], found["title"], text.count("\n", 0, found.start("text")), found["text"])
        for found in FENCE.finditer(text)
        if found["kind"] in ("python", "console")
    ]


def run(page: Path, folder: Path) -> str:
    """Run a page; what it printed. Fails with everything it said if it ends badly."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PENSTOCK"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, str(page), json.dumps(steps(page))],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{page.name} failed:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout
