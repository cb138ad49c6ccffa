"""A call that the policy allows is claimed, run and finished without a pause."""

from __future__ import annotations

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import Approved, Unsure, messages
from keyturn.agent.messages import ITEM_KEY, RECONCILED_KEY
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState, Tier
from tests.agent.agent_runner import CONFIG, Effects, Runner, build, by_call
from tests.agent.fake_gateway import FakeGateway
from tests.agent.unheld_scenes import broken, wiring

NOTIFIED = {"pay": Tier.NOTIFY, "ask": Tier.NOTIFY, "look_up": Tier.AUTO}
PAY = calling(("pay", {"amount": 10, "to": "ada"}, "c1"))


async def test_it_runs_under_a_claim_without_a_pause(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(NOTIFIED)
    graph = build(gateway, effects.tools(), PAY, saver=memory)

    state = await runner.say(graph, "pay")

    item = gateway.only()
    answer = by_call(state)["c1"]
    assert answer.text == "paid 10.0 to ada"
    assert answer.additional_kwargs[ITEM_KEY] == item.id
    assert (item.state, item.fence) == (ItemState.EXECUTED, 1)
    assert item.result is not None
    assert "paid 10.0 to ada" in item.result.summary
    assert [gateway.calls[name] for name in ("claim", "begin", "ended")] == [1, 0, 0]


async def test_a_cut_off_call_is_told_of_and_the_agent_goes_on(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(NOTIFIED)

    def lose() -> None:
        item = gateway.only()
        if item.state is ItemState.AUTHORIZED:
            gateway.claim_and_die(item)

    gateway.before["claim"] = lose
    graph = build(gateway, effects.tools(), PAY, saver=memory)

    state = await runner.say(graph, "pay")

    answer = by_call(state)["c1"]
    assert answer.text == messages.CUT_OFF
    assert answer.additional_kwargs[RECONCILED_KEY]
    assert effects.paid == []
    assert gateway.only().state is ItemState.IN_DOUBT


async def test_what_ran_before_is_given_back(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(NOTIFIED)
    graph = build(gateway, effects.tools(), PAY, saver=memory)
    await runner.say(graph, "pay")
    history = [one async for one in graph.aget_state_history(CONFIG)]
    before = next(one for one in history if one.next == ("tools",))

    state = await runner.run(graph, None, before.config)

    assert by_call(state)["c1"].text == "paid 10.0 to ada"
    assert len(effects.paid) == 1


async def test_a_turn_that_moved_on_gets_its_result_back(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(NOTIFIED)
    graph = build(gateway, effects.tools(), PAY, saver=memory)
    await runner.say(graph, "pay")
    messages = (await graph.aget_state(CONFIG)).values["messages"]
    made = next(one for one in messages if isinstance(one, ToolMessage))
    guess = made.model_copy(update={"content": "?", "additional_kwargs": {}})
    await graph.aupdate_state(CONFIG, {"messages": [guess]})

    state = await runner.run(graph, {"messages": [HumanMessage("go on")]}, CONFIG)

    assert by_call(state)["c1"].text == "paid 10.0 to ada"


@pytest.mark.parametrize("is_broken", [False, True])
async def test_a_step_of_a_plain_node_runs_under_a_claim_too(
    runner: Runner, memory: InMemorySaver, *, is_broken: bool
) -> None:
    gateway = FakeGateway({"wire": Tier.NOTIFY})

    def wire(amount: int) -> str:
        if is_broken:
            broken()
        return f"wired {amount}"

    graph = wiring(gateway, wire, memory, a=runner.is_async)

    state = await runner.run(graph, {"amount": 1})

    expected = Unsure if is_broken else Approved
    assert isinstance(state["outcome"], expected)
    ended = ItemState.FAILED if is_broken else ItemState.EXECUTED
    assert gateway.only().state is ended


async def test_a_step_that_was_cut_off_is_unsure(
    runner: Runner, memory: InMemorySaver
) -> None:
    gateway = FakeGateway({"wire": Tier.NOTIFY})
    ran: list[int] = []

    gateway.before["claim"] = lambda: gateway.claim_and_die(gateway.only())

    def wire(amount: int) -> None:
        ran.append(amount)

    graph = wiring(gateway, wire, memory, a=runner.is_async)

    state = await runner.run(graph, {"amount": 1})

    assert state["outcome"] == Unsure(messages.CUT_OFF)
    assert ran == []
