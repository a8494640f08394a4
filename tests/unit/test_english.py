"""The phrases that `tools.english` knows are not in the source or the docs, and it finds them."""

import pytest
from tools.english import all_slips, slips


def test_source_and_docs_have_none_of_these_phrases() -> None:
    assert [f"{slip.path}:{slip.line}: {slip.text!r}: {slip.instead}" for slip in all_slips()] == []


@pytest.mark.parametrize(
    "text",
    [
        "a value that is no number",
        "the log was made anew",
        "kept for ever",
        "what failed of late",
        "Should the process die, it goes on",
        '"""The entry; None if there is none."""'.replace("there", "it"),
        "an executor, which is none",
    ],
)
def test_it_finds_each_of_them(text: str) -> None:
    assert len(list(slips("page.md", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "there is no queue of that name",
        "There is no log",
        "it is no longer held",
        "that is no reason to fail",
        "The entry, or None if it has ended.",
        "a value that is no number  <!-- english: ok -->",
    ],
)
def test_it_leaves_plain_english_alone(text: str) -> None:
    assert list(slips("page.md", text)) == []
