"""The cost of a call that needs nobody is measured beside what it would be without."""

from __future__ import annotations

import pytest

from bench import auto_call


@pytest.mark.timeout(60)
async def test_a_call_that_needs_nobody_is_measured_beside_both_others() -> None:
    plan = auto_call.Plan(rounds=2, runs=1, calls=2)

    figure = await auto_call.measured(plan)

    names = [one.name for one in figure.measured]
    assert names == [
        "bare",
        "LangChain",
        "Twokey",
        "Twokey, weighed",
        "one write",
    ]
    assert all([len(row) for row in one.rounds] == [1, 1] for one in figure.measured)
    assert all(one.at(0.0) > 0 for one in figure.measured)
    assert [one.name for one in figure.ratios][:2] == [
        "Twokey / bare, p50",
        "auto call: Twokey / LangChain, p50",
    ]
    assert all(one.low > 0 for one in figure.ratios)
    assert figure.ratios[1].limit.startswith(
        "the same hooks with nothing but one durable write: "
    )
