"""Rules: which circuit a request's address belongs to. One circuit per rule; the rule's pattern is its name."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from penstock.breaker.hashing import circuit_hash

logger = logging.getLogger("penstock.breaker")


class Rules:
    """Patterns in order; the first that matches the whole address wins."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Compile what can be compiled; a pattern that cannot be compiled is logged, and has no circuit."""
        self._rules: list[tuple[re.Pattern[str], str]] = []
        self.refused: list[str] = []
        self.replace(patterns)

    @property
    def patterns(self) -> list[str]:
        """All that have a circuit."""
        return [text for _, text in self._rules]

    def replace(self, patterns: Iterable[str]) -> list[tuple[str, str]]:
        """Take other patterns; those that vanished, with their hashes: their circuits are to be closed and removed."""
        before = {text.strip() for text in self.patterns}
        self._rules, self.refused = [], []
        for text in patterns:
            try:
                self._rules.append((re.compile(text.strip()), text.strip()))
            except re.error as error:
                logger.error("rule %r is not a regular expression: %s; it has no circuit", text, error)
                self.refused.append(text)
        gone = sorted(before - {text for _, text in self._rules})
        return [(text, circuit_hash(text)) for text in gone]

    def circuit(self, uri: str) -> str | None:
        """The circuit of an address, query included, or None if no rule matches."""
        for pattern, text in self._rules:
            if pattern.fullmatch(uri):
                return text
        return None
