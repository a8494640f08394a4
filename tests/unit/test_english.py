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
        "members that are no more",
        "a failure of one is no other's",
        "# Had it been stored, it would be found",
        '"""Forget a schedule; whether it was there."""',
        "it removes them, how many they were",
        "the how manieth of its kind",
        "a worker is told of it",
        "a clock that others go by, or go by what it says",
        "the next run goes on with it",
        "a copy that was broken off",
        "it drops such a one, too",
        "calls that were taken along",
        'hint="Stop whoever puts there."',
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
        "it takes no more than a second, and that is no more than before",
        "a worker that is told to stop, and another that can be told apart",
        "did not answer; whether it happened is not known",
        "days go by, and nobody had the lease",
        '"""Somebody has to look, whoever it is."""',
        "a value that is no number  <!-- english: ok -->",
    ],
)
def test_it_leaves_plain_english_alone(text: str) -> None:
    assert list(slips("page.md", text)) == []
