"""The cost of an auto-approved call is compared with the cost without Keyturn."""

from __future__ import annotations

import pytest

from bench import auto_call


@pytest.mark.timeout(60)
async def test_a_call_that_needs_nobody_is_measured_beside_langchain() -> None:
    plan = auto_call.Plan(rounds=2, runs=1, calls=2)

    figure = await auto_call.measured(plan)

    assert [one.name for one in figure.measured] == ["LangChain", "Keyturn"]
    assert all([len(row) for row in one.rounds] == [1, 1] for one in figure.measured)
    assert all(one.at(0.0) > 0 for one in figure.measured)
    [gated] = figure.ratios
    assert gated.at_most == 1.15
    assert gated.low > 0
