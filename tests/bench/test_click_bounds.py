"""What processors allow at most follows from what a click costs each process."""

from __future__ import annotations

import os

import pytest

from bench import load
from bench.click_bounds import BOT, SLACK, STORE, ClickCost, at_best, bounds, cost_of
from bench.processors import with_descendants, worked_s


def test_each_bot_and_the_store_are_one_processors_work_at_most() -> None:
    cost = ClickCost(load=0.1, slack=0.0, store=0.3, bot=0.6)

    # One bot is busy all the time; two of them leave the machine busy.
    assert at_best(cost, bots=1, processors=2) == pytest.approx(1000 / 0.6)
    assert at_best(cost, bots=2, processors=2) == pytest.approx(2000 / 1.0)
    assert at_best(cost, bots=9, processors=9) == pytest.approx(1000 / 0.3)


def test_what_bots_reach_that_cost_nothing_is_said_beside_the_figure() -> None:
    ours = ClickCost(load=0.1, slack=0.1, store=0.3, bot=0.9)
    bolt = ClickCost(load=0.1, slack=0.0, store=0.0, bot=0.5)
    bare = ClickCost(load=0.1, slack=0.0, store=0.1, bot=0.2)

    said = bounds(ours, bare, bolt, bots=2, processors=2)

    # Against 2,000 a second: 1000 / 0.3, 2000 / 0.7 and 2000 / 1.4.
    assert "cost nothing would reach 1.67," in said
    assert "(0.20 ms) 1.43," in said
    assert said.endswith("Twokey's 0.71")


def test_what_a_click_costs_is_the_median_of_its_rounds() -> None:
    rounds = [{load.LOAD: 0.1, SLACK: 0.0, STORE: n, BOT: 1.0} for n in (3.0, 1.0, 2.0)]

    assert cost_of(rounds) == ClickCost(0.1, 0.0, 2.0, 1.0)


def test_the_time_of_a_process_rises_with_its_work() -> None:
    before = worked_s([os.getpid()])
    sum(range(1_000_000))

    assert worked_s([os.getpid()]) > before
    assert with_descendants(os.getpid())[0] == os.getpid()
