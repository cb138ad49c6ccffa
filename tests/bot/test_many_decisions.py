"""200 decisions in a minute stay inside Slack's limits, direct messages included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from keyturn.bot.limits import POST, UPDATE
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.clock import Clock
from keyturn.sandbox.json_types import JsonObject
from tests.approvals.builders import click_on
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.bot.test_notified import ana
from tests.conftest import eventually

DECISIONS = 200
DIRECT = POLICY.replace(
    "support: {usergroups: [S0SUPPORT], users: [U0DAN]}",
    "support: {users: [U0ANA, U0BEN], notify: dm}",
)
MANY = DIRECT + "protect: {pending_per_agent: 2000, requests_per_10m: 2000}\n"
MINUTE = 60.0
CARDS_WITHIN_S = 5 * MINUTE
"""Until each card in a channel shows what was decided."""
ALL_WITHIN_S = 15 * MINUTE
"""Until each direct message does: 600 messages at 44 a minute take 13.6 minutes."""


class Time:
    """A clock of Slack and the bot that stops while either of them works."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_working = False
        began = stack.sandbox.clock.now()

        # Not the machine's clock: on a slow one the figures would be about that.
        def now(clock: Clock) -> float:
            return began + float(cast("Any", clock)._added)

        monkeypatch.setattr(Clock, "now", now)

    async def pass_for(self, stack: Stack) -> None:
        """Let it run until cancelled."""
        while True:
            await asyncio.sleep(0.002)
            publisher = cast("Any", stack.bot)._publisher
            term = publisher._term
            if term is not None and not (self.is_working or term.scheduler.running):
                stack.sandbox.control.advance(0.2)
                term.scheduler.changed.set()


async def until(holds: Callable[[], bool]) -> None:
    async def is_so() -> bool:
        return holds()

    await eventually(is_so, within_s=1200)


def made(stack: Stack, method: str, since: float = 0.0) -> list[JsonObject]:
    """Return the arguments of calls that had an effect, with when that was."""
    return [
        {**call.arguments, "at": call.at}
        for call in stack.sandbox.calls
        if call.method == method and call.error is None and call.at >= since
    ]


def drawn(stack: Stack, since: float = 0.0) -> dict[tuple[str, str], float]:
    """Return by channel and ts when a message was drawn last."""
    calls = made(stack, UPDATE, since)
    return {(one["channel"], one["ts"]): one["at"] for one in calls}


async def decide(stack: Stack, passing: Time, verdicts: list[Verdict]) -> float:
    """Decide all of them within a minute; return when it began."""
    clock = stack.sandbox.clock
    began = clock.now()
    for number, verdict in enumerate(verdicts):
        passing.is_working = True
        click = click_on(await stack.approval(verdict))
        assert (await stack.reviews.decide(click, Approve(), ana())).kind == "decided"
        await stack.execute(verdict)
        passing.is_working = False
        due = began + MINUTE * (number + 1) / DECISIONS
        await clock.sleep(max(0.0, due - clock.now()))
    return began


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_200_decisions_in_a_minute_show_on_cards_first_and_break_no_limit(
    stack: Stack,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    assert DIRECT != POLICY
    stack.policy = load_policy(MANY, "policy.yml")
    passing = Time(stack, monkeypatch)
    async with stack.running():
        clock = asyncio.create_task(passing.pass_for(stack))
        verdicts = [await stack.refund(thread=f"t{n}") for n in range(DECISIONS)]
        await until(lambda: len(made(stack, POST)) == 3 * DECISIONS)
        await until(lambda: len(drawn(stack)) == DECISIONS)

        began = await decide(stack, passing, verdicts)
        decided = stack.sandbox.clock.now()
        await until(lambda: len(drawn(stack, began)) == 3 * DECISIONS)
        clock.cancel()

    last = drawn(stack, began)
    found = {
        "decided_s": decided - began,
        "cards_s": max(at for place, at in last.items() if place[0] == CHANNEL) - began,
        "all_s": max(last.values()) - began,
        "updates": len(made(stack, UPDATE, began)),
        "refused": sum(call.error == "ratelimited" for call in stack.sandbox.calls),
    }
    for name, value in found.items():
        record_property(name, value)
    print(found)  # noqa: T201 - the figures, with `pytest -s`
    assert found["refused"] == 0
    assert found["cards_s"] <= CARDS_WITHIN_S
    assert found["all_s"] <= ALL_WITHIN_S
