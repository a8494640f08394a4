"""Patterns whose matching takes bounded work, whatever text they are matched with.

Python's matcher goes back and tries another way wherever a pattern leaves a choice, and holds up the whole process
meanwhile. The patterns are the operator's, the texts come from anybody. So a pattern is looked at once, when it is
read: how much work can a text be? Where that is too much, only shorter texts are matched, or the pattern is refused.
"""

from __future__ import annotations

import re
from re import _constants as kinds  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from penstock.errors import BadInput

MOST_WORK = 20_000_000  # characters looked at: less than a tenth of a second
MOST_TURNS_WITH_CHOICES = 32
_ENDLESS = float("inf")
_BEYOND = "beyond latin-1"
_CHARACTERS = frozenset((*(chr(code) for code in range(256)), _BEYOND))
# In some alphabet they are the other case of a character beyond: the Kelvin sign is a K, the long s an s.
_WITH_PARTNERS_BEYOND = frozenset("kKsSiI\xb5\xdf\xe5\xc5\xff")
_REPEATS = (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT)
_ASSERTIONS = (kinds.ASSERT, kinds.ASSERT_NOT)
_ENDS = (kinds.AT_END, kinds.AT_END_STRING)


class Work(NamedTuple):
    """In how many ways a part of a pattern can be passed, and how many characters are looked at to find them all."""

    ways: float = 1.0
    cost: float = 0.0


class Beginning(NamedTuple):
    """The characters that a part of a pattern can begin with, and whether it can match nothing."""

    characters: frozenset[str] = frozenset()
    may_be_empty: bool = True

    def then(self, following: Beginning) -> Beginning:
        """What this part, with another one behind it, can begin with."""
        if not self.may_be_empty:
            return self
        return Beginning(self.characters | following.characters, following.may_be_empty)


_END = Beginning()
_ANYTHING = Beginning(_CHARACTERS, True)  # also of what takes no characters, but may not hold: then others are tried


class BoundedPattern:
    """A pattern for whole texts, of at most ``longest`` characters; a longer text does not match."""

    def __init__(self, text: str, longest: int, *, shortest: int | None = None, what: str = "pattern") -> None:
        """Raise ``BadInput`` if even texts of ``shortest`` characters (by default ``longest``) could take too long."""
        shortest = longest if shortest is None else shortest
        try:
            self._pattern = re.compile(text)
            parsed = parser.parse(text)
            while longest > shortest and _work_of(parsed, _END, longest).cost > MOST_WORK:
                longest = max(longest // 2, shortest)
            work = _work_of(parsed, _END, longest)
        except (re.error, RecursionError, OverflowError, FutureWarning) as cause:
            raise BadInput(
                f"{what} {text!r} is not a regular expression: {cause}.", hint="For example /crm/(.*)."
            ) from cause
        if work.cost > MOST_WORK:
            raise BadInput(
                f"{what} {text!r} could take very long to match: its repeats leave too many choices.",
                hint="Say what ends a part, ([^/]+) instead of (.*), and avoid repeats inside of repeats.",
            )
        self.longest = longest
        self.groups = self._pattern.groups

    def match(self, text: str) -> re.Match[str] | None:
        """The match of a whole text."""
        return self._pattern.fullmatch(text) if len(text) <= self.longest else None


def _work_of(items: Any, following: Beginning, longest: int) -> Work:
    """The work of a sequence: for each way through its first part, that of the rest."""
    ways, cost = 1.0, 1.0
    for kind, argument in reversed(list(items)):
        work = _work(kind, argument, following, longest)
        ways, cost = work.ways * ways, work.cost + work.ways * cost
        following = _beginning(kind, argument).then(following)
    return Work(ways, cost)


def _work(kind: Any, argument: Any, following: Beginning, longest: int) -> Work:
    if kind in _REPEATS:
        return _work_of_repeat(argument, following, longest)
    if kind is kinds.SUBPATTERN:
        return _work_of(argument[-1], following, longest)
    if kind is kinds.ATOMIC_GROUP:
        return _work_of(argument, following, longest)
    if kind is kinds.BRANCH:
        return _work_of_branches(argument[1], following, longest)
    if kind in _ASSERTIONS:
        return _work_of(argument[1], _END, longest)
    if kind in (kinds.GROUPREF, kinds.GROUPREF_EXISTS):
        return Work(1.0, float(longest))
    return Work()


def _work_of_branches(branches: Any, following: Beginning, longest: int) -> Work:
    works = [_work_of(branch, following, longest) for branch in branches]
    beginnings = [_beginning_of(branch).then(following) for branch in branches]
    seen = sum(len(beginning.characters) for beginning in beginnings)
    apart = seen == len(frozenset().union(*(beginning.characters for beginning in beginnings)))
    ways = max(work.ways for work in works) if apart else sum(work.ways for work in works)
    return Work(ways, sum(work.cost for work in works))


def _work_of_repeat(argument: Any, following: Beginning, longest: int) -> Work:
    least, most, body = int(argument[0]), min(int(argument[1]), longest), list(argument[2])
    beginning = _beginning_of(body)
    again = following if most == 1 else Beginning(beginning.characters | following.characters, False)
    inside = _work_of(body, again, longest)
    if following == _END and body == [(kinds.ANY, None)]:
        return Work()  # the rest of the text, whatever it is: there is nothing to go back for
    if beginning.may_be_empty and most > 1:
        return Work(_ENDLESS, _ENDLESS)
    if inside.ways > 1:  # every turn has a choice of its own
        ways = inside.ways**most if most <= MOST_TURNS_WITH_CHOICES else _ENDLESS
        return Work(ways, inside.cost * ways)
    # Where nothing that follows can begin like another turn, only one number of turns fits.
    one_end = not beginning.characters & following.characters
    return Work(1.0 if one_end else float(most - min(least, most) + 1), inside.cost * most)


def _beginning_of(items: Any) -> Beginning:
    beginning = _END
    for kind, argument in reversed(list(items)):
        beginning = _beginning(kind, argument).then(beginning)
    return beginning


def _beginning(kind: Any, argument: Any) -> Beginning:
    if kind in _REPEATS:
        body = _beginning_of(argument[2])
        return Beginning(body.characters, body.may_be_empty or argument[0] == 0)
    if kind is kinds.SUBPATTERN:
        return _beginning_of(argument[-1])
    if kind is kinds.ATOMIC_GROUP:
        return _beginning_of(argument)
    if kind is kinds.BRANCH:
        branches = [_beginning_of(branch) for branch in argument[1]]
        characters = frozenset().union(*(branch.characters for branch in branches))
        return Beginning(characters, any(branch.may_be_empty for branch in branches))
    if kind is kinds.AT and argument in _ENDS:
        return _END
    if kind is kinds.AT or kind in (*_ASSERTIONS, kinds.GROUPREF, kinds.GROUPREF_EXISTS):
        return _ANYTHING
    return Beginning(_characters(kind, argument), False)


def _characters(kind: Any, argument: Any) -> frozenset[str]:
    """The characters that one of them can be; where it is not looked at closely, more of them.

    A pattern may say that case does not matter, so what is in is so in both cases, and what is out in one.
    """
    if kind is kinds.LITERAL:
        return _in_both_cases({_character(argument)})
    if kind is kinds.NOT_LITERAL:
        return _CHARACTERS - {chr(argument)}
    if kind is not kinds.IN:
        return _CHARACTERS
    exact: set[str] = set()
    for item, value in argument:
        if item is kinds.LITERAL:
            exact.add(_character(value))
        elif item is kinds.RANGE:
            exact |= {chr(code) for code in range(value[0], min(value[1], 0xFF) + 1)}
            exact |= {_BEYOND} if value[1] > 0xFF else set()
        elif item is kinds.CATEGORY:
            exact |= _CATEGORIES.get(value, _CHARACTERS)
        elif item is not kinds.NEGATE:
            return _CHARACTERS
    if argument and argument[0][0] is kinds.NEGATE:
        return (_CHARACTERS - exact) | {_BEYOND}
    return _in_both_cases(exact)


_CATEGORIES = {
    category: frozenset(character for character in _CHARACTERS if re.match(pattern, character)) | {_BEYOND}
    for category, pattern in (
        (kinds.CATEGORY_DIGIT, r"\d"), (kinds.CATEGORY_NOT_DIGIT, r"\D"), (kinds.CATEGORY_SPACE, r"\s"),
        (kinds.CATEGORY_NOT_SPACE, r"\S"), (kinds.CATEGORY_WORD, r"\w"), (kinds.CATEGORY_NOT_WORD, r"\W"),
    )
}  # fmt: skip


def _character(code: int) -> str:
    return chr(code) if code <= 0xFF else _BEYOND


def _in_both_cases(exact: set[str]) -> frozenset[str]:
    if _BEYOND in exact:
        exact |= _WITH_PARTNERS_BEYOND
    more = {other for character in exact - {_BEYOND} for other in (character.lower(), character.upper())}
    return frozenset(exact | {other if other in _CHARACTERS else _BEYOND for other in more})
