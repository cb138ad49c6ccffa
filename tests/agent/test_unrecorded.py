"""What a tool returned while the gateway was away is reported when it is back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import bridge
from keyturn.gateway.protocol.records import ItemState
from tests.agent.agent_runner import FREE, Effects, Runner, build, pay
from tests.agent.fake_gateway import FakeGateway
from tests.conftest import eventually
from tests.patience import WAIT_S

CALL = "ap0.0"


@pytest.fixture(autouse=True)
def short_pauses_between_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "FIRST_LATE_PAUSE_S", 0.01)
    monkeypatch.setattr(bridge, "LONGEST_LATE_PAUSE_S", 0.02)


async def ran_while_away(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> FakeGateway:
    """Run a payment whose end the gateway does not take."""
    gateway = FakeGateway(FREE)
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    await runner.say(graph, "pay")
    gateway.approve(CALL)
    gateway.down.add("finish")
    await runner.resume(graph, gateway)
    assert effects.paid == [(10, "ada")]
    return gateway


async def test_its_process_reports_it_until_the_gateway_has_it(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = await ran_while_away(runner, memory, effects)
    asked = gateway.calls["finish"]

    async def is_asked_again() -> bool:
        return gateway.calls["finish"] > asked + 1

    await eventually(is_asked_again)
    assert gateway.only().state is ItemState.EXECUTING
    gateway.down.discard("finish")

    async def is_recorded() -> bool:
        return gateway.only().state is ItemState.EXECUTED

    await eventually(is_recorded)
    assert effects.paid == [(10, "ada")]


async def test_its_run_is_cancelled_before_the_gateway_has_it_and_it_is_reported(
    memory: InMemorySaver, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, gateway = Runner(is_async=True), FakeGateway(FREE)
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    await runner.say(graph, "pay")
    gateway.approve(CALL)
    asked, finish = asyncio.Event(), gateway.finish

    async def away(*_: object) -> bool:
        asked.set()
        return await asyncio.Future()

    monkeypatch.setattr(gateway, "finish", away)
    running = asyncio.create_task(runner.resume(graph, gateway))
    # As when the lease on its thread ends.
    await asyncio.wait(
        [running, asyncio.create_task(asked.wait())],
        timeout=WAIT_S,
        return_when=asyncio.FIRST_COMPLETED,
    )
    monkeypatch.setattr(gateway, "finish", finish)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    async def is_recorded() -> bool:
        return gateway.only().state is ItemState.EXECUTED

    await eventually(is_recorded)
    assert effects.paid == [(10, "ada")]


async def test_it_changes_nothing_that_people_said_meanwhile(
    runner: Runner, memory: InMemorySaver, effects: Effects, caplog: Any
) -> None:
    gateway = await ran_while_away(runner, memory, effects)
    gateway.lose_owner(CALL)
    gateway.reconcile(CALL, "skip")
    state = gateway.only().state

    gateway.down.discard("finish")

    async def is_answered() -> bool:
        return f"execution.finished_late item={CALL}" in caplog.messages

    await eventually(is_answered)
    assert gateway.only().state is state
