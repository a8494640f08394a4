"""One canonical text for every JSON scalar; golden vectors."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import open_logs
from penstock.errors import BadInput
from penstock.ids import new_id
from penstock.scalars import canonical_text, scalar_of

GOLDEN: list[tuple[Any, str]] = [
    (1, "json:1"),
    (1.0, "json:1.0"),
    ("1", "1"),
    (True, "json:true"),
    (False, "json:false"),
    (None, "json:null"),
    (0, "json:0"),
    (0.0, "json:0.0"),
    (-0.0, "json:0.0"),
    (-7, "json:-7"),
    (1.5, "json:1.5"),
    (1e100, "json:1e+100"),
    (1e-7, "json:1e-07"),
    (0.1 + 0.2, "json:0.30000000000000004"),
    (2**70, "json:1180591620717411303424"),
    ("", ""),
    ("true", "true"),
    ("null", "null"),
    ("größe", "größe"),
    ("json", "json"),
    ("json:", 'json:"json:"'),
    ("json:1", 'json:"json:1"'),
    ('json:"ä"', 'json:"json:\\"ä\\""'),
]
SCALARS = st.one_of(
    st.text(), st.text().map(lambda text: f"json:{text}"), st.integers(), st.booleans(), st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip


@pytest.mark.parametrize(("scalar", "text"), GOLDEN)
def test_golden_vectors(scalar: Any, text: str) -> None:
    assert canonical_text(scalar) == text
    assert scalar_of(text) == scalar
    assert type(scalar_of(text)) is type(scalar)


# crc32 of the text modulo 8: where a log of eight partitions keeps the key.
@pytest.mark.parametrize(("key", "partition"), [("json:1", 4), ("json:1.0", 5), ("1", 7), ("json:true", 7)])
def test_a_key_is_in_the_partition_of_its_text(key: str, partition: int) -> None:
    with open_logs(f"memory://{new_id()}") as logs:
        logs.create("log", 8)
        with logs.appender("log", str) as out:
            out.append("one", key=scalar_of(key))
            out.append_many(["two"], keys=[scalar_of(key)])
            out.send("three", key=scalar_of(key))
        found = [(record.partition, record.key) for record in logs.log("log", str).records()]
    assert found == [(partition, key)] * 3


@given(SCALARS)
def test_every_scalar_comes_back(scalar: Any) -> None:
    again = scalar_of(canonical_text(scalar))
    assert again == scalar
    assert type(again) is type(scalar)


@given(SCALARS, SCALARS)
def test_different_scalars_have_different_texts(one: Any, other: Any) -> None:
    same = type(one) is type(other) and one == other
    assert (canonical_text(one) == canonical_text(other)) == same


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    """A text that is not canonical, written by somebody else, stands for itself."""
    for given_text in (text, f"json:{text}", f"json: {text}"):
        scalar = scalar_of(given_text)
        assert scalar == given_text or canonical_text(scalar) == given_text


@pytest.mark.parametrize("end", ["", "1 ", "01", "[1]", "{}", "NaN", '"a"', "1.00"])
def test_what_is_not_canonical_stands_for_itself(end: str) -> None:
    assert scalar_of(f"json:{end}") == f"json:{end}"


@pytest.mark.parametrize("key", [float("nan"), float("inf"), [1], {"a": 1}, b"x", object(), 1j])
def test_what_is_no_scalar_is_refused(key: Any) -> None:
    with pytest.raises(BadInput):
        canonical_text(key)


def test_the_text_of_a_number_is_its_json() -> None:
    assert json.loads(canonical_text(12.25).removeprefix("json:")) == 12.25
