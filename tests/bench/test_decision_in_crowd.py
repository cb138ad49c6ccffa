"""Decisions among many waiting threads can be measured."""

from __future__ import annotations

import pytest

from bench import decision_in_crowd


@pytest.mark.timeout(60)
async def test_decisions_among_waiting_threads_are_measured() -> None:
    plan = decision_in_crowd.Plan(waiting=4, rounds=2, decisions=2, per_second=50)

    figure = await decision_in_crowd.measured(plan)

    [taken] = figure.measured
    assert [len(row) for row in taken.rounds] == [2, 2]
    assert taken.at(0.0) > 0
    assert [one.at_most for one in figure.ratios] == [60.0, None]
