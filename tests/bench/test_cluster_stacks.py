"""Two bots and two gateways on a cluster run every call once, like one of each."""

from __future__ import annotations

import pytest

from bench import cluster_stacks


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_both_run_every_call_once() -> None:
    figure = await cluster_stacks.measured(cluster_stacks.Plan(rounds=1, threads=4))

    one, two, busy, _ = figure.measured
    assert one.at(0.5) > 0
    assert two.at(0.5) > 0
    assert busy.at(0.5) > 0
    (share,) = figure.ratios
    assert share.value == pytest.approx(two.at(0.5) / one.at(0.5))
    assert share.at_least == 1.4
