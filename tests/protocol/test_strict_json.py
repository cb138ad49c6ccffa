"""The one door for JSON: one text, one meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol.strict_json import (
    MAX_INTEGER,
    accept,
    accept_object,
    accept_texts,
    parse,
    parse_object,
)
from keyturn.gateway.protocol.work import LARGE_BYTES, is_large

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(-1e15, 1e15, allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"a": 1, "a": 2}', "a key appears twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": Infinity}', "Infinity is not JSON"),
        (b'{"a": 1e400}', "not finite"),
        (b'{"a": 9223372036854775808}', "more than 64 bits"),
        (b'{"a": 1E16}', "beyond 2^53-1"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"\\udc00": 1}', "half of a surrogate pair"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": 1} x', "Extra data"),
        (b"", "Expecting value"),
        (b"[" * 100 + b"]" * 100, "nested more than 64"),
        (b"[" * 200_000, "nested more than 64"),
        (b"1" * 5_000, "a number of too many digits"),
    ],
)
def test_ambiguous_json_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(BadJson, match=problem.replace("^", r"\^")):
        parse(text)


@pytest.mark.parametrize(
    "value", [(1, 2), {1: "a"}, b"x", {1, 2}, object(), 1j, {"a": (1,)}]
)
def test_python_values_without_json_are_refused(value: object) -> None:
    with pytest.raises(BadJson):
        accept(value)


def test_the_error_names_the_place_and_not_the_value() -> None:
    with pytest.raises(BadJson) as caught:
        accept({"card": {"a/b": [1, float("nan")]}})

    assert caught.value.pointer == "/card/a~1b/1"
    assert "nan" not in str(caught.value)


@pytest.mark.parametrize("value", [[], "x", 1, None, True])
def test_arguments_have_to_be_an_object(value: object) -> None:
    with pytest.raises(BadJson, match="an object is needed"):
        accept_object(value)
    with pytest.raises(BadJson, match="an object is needed"):
        parse_object(json.dumps(value))


@given(JSON)
def test_what_is_accepted_comes_back_equal_and_shares_nothing(value: object) -> None:
    accepted = accept(value)

    assert json.dumps(accepted) == json.dumps(value)
    if isinstance(value, list | dict):
        assert accepted is not value


def test_names_have_to_be_texts() -> None:
    accept_texts("pay", "")

    with pytest.raises(BadJson, match="a text is needed, not a value of type int"):
        accept_texts("pay", 7)
    with pytest.raises(BadJson):
        accept_texts("\ud83d")


# Data is large by its parts and texts, and no more of it is looked at than that.


@pytest.mark.parametrize(
    ("data", "is_so"),
    [
        ([], False),
        ([{"amount": 5, "lines": [{"a": 1.5}] * 20}], False),
        (["x" * LARGE_BYTES, "x"], True),
        ([b"x" * (LARGE_BYTES + 1)], True),
        ([[None] * (LARGE_BYTES + 1)], True),
        ([{f"k{n}": n for n in range(LARGE_BYTES)}], True),
        ([[[[1]] * 200] * 20], True),
        ([{"a": {"b": "x" * (LARGE_BYTES + 1)}}], True),
    ],
)
def test_what_is_large(data: list[Any], *, is_so: bool) -> None:
    assert is_large(data) is is_so
