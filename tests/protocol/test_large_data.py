"""Data is large by its parts and texts, and no more of it is looked at than that."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.gateway.protocol.work import LARGE_BYTES, is_large


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
