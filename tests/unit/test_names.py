"""Names: one strict rule, and a reversible escape for foreign ones."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import open_queues
from penstock.errors import BadInput
from penstock.names import check_name, check_space, escape_name, unescape_name

HOSTILE = [
    "",
    " ",
    "a b",
    ".",
    "..",
    "../etc/passwd",
    "a/../b",
    "a..b",
    "%2e%2e/",
    "a\0b",
    "{tag}",
    "*",
    "?",
    "a\n",
    "\u202egnp",
    "é",
    "e\u0301",
    "-a",
    "_a",
    "x" * 129,
    "'; DROP TABLE penstock; --",
    "a:b",
    "a\\b",
    "\ud800",
    "ａ",
    "a" * 10_000,
]
GOOD = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._%-]{0,127}\Z").filter(lambda name: ".." not in name)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"\Ashelf name .* is not allowed\..*escape_name") as caught:
        check_name(name, kind="shelf")
    assert "1 to 128" in caught.value.hint


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["q"]])
def test_only_text_is_a_name(name: object) -> None:
    with pytest.raises(BadInput):
        check_name(name)  # type: ignore[arg-type]


@given(GOOD)
def test_good_names_are_kept_as_they_are(name: str) -> None:
    assert check_name(name) == name


@given(st.text(max_size=40))
@example("x%41")
@example("x%")
@example("")
@example("...")
@example("x")
@example("é%C3")
@example("\0\n")
def test_any_text_can_be_escaped_and_comes_back(foreign: str) -> None:
    if len(foreign.encode()) <= 40:
        escaped = escape_name(foreign)
        assert check_name(escaped) == escaped
        assert unescape_name(escaped) == foreign


@given(st.text(max_size=10), st.text(max_size=10))
def test_escaping_keeps_different_names_apart(one: str, other: str) -> None:
    assert (escape_name(one) == escape_name(other)) == (one == other)


@given(GOOD.filter(lambda name: "%" not in name))
def test_plain_names_escape_to_themselves(name: str) -> None:
    assert escape_name(name) == name


@pytest.mark.parametrize("foreign", ["\ud800", "é" * 60, "x" * 129])
def test_what_cannot_be_escaped_is_refused(foreign: str) -> None:
    with pytest.raises(BadInput):
        escape_name(foreign)


@given(st.text() | st.binary() | st.sampled_from(HOSTILE))
def test_no_text_gets_past_unharmed(name: object) -> None:
    """Whatever comes in: a name made of harmless characters, or a typed error."""
    try:
        checked = check_name(name)  # type: ignore[arg-type]
    except BadInput:
        return
    assert set(checked) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._%-")
    assert 1 <= len(checked) <= 128
    assert ".." not in checked


@pytest.mark.parametrize(
    "space", ["", "Shop", "1shop", "shop-1", "shop; DROP", "a" * 41, "s p", None, "é", "sqlite master"]
)
def test_spaces_become_identifiers_so_they_are_stricter(space: object) -> None:
    with pytest.raises(BadInput, match="space"):
        check_space(space)  # type: ignore[arg-type]


@pytest.mark.parametrize("space", ["penstock", "bus_events", "notifications", "a", "a" * 40, "s1_"])
def test_good_spaces(space: str) -> None:
    assert check_space(space) == space


class TestOtherText:
    """Labels, unique ids, headers and ids go to the store too."""

    @pytest.mark.parametrize(
        "options",
        [
            {"unique": "\ud800"},
            {"labels": {"a": "\ud800"}},
            {"headers": {"a": "\ud800"}},
            {"headers": {"\udfff": "a"}},
            {"id": "\ud800"},
            {"sticky": "\ud800"},
            {"labels": {"\ud800": "a"}},
        ],
    )
    def test_text_that_is_none_is_refused(self, options: dict[str, object]) -> None:
        with open_queues("memory://") as store, pytest.raises(BadInput):
            store.queue("q").put("x", **options)  # type: ignore[arg-type]

    def test_a_payload_that_is_no_text_is_refused(self) -> None:
        with open_queues("memory://") as store, pytest.raises(BadInput):
            store.queue("q").put("\ud800")

    @given(st.text(max_size=60), st.text(max_size=60))
    def test_any_real_text_is_kept(self, label: str, header: str) -> None:
        with open_queues("memory://") as store:
            queue = store.queue("q")
            try:
                queue.put("x", labels={"a": label}, headers={"h": header})
            except BadInput:
                assert "\0" in label
                return
            [entry] = queue.find()
            assert (entry.labels, entry.headers) == ({"a": label}, {"h": header})
