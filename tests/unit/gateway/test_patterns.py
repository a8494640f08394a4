"""Patterns match as Python's do, and none that is taken can be made to take long."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.gateway import patterns
from penstock.gateway.patterns import BoundedPattern
from penstock.gateway.routes import Routes
from penstock.gateway.splitting import Splitter

USUAL = [
    "/crm/(.*)", "/mail/.*", "/a/([^/]+)/b/([^/]+)/c", "/(.*)/orders/(.*)/lines/(.*)",
    r"/v\d+/(?P<id>[0-9a-f-]{36})(?:/.*)?", "/(?:foo|bar)/(.*)",
    "(?:/[^/]+)*", "/(?!admin)(.*)", r"/(\w+)/(\d+)", "/.*?/x",
    "/playground/(.*)/(.*)", "", ".*", "(?i)/crm/.*",
]  # fmt: skip
SLOW = [
    "/(.*)/(.*)/(.*)/status", "(a+)+b", "(a|a)*b", "(a|ab|b)*c", "((a*)*)*", "(.*a){20}", "(?:a?){30}a{30}",
    "a*a*a*a*b", "[^x]*A[^y]*A[^z]*Ab", "(?:.*,)*x", r"(\w+\s?)+$", "(?=.*.*.*b).*", r"(.*)(.*)\1\2x",
    "(?=.*(?=.*(?=.*[xy])))", "(.*)(.*)(.*)(?=x)", "/(.*)/(.*)/(.*)(?<!x)", r"(.*)(.*)(.*)\B", "(?:a+(?=.*b))*",
]  # fmt: skip


@pytest.mark.parametrize("text", USUAL)
def test_usual_patterns_are_taken(text: str) -> None:
    pattern = BoundedPattern(text, 8192, shortest=2048)
    assert pattern.longest >= 2048
    for uri in ("/crm/1", "/a/1/b/2/c", "/x/orders/1/lines/2", "/foo/bar", "", "/v1/x", "/mail/" + "a" * 1000):
        hit, wanted = pattern.match(uri), re.fullmatch(text, uri)
        assert (hit is None) == (wanted is None)
        assert hit is None or hit.groups() == wanted.groups()  # type: ignore[union-attr]


@pytest.mark.parametrize("text", SLOW)
def test_patterns_with_too_many_choices_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="too many choices"):
        BoundedPattern(text, 8192, shortest=2048)
    with pytest.raises(BadInput, match="too many choices"):
        Routes.read({text: "http://crm:8080"})


def test_a_pattern_with_some_choices_has_shorter_texts() -> None:
    pattern = BoundedPattern("/(.*)/(.*)/status", 8192, shortest=1024)
    assert 1024 <= pattern.longest < 8192
    assert pattern.match("/a/b/status")
    assert pattern.match("/" * 8000 + "/status") is None
    with pytest.raises(BadInput, match="not a regular expression"):
        BoundedPattern("/a(", 8192)


def test_queues_are_not_split_by_patterns_that_take_long() -> None:
    with pytest.raises(BadInput, match="too many choices"):
        Splitter({"(a+)+b": {"postfixFromStatic": ["A", "B"]}})
    with pytest.raises(BadInput, match="too many choices"):
        Splitter({"q": {"postfixFromRequest": {"url": "/(.*)/(.*)/(.*)/status"}}})


class Counted:
    """How often a text is looked at by a matcher that goes back as Python's does."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.looks = 0

    def run(self, items: list[Any], at: int, then: Any) -> bool:
        if not items:
            return bool(then(at))
        (kind, argument), *rest = items
        if kind in (patterns.kinds.MAX_REPEAT, patterns.kinds.MIN_REPEAT):
            return self.repeat(argument, at, 0, lambda end: self.run(rest, end, then))
        if kind is patterns.kinds.SUBPATTERN:
            return self.run(list(argument[-1]), at, lambda end: self.run(rest, end, then))
        if kind in patterns._ASSERTIONS:
            self.looks += 1
            holds = self.run(list(argument[1]), at, lambda _: True)
            return holds is (kind is patterns.kinds.ASSERT) and self.run(rest, at, then)
        if kind is patterns.kinds.AT:
            self.looks += 1
            return at == len(self.text) and self.run(rest, at, then)
        if kind is patterns.kinds.BRANCH:
            return any(self.run(list(branch), at, lambda end: self.run(rest, end, then)) for branch in argument[1])
        self.looks += 1
        return self.fits(kind, argument, at) and self.run(rest, at + 1, then)

    def repeat(self, argument: Any, at: int, turns: int, then: Any) -> bool:
        least, most, body = argument
        if turns < most and self.run(
            list(body), at, lambda end: (end > at or turns < least) and self.repeat(argument, end, turns + 1, then)
        ):
            return True
        return turns >= least and bool(then(at))

    def fits(self, kind: Any, argument: Any, at: int) -> bool:
        if at >= len(self.text):
            return False
        if kind is patterns.kinds.ANY:
            return True
        codes = argument if kind is patterns.kinds.IN else [(kind, argument)]
        letter = ord(self.text[at])
        if kind is patterns.kinds.NOT_LITERAL:
            return bool(letter != argument)
        return any(letter == value for item, value in codes if item is patterns.kinds.LITERAL)


ATOMS = st.sampled_from(["a", "b", "/", ".", "[ab]", "[^a]", "[^/]"])
PARTS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2,3}"])).map(lambda both: f"(?:{both[0]}){both[1]}"),
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda several: f"(?:{'|'.join(several)})"),
        st.tuples(inner, st.sampled_from(["(?={})", "(?!{})", "{}$"])).map(lambda both: both[1].format(both[0])),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(PARTS, st.lists(st.sampled_from("ab/"), max_size=10).map("".join))
def test_no_text_is_more_work_than_was_foreseen(text: str, uri: str) -> None:
    parsed = list(patterns.parser.parse(text))
    foreseen = patterns._work_of(parsed, patterns._END, max(len(uri), 1)).cost
    counted = Counted(uri)
    counted.run(parsed, 0, lambda end: end == len(uri))
    # Literals are not counted there, and a repeat looks once more to see that it has ended.
    assert counted.looks <= (foreseen + 2) * (4 * len(text) + 4)
