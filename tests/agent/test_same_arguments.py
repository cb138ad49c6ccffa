"""Arguments are the same exactly where their canonical bytes are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import same

# Few values, so that two of them are often equal; some only look equal.
LEAVES = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 0.5, 2**53, float("nan")),
        *("", "a", "b", "1", "é", "\ud800"),
    ]
)
KEYS = st.sampled_from(["a", "b", "é", "\ud800"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=5,
)


def by_bytes(one: Any, other: Any) -> bool:
    """Return whether two values have the same bytes, if they have any."""
    try:
        return digest.canonical(one) == digest.canonical(other)
    except BadJson:
        return False


@given(VALUES, VALUES)
def test_values_are_the_same_where_their_bytes_are(one: Any, other: Any) -> None:
    assert same(one, other) == by_bytes(one, other)
    assert same(one, one) == by_bytes(one, one)


@pytest.mark.parametrize("value", ["\ud800", {"\ud800": 1}, float("nan"), 2**63])
def test_what_has_no_bytes_is_not_even_the_same_as_itself(value: Any) -> None:
    assert not same(value, value)
    assert not same([value], [value])
