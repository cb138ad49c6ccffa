"""Cards wait while Slack is answered, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bot.bot_stack import CHANNEL, Stack
from twokey.bot import app
from twokey.bot.app import SlackBot
from twokey.bot.clicks_first import (
    AT_MOST_S,
    ELSEWHERE_S,
    QUIET_S,
    ClicksFirst,
)
from twokey.bot.ids import Action
from twokey.bot.worker import Part, Worker
from twokey.gateway.approvals.decisions import Outcome
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.service.reviews import ReviewService

A_MOMENT_S = QUIET_S / 10


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def first(clock: Clock) -> ClicksFirst:
    return ClicksFirst(clock)


def test_nothing_waits_where_nobody_is_answered(first: ClicksFirst) -> None:
    assert first.wait_s() == 0


def test_cards_wait_until_a_click_is_answered_and_a_moment_longer(
    first: ClicksFirst, clock: Clock
) -> None:
    with first.answering():
        assert first.wait_s() > 0
    assert first.wait_s() == pytest.approx(QUIET_S)

    clock.now += 2 * QUIET_S

    assert first.wait_s() == 0


def test_cards_wait_for_all_of_several_clicks(first: ClicksFirst, clock: Clock) -> None:
    with first.answering():
        with first.answering():
            pass
        clock.now += 2 * QUIET_S

        assert first.wait_s() > 0


def test_a_click_that_fails_holds_nothing_up(first: ClicksFirst, clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError), first.answering():
        raise ZeroDivisionError

    clock.now += 2 * QUIET_S

    assert first.wait_s() == 0


def test_clicks_without_a_pause_hold_up_cards_for_a_bounded_time(
    first: ClicksFirst, clock: Clock
) -> None:
    with first.answering():
        assert first.wait_s() > 0
        clock.now += AT_MOST_S
        assert first.wait_s() == 0
        # And not for as long again before each card.
        clock.now += A_MOMENT_S
        assert first.wait_s() == 0


def test_after_a_quiet_moment_clicks_go_first_again(
    first: ClicksFirst, clock: Clock
) -> None:
    with first.answering():
        first.wait_s()
        clock.now += AT_MOST_S
        first.wait_s()
    clock.now += 2 * QUIET_S
    assert first.wait_s() == 0

    with first.answering():
        assert first.wait_s() > 0


async def test_who_waits_goes_on_after_the_last_answer() -> None:
    first = ClicksFirst(asyncio.get_running_loop().time)

    with first.answering():
        waits = asyncio.create_task(first.quiet())
        await asyncio.wait([waits], timeout=2 * QUIET_S)
        assert not waits.done()

    await waits


async def test_a_click_on_its_way_through_the_bot_goes_first(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, waits = list[ClicksFirst](), list[bool]()

    def make(clock: Callable[[], float]) -> ClicksFirst:
        made.append(ClicksFirst(clock))
        return made[-1]

    plain = stack.reviews.as_shown.decide

    async def decide(*given: Any, **named: Any) -> Outcome | None:
        waits.extend(one.wait_s() > 0 for one in made)
        return await plain(*given, **named)

    monkeypatch.setattr(app, "ClicksFirst", make)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.bot_is_quiet()
        monkeypatch.setattr(stack.reviews.as_shown, "decide", decide)

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED
        await stack.drawn(verdict)
    assert waits
    assert all(waits)


def test_cards_wait_for_the_clicks_of_other_processes_too(
    first: ClicksFirst, clock: Clock
) -> None:
    first.answered_elsewhere()
    assert first.wait_s() == pytest.approx(ELSEWHERE_S)

    clock.now += 2 * ELSEWHERE_S

    assert first.wait_s() == 0


def test_clicks_elsewhere_hold_up_cards_for_a_bounded_time(
    first: ClicksFirst, clock: Clock
) -> None:
    first.answered_elsewhere()
    assert first.wait_s() > 0
    clock.now += AT_MOST_S

    first.answered_elsewhere()

    assert first.wait_s() == 0


@pytest.mark.parametrize("clicks", [0, 3])
async def test_what_others_did_is_read_once_nobody_clicks_there(
    monkeypatch: pytest.MonkeyPatch, clicks: int
) -> None:
    clock, looks = Clock(), list[bool]()
    first = ClicksFirst(clock)

    async def asleep(seconds: float) -> None:
        clock.now += seconds

    async def look() -> bool:
        looks.append(len(looks) < clicks)
        return looks[-1]

    monkeypatch.setattr(asyncio, "sleep", asleep)
    first.answered_elsewhere()
    began_s = clock.now

    await first.gather(look)

    assert looks == [True] * clicks + [False]
    assert clock.now - began_s == pytest.approx((clicks + 1) * ELSEWHERE_S)


async def test_what_others_did_is_read_after_a_while_although_they_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    first = ClicksFirst(clock)

    async def asleep(seconds: float) -> None:
        clock.now += seconds

    async def look() -> bool:
        return True

    monkeypatch.setattr(asyncio, "sleep", asleep)
    first.answered_elsewhere()
    began_s = clock.now

    await first.gather(look)

    assert clock.now - began_s == pytest.approx(AT_MOST_S)


async def test_nobody_looks_for_clicks_while_there_are_none() -> None:
    async def look() -> bool:
        pytest.fail("looked")

    await ClicksFirst(Clock()).gather(look)


async def test_a_publisher_lets_clicks_at_other_processes_go_first(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = list[str]()

    class Noting(ClicksFirst):
        def answered_elsewhere(self) -> None:
            super().answered_elsewhere()
            noted.append("waits" if self.wait_s() else "goes on")

    monkeypatch.setattr(app, "ClicksFirst", Noting)
    health = str(tmp_path / "health")
    answering = ReviewService(stack.store, lambda: stack.policy)
    async with (
        SlackBot(
            stack.config, stack.reviews, worker=Worker(Part.PUBLISHES, None, health)
        ),
        SlackBot(
            stack.config, answering, worker=Worker(Part.ANSWERS, None, health)
        ) as bot,
    ):
        stack.sandbox.deliver_http(bot.url)
        verdict = await stack.refund()
        card = await stack.card(verdict)
        assert noted == []

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await stack.drawn(verdict)
        assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED
    assert noted == ["waits"]
