"""Turns of phrase that a native reader trips over, in the source and in the docs: ``python -m tools.english``.

Each has a plain form; the message names it. A line that needs the phrase all the same ends with ``english: ok``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
ALLOWED = "english: ok"
FOLDERS = ("src", "docs", "examples", "benchmarks", "tools", "deploy")
KINDS = {".py", ".md", ".sql", ".lua", ".html"}
LEFT_OUT = {"CHANGELOG.md", "english.py"}


class Phrase(NamedTuple):
    """What not to write, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


PHRASES = (
    Phrase(
        re.compile(
            r"(?<!here )\b(?:is|are|was|were) no "
            r"(?!longer|(?:more|less|earlier|later|shorter|further) than|one\b|reason|use|way|part|need)\w+"
        ),
        'say "is not a ..."',
    ),
    Phrase(re.compile(r"\banew\b"), 'say "again" or "over"'),
    Phrase(re.compile(r"\bfor ever\b"), 'write "forever"'),
    Phrase(re.compile(r"\bof late\b"), 'say "recently"'),
    Phrase(re.compile(r"\b(?:what|which) is none\b"), "name what it is not"),
    Phrase(
        re.compile(
            r"(?:^ *|[.:;(] |\"|# |-- |, )(?:Had|had|Should|should|Were|were) "
            r"(?:it|they|the|an?|this|that)\b(?![^.:;]*\?)"
        ),
        'begin with "If"',
    ),
    Phrase(
        re.compile(r"; (?:None|True|False|nothing|none) (?:if|when|where|while|without|before|after|for|from)\b"),
        'say "..., or None if" or "Returns None if"',
    ),
    Phrase(
        re.compile(r"; (?:whether|how (?:many|much|often|long))\b(?!.* is not known)"),
        'begin a sentence: "Returns whether ..."',
    ),
    Phrase(re.compile(r"\b[Hh]ow many (?:it|they) were\b"), 'say "how many there were"'),
    Phrase(re.compile(r"\bhow manieth\b"), 'say "the ordinal" or "the number"'),
    Phrase(
        re.compile(r"\b(?:is|are|was|were|be|been|being) told\b(?! (?:to|apart)\b)"),
        "say what happens: it gets, learns, reports, is notified of ...",
    ),
    Phrase(re.compile(r"\bgo(?:es)? by (?:what|the|this|that|it|its|their)\b"), 'say "uses" or "follows"'),
    Phrase(re.compile(r"\b(?:go|goes|went|gone) on with\b"), 'say "continues"'),
    Phrase(re.compile(r"\bbroken off\b"), 'say "interrupted"'),
    Phrase(re.compile(r"\bsuch a one\b"), 'name it, or say "it"'),
    Phrase(re.compile(r"\btaken along\b"), "say what is done together"),
    Phrase(re.compile(r"(?<!\")\"[^\"]+\b(?:somebody|whoever)\b"), "name who it is: the caller, the program that ..."),
)


class Slip(NamedTuple):
    """A phrase in a line of a file."""

    path: str
    line: int
    text: str
    instead: str


def slips(path: str, text: str) -> Iterator[Slip]:
    """The phrases in one file."""
    for number, line in enumerate(text.splitlines(), 1):
        for phrase in PHRASES:
            match = phrase.pattern.search(line)
            if match is not None and ALLOWED not in line:
                yield Slip(path, number, match[0].strip(), phrase.instead)


def all_slips() -> list[Slip]:
    """The phrases in all source files and pages."""
    paths = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))]
    own = [path for path in sorted(paths) if path.suffix in KINDS and path.name not in LEFT_OUT]
    return [
        slip
        for path in own
        if "vendor" not in path.parts
        for slip in slips(str(path.relative_to(ROOT)), path.read_text())
    ]


def main() -> int:
    """Print them; 1 if there are any."""
    found = all_slips()
    for slip in found:
        print(f"{slip.path}:{slip.line}: {slip.text!r}: {slip.instead}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
