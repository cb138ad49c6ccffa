"""People are asked no longer about a turn whose submission got no answer."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import bridge, turns
from keyturn.agent.calls import UnansweredTurns
from keyturn.agent.scripted_model import calling
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Turn, TurnRef, Verdict
from tests.agent.agent_runner import FREE, Effects, Runner, build, by_call, pay
from tests.agent.fake_gateway import FakeGateway
from tests.conftest import eventually


@pytest.fixture(autouse=True)
def short_pauses_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "FIRST_LATE_PAUSE_S", 0.001)
    monkeypatch.setattr(bridge, "LONGEST_LATE_PAUSE_S", 0.002)


class Losing(FakeGateway):
    """A gateway that keeps a turn, while its answers do not come back."""

    is_losing = True

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        verdicts = await super().submit(turn)
        if self.is_losing:
            raise StoreUnavailable("The answer was lost.")
        return verdicts


async def test_the_card_ends_as_soon_as_the_gateway_answers(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = Losing(FREE)
    gateway.down.add("supersede")
    graph = build(gateway, effects.tools(), pay(), saver=memory)

    end = await runner.say(graph, "pay")

    assert by_call(end)["c1"].text == turns.UNREACHABLE
    assert gateway.only().is_pending

    async def is_asked_again() -> bool:
        return gateway.calls["supersede"] > 1

    await eventually(is_asked_again)
    gateway.down.discard("supersede")

    async def is_over() -> bool:
        return gateway.only().state is ItemState.SUPERSEDED

    await eventually(is_over)
    assert effects.paid == []


async def test_what_waits_when_a_history_is_repaired_without_an_answer_ends_later(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    await runner.say(graph, "pay")
    gateway.down.add("supersede")

    await runner.say(graph, "hurry")

    assert gateway.only().is_pending
    gateway.down.discard("supersede")

    async def is_over() -> bool:
        return gateway.only().state is ItemState.SUPERSEDED

    await eventually(is_over)


async def test_a_turn_that_the_gateway_had_before_goes_on_waiting(
    runner: Runner,
    memory: InMemorySaver,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[TurnRef] = []

    def end(_: UnansweredTurns, ref: TurnRef, *_more: object) -> None:
        ended.append(ref)

    monkeypatch.setattr(UnansweredTurns, "end", end)
    gateway = FakeGateway(FREE)
    turn = calling(
        ("pay", {"amount": 10, "to": "ada"}, "c1"), ("look_up", {"query": "x"}, "c2")
    )

    def process() -> Any:
        graph = build(gateway, effects.tools(), turn, saver=memory)
        graph.interrupt_before_nodes = ["tools"]
        return graph

    await runner.say(process(), "pay")
    gateway.down.add("submit")
    # Another process submits the auto-approved call again.
    graph = process()
    await runner.run(graph, None)

    assert gateway.calls["submit"] > 1
    assert ended == []
    gateway.approve("ap0.0")
    await runner.resume(graph, gateway)
    assert (effects.paid, effects.looked) == ([(10, "ada")], [])
