"""Cards wait while Slack is answered, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.bot.bot_stack import CHANNEL, Stack
from twokey.bot import app
from twokey.bot.clicks_first import AT_MOST_S, QUIET_S, ClicksFirst
from twokey.bot.ids import Action
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store.atomic_write import Loaded

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

    plain = stack.reviews.as_shown.find

    def find(approval_id: str) -> Loaded | None:
        waits.extend(one.wait_s() > 0 for one in made)
        return plain(approval_id)

    monkeypatch.setattr(app, "ClicksFirst", make)
    async with stack.running():
        verdict = await stack.refund()
        card = await stack.card(verdict)
        await stack.bot_is_quiet()
        monkeypatch.setattr(stack.reviews.as_shown, "find", find)

        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED
        await stack.drawn(verdict)
    assert waits
    assert all(waits)
