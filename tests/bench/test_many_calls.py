"""The calls of one turn can be measured, and fail if nothing was measured."""

from __future__ import annotations

import pytest

from bench import many_calls


@pytest.mark.timeout(60)
async def test_calls_are_measured_one_by_one_and_at_once_beside_langchain() -> None:
    figure = await many_calls.measured(many_calls.Plan(rounds=1, calls=3))

    assert [one.name for one in figure.measured] == [
        "one by one",
        "as one batch",
        "LangChain, one by one",
        "LangChain, at once",
    ]
    assert all(one.at(0.0) > 0 for one in figure.measured)
    assert [one.at_most for one in figure.ratios] == [6.0, 0.6, None, None]
