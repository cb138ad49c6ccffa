"""One core serves both kinds of agent, and reports an unreachable gateway as such."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from keyturn.agent import bridge, interrupts
from keyturn.agent.bridge import (
    Awaiting,
    Blocking,
    ask_while_held,
    ask_with_retries,
    drive,
)
from keyturn.gateway.errors import KeyturnError, StoreUnavailable
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.wire import Turn
from tests.agent.agent_runner import pay
from tests.agent.fake_gateway import FakeGateway


async def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "fault",
    [
        lambda: _fail(OSError("no route")),
        lambda: _fail(TimeoutError()),
        lambda: asyncio.sleep(60),
    ],
)
async def test_a_gateway_that_is_lost_or_hangs_counts_as_unreachable(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    monkeypatch.setattr(bridge, "PORT_TIMEOUT_S", 0.01)

    with pytest.raises(StoreUnavailable):
        await Awaiting().ask(fault)
    with pytest.raises(StoreUnavailable):
        await asyncio.to_thread(drive, Blocking().ask(fault))


async def test_a_question_is_put_again_until_it_is_answered_but_not_for_ever() -> None:
    tries: list[int] = []

    async def answer() -> str:
        tries.append(1)
        if len(tries) < bridge.PORT_TRIES:
            raise StoreUnavailable("down")
        return "yes"

    assert await ask_with_retries(Awaiting(), answer) == "yes"
    tries.clear()
    with pytest.raises(StoreUnavailable):
        await ask_with_retries(Awaiting(), lambda: _fail(StoreUnavailable("down")))


class Waits(Awaiting):
    """A shell whose pauses take no time but by its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(bridge, "now_s", lambda: self.now_s)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("left_s", "while_held", "lasts_s"),
    [(15.0, True, 13.0), (15.0, False, 0.0), (0.0, True, 0.0), (1.0, True, 0.0)],
)
async def test_a_question_is_put_again_as_long_as_the_lease_of_the_thread_lives(
    monkeypatch: pytest.MonkeyPatch, *, left_s: float, while_held: bool, lasts_s: float
) -> None:
    tries, shell = list[float](), Waits(monkeypatch)
    monkeypatch.setattr(bridge, "FIRST_PAUSE_S", 0.01)

    async def away() -> None:
        tries.append(shell.now_s)
        raise StoreUnavailable("down")

    with run_context.lasting(lambda: left_s), pytest.raises(StoreUnavailable):
        await (ask_while_held if while_held else ask_with_retries)(shell, away)

    if not lasts_s:
        assert len(tries) == bridge.PORT_TRIES
    passed_s = tries[-1] - tries[0]
    assert lasts_s - bridge.LONGEST_PAUSE_S <= passed_s <= max(lasts_s, 1.0)


async def test_what_is_no_outage_is_not_put_again_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries, shell = list[int](), Waits(monkeypatch)

    async def odd() -> None:
        tries.append(1)
        raise KeyturnError("odd")

    with run_context.lasting(lambda: 15.0), pytest.raises(KeyturnError, match="odd"):
        await ask_while_held(shell, odd)

    assert len(tries) == bridge.PORT_TRIES


async def test_an_answer_that_came_through_unchecked_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = FakeGateway()
    asked: list[list[str]] = []
    replies = [{"type": "approve"}, "yes", None]

    def interrupt(question: dict[str, list[str]], **_: object) -> object:
        asked.append(question["errors"])
        reply = replies.pop(0)
        return reply or gateway.answer("ap0.0").model_dump(mode="json")

    monkeypatch.setattr(interrupts, "interrupt", interrupt)
    monkeypatch.setattr(interrupts, "get_config", dict)
    from_message = pay().tool_calls[0]
    turn = _turn(from_message["args"])
    (verdict,) = await gateway.submit(turn)
    gateway.approve("ap0.0")

    answer = interrupts.request_decision(verdict, turn.calls[0].args)

    assert answer.type == "approve"
    assert asked[0] == []
    assert len(asked) == 3
    assert all(asked[1:])


def _turn(args: dict[str, object]) -> Turn:
    return Turn.model_validate(
        {
            "ref": {"agent": "a", "thread": "t", "message_id": "m"},
            "calls": [{"tool": "pay", "args": args, "tool_call_id": "c1"}],
        }
    )
