"""A claim that went back to people is asked about again, in every kind of run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from keyturn.agent import calls
from keyturn.agent.scripted_model import calling
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.wire import VerdictKind
from tests.agent.agent_runner import (
    CONFIG,
    STRICT,
    Effects,
    Runner,
    build,
    by_call,
    item_of,
    pay,
    results,
)
from tests.agent.fake_gateway import FakeGateway


async def went_back(
    runner: Runner, memory: InMemorySaver, times: int = 1
) -> tuple[Any, FakeGateway, Effects, str]:
    """Ask for a payment that is approved and taken back, so often."""
    gateway, effects = FakeGateway(), Effects()
    graph = build(gateway, effects.tools(), pay(), saver=memory)
    await runner.say(graph, "pay ada")
    item_id = gateway.only().id
    for _ in range(times):
        gateway.approve(item_id)
        answers = await runner.answers(graph, gateway)
        gateway.take_back(item_id)
        await runner.run(graph, Command(resume=answers), STRICT)
    return graph, gateway, effects, item_id


@pytest.mark.parametrize("times", [1, 3])
async def test_it_is_asked_again_and_runs_once(runner: Runner, times: int) -> None:
    graph, gateway, effects, item_id = await went_back(runner, runner.memory, times)
    snapshot = await runner.state(graph)
    [asked] = snapshot.interrupts
    assert asked.value["item_id"] == item_id
    assert effects.paid == []

    gateway.approve(item_id)
    state = await runner.resume(graph, gateway)

    assert effects.paid == [(10, "ada")]
    assert results(state)[0].text == "paid 10.0 to ada"


def rejected(gateway: FakeGateway) -> None:
    gateway.reject("ap0.0", "too much")


def edited(gateway: FakeGateway) -> None:
    gateway.edit("ap0.0", {"amount": 5, "to": "ada"}, "half")


def expired(gateway: FakeGateway) -> None:
    gateway.end("ap0.0", Transition.EXPIRE)


@pytest.mark.parametrize(
    ("end", "paid", "told"),
    [
        (rejected, [], "too much"),
        (edited, [(5, "ada")], "half"),
        (expired, [], "Nobody decided in time"),
    ],
)
async def test_the_second_decision_counts(
    runner: Runner,
    end: Callable[[FakeGateway], None],
    paid: list[tuple[float, str]],
    told: str,
) -> None:
    graph, gateway, effects, _ = await went_back(runner, runner.memory)

    end(gateway)
    state = await runner.resume(graph, gateway)

    assert effects.paid == paid
    assert told in results(state)[0].text


async def test_a_paused_tool_gets_its_own_answer(runner: Runner) -> None:
    """The tool's question and ours share a task: each gets its own answer."""
    gateway, said = FakeGateway(), list[str]()

    @tool
    def order(what: str) -> str:
        """Order something."""
        said.append(str(interrupt(f"how many {what}?")))
        return f"ordered {said[-1]} {what}"

    graph = build(gateway, [order], calling(("order", {"what": "pens"}, "c1")))
    await runner.say(graph, "order pens")
    item_id = gateway.only().id
    gateway.approve(item_id)
    await runner.resume(graph, gateway)
    [inner] = (await runner.state(graph)).interrupts
    assert inner.value == "how many pens?"
    gateway.take_back(item_id)

    await runner.run(graph, Command(resume={inner.id: "seven"}), CONFIG)
    [again] = (await runner.state(graph)).interrupts
    assert again.value["item_id"] == item_id
    assert said == []
    gateway.approve(item_id)
    state = await runner.resume(graph, gateway)

    assert said == ["seven"]
    assert results(state)[0].text == "ordered seven pens"
    assert gateway.only().state is ItemState.EXECUTED


async def test_a_cleared_call_that_the_policy_takes_back_says_so(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread rests before its tools, and goes on under another policy."""
    monkeypatch.setattr(calls, "CACHE_AGE_S", 0.0)
    gateway, effects = FakeGateway({"pay": Tier.AUTO}), Effects()
    graph = build(gateway, effects.tools(), pay())
    graph.interrupt_before_nodes = ["tools"]
    await runner.say(graph, "pay ada")
    [(key, (turn, verdicts))] = gateway.turns.items()
    denied = [each.with_(kind=VerdictKind.DENY, reason="Changed.") for each in verdicts]
    gateway.turns[key] = (turn, tuple(denied))

    state = await runner.run(graph, None)

    assert effects.paid == []
    assert results(state)[0].text == "Changed."


@tool
async def mail(to: str) -> str:
    """Send mail."""
    return f"mailed {to}"


async def test_a_call_cut_off_by_another_is_asked_about_and_not_stuck() -> None:
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


async def test_an_outage_of_one_call_cuts_off_no_other() -> None:
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


async def test_an_approval_answers_no_question(runner: Runner, saver: Any) -> None:
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
