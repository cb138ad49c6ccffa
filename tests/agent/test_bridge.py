"""One core serves both kinds of agent, and reports an unreachable gateway as such."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from keyturn.agent import interrupts
from keyturn.gateway.client import bridge
from keyturn.gateway.client.bridge import (
    Awaiting,
    Blocking,
    ask_until_answered,
    ask_with_retries,
    drive,
)
from keyturn.gateway.errors import KeyRefused, NotAllowed, StoreUnavailable
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


class Skipping(selectors.DefaultSelector):
    """Skips each wait of an event loop, and adds it to the time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Return the events that are ready now."""
        self.now_s += timeout or 0.0
        return super().select(0)


@pytest.mark.parametrize(
    ("away_s", "error", "answer"),
    [
        (3590, StoreUnavailable, "recorded"),
        (3590, KeyRefused, "recorded"),
        (3610, StoreUnavailable, None),
        (10, NotAllowed, None),
    ],
)
def test_a_background_task_asks_for_an_hour_unless_refused(
    monkeypatch: pytest.MonkeyPatch,
    away_s: float,
    error: type[Exception],
    answer: str | None,
) -> None:
    clock = Skipping()
    monkeypatch.setattr(bridge, "now_s", lambda: clock.now_s)
    asked_s = list[float]()

    async def ask() -> str:
        asked_s.append(clock.now_s)
        if clock.now_s < away_s:
            raise error("not now")
        return "recorded"

    loop = asyncio.SelectorEventLoop(clock)
    monkeypatch.setattr(loop, "time", lambda: clock.now_s)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(ask_until_answered(ask)) == answer

    pauses = [later - one for one, later in pairwise(asked_s)]
    assert pauses == sorted(pauses)
    assert all(pause <= bridge.LONGEST_LATE_PAUSE_S + 0.001 for pause in pauses)
    assert len(asked_s) == 1 if error is NotAllowed else len(asked_s) > 700


async def test_an_unchecked_answer_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
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
