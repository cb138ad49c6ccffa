"""An answer that LangGraph kept from a run that was cut off answers nothing else.

LangGraph saves what a task was answered also when the task then fails or is cancelled,
goes on showing the question, and appends the answer once more when it comes again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from keyturn.agent.scripted_model import calling
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from tests.agent.agent_runner import STRICT, Runner, build, by_call, item_of
from tests.agent.fake_gateway import FakeGateway


@tool
async def mail(to: str) -> str:
    """Send mail."""
    return f"mailed {to}"


async def test_a_call_cut_off_by_another_is_asked_about_and_not_stuck(
    memory: InMemorySaver,
) -> None:
    """One call cannot go on, LangGraph cancels the other one in the middle of it."""
    runner, gateway, begun = Runner(is_async=True), FakeGateway(), asyncio.Event()

    @tool
    async def pay(amount: float) -> str:
        """Make a payment."""
        begun.set()
        await asyncio.Event().wait()
        return f"paid {amount}"

    def only_one_claim_is_heard() -> None:
        if gateway.calls["claim"] > 1:
            raise RuntimeError("a bug of the gateway")

    graph = build(
        gateway,
        [pay, mail],
        calling(("pay", {"amount": 1}, "c1"), ("mail", {"to": "ada"}, "c2")),
        saver=memory,
    )
    await runner.say(graph, "pay")
    paying, mailing = (item_of(gateway, each).id for each in ("c1", "c2"))
    gateway.approve(paying)
    gateway.approve(mailing)
    gateway.before["claim"] = only_one_claim_is_heard
    with pytest.raises(RuntimeError):
        await runner.resume(graph, gateway)
    assert begun.is_set()
    gateway.before.clear()
    gateway.lose_owner(paying)

    await runner.resume(graph, gateway)

    (pause,) = (await runner.state(graph)).interrupts
    assert pause.value["type"] == "keyturn.reconcile"
    found = gateway.reconcile(paying, "executed").model_dump(mode="json")
    end = await runner.run(graph, Command(resume={pause.id: found}), STRICT)
    assert "took effect" in by_call(end)["c1"].text


async def test_an_outage_of_one_call_cuts_off_no_other(memory: InMemorySaver) -> None:
    runner, gateway, is_away = Runner(is_async=True), FakeGateway(), asyncio.Event()
    paid: list[float] = []

    @tool
    async def pay(amount: float) -> str:
        """Make a payment."""
        await is_away.wait()
        paid.append(amount)
        return f"paid {amount}"

    def only_one_claim_is_heard() -> None:
        if gateway.calls["claim"] > 1:
            is_away.set()
            raise StoreUnavailable("The store is down.")

    graph = build(
        gateway,
        [pay, mail],
        calling(("pay", {"amount": 1}, "c1"), ("mail", {"to": "ada"}, "c2")),
        saver=memory,
    )
    await runner.say(graph, "pay")
    for each in ("c1", "c2"):
        gateway.approve(item_of(gateway, each).id)
    gateway.before["claim"] = only_one_claim_is_heard
    with pytest.raises(ThreadUnavailable):
        await runner.resume(graph, gateway)
    gateway.before.clear()
    end = await runner.resume(graph, gateway)

    assert paid == [1]
    assert by_call(end)["c1"].text == "paid 1.0"
    assert by_call(end)["c2"].text == "mailed ada"


async def test_a_tools_own_question_is_not_answered_by_an_approval(
    runner: Runner, saver: Any
) -> None:
    gateway = FakeGateway()

    @tool
    def pay(amount: float) -> str:
        """Make a payment to a named person."""
        return f"paid {amount} to {interrupt('To whom?')}"

    graph = build(gateway, [pay], calling(("pay", {"amount": 1}, "c1")), saver=saver)
    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    gateway.down.add("claim")
    with pytest.raises(ThreadUnavailable):
        await runner.resume(graph, gateway)
    gateway.down.clear()

    await runner.resume(graph, gateway)

    (pause,) = (await runner.state(graph)).interrupts
    assert pause.value == "To whom?"
    end = await runner.run(graph, Command(resume={pause.id: "ada"}), STRICT)
    assert by_call(end)["c1"].text == "paid 1.0 to ada"
