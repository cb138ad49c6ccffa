"""One step of a plain graph node waits for a person and runs once."""

from __future__ import annotations

import asyncio
from typing import Any, NotRequired, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send

from keyturn.agent import (
    Approved,
    NotApproved,
    Unsure,
    arequire_approval,
    connected,
    grant,
    require_approval,
)
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.errors import BadJson, NotAllowed, ThreadUnavailable
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.service.run.claiming import told_edit
from tests.agent.agent_runner import STRICT, Effects, Killed, Runner
from tests.agent.fake_gateway import FakeGateway

SCHEMA: Any = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, "to": {"type": "string"}},
}


class State(TypedDict):
    amount: float
    outcome: NotRequired[Any]


def _graph(
    runner: Runner, effects: Effects, saver: Any, gateway: FakeGateway | None
) -> Any:
    """Return a graph of one node that wires money, in the style of the runner."""

    def wire(**args: Any) -> Any:
        effects.keys.append(grant().idempotency_key)
        effects.paid.append((args["amount"], args["to"]))
        effects.inside()
        return f"wired {args['amount']}"

    async def awire(**args: Any) -> Any:
        return wire(**args)

    def node(state: State) -> State:
        args = {"amount": state["amount"], "to": "ada"}
        options: Any = {"agent": "bank", "schema": SCHEMA, "gateway": gateway}
        options["task"] = "payroll"
        outcome = require_approval("wire", args, run=wire, **options)
        return {**state, "outcome": outcome}

    async def anode(state: State) -> State:
        args = {"amount": state["amount"], "to": "ada"}
        options: Any = {"agent": "bank", "schema": SCHEMA, "gateway": gateway}
        options["task"] = "payroll"
        outcome = await arequire_approval("wire", args, run=awire, **options)
        return {**state, "outcome": outcome}

    builder: Any = StateGraph(State)
    builder.add_node("bank", anode if runner.is_async else node)
    builder.add_edge(START, "bank")
    builder.add_edge("bank", END)
    return builder.compile(checkpointer=saver)


async def test_an_approved_step_runs_once_with_what_was_approved(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    paused = list(effects.paid)
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert paused == []
    assert effects.paid == [(5, "ada")]
    assert end["outcome"] == Approved("wired 5", {"amount": 5, "to": "ada"})
    assert gateway.only().state is ItemState.EXECUTED


async def test_an_edited_step_runs_with_the_edit_and_says_so(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    gateway.edit("ap0.0", {"amount": 2, "to": "ada"}, "less")

    end = await runner.resume(graph, gateway)

    outcome = end["outcome"]
    assert effects.paid == [(2, "ada")]
    assert outcome.args == {"amount": 2, "to": "ada"}
    assert outcome.edit == told_edit(gateway.only())


async def test_a_step_that_nobody_approved_says_why(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    gateway.reject("ap0.0", "no")
    rejected = (await runner.resume(graph, gateway))["outcome"]
    await runner.run(graph, {"amount": 5})
    (second,) = gateway.pending()
    gateway.end(second.id, Transition.EXPIRE)

    expired = (await runner.resume(graph, gateway))["outcome"]

    assert effects.paid == []
    assert (rejected.kind, expired.kind) == ("reject", "expired")
    assert '"no"' in rejected.message
    assert "in time" in expired.message


@pytest.mark.parametrize("tier", [Tier.AUTO, Tier.DENY])
async def test_policy_decides_alone_where_it_can(
    runner: Runner, memory: InMemorySaver, effects: Effects, tier: Tier
) -> None:
    graph = _graph(runner, effects, memory, FakeGateway({"wire": tier}))

    end = await runner.run(graph, {"amount": 5})

    if tier is Tier.AUTO:
        assert end["outcome"] == Approved("wired 5", {"amount": 5, "to": "ada"})
        assert effects.keys[0].startswith("sha256:")
    else:
        assert end["outcome"] == NotApproved("deny", "Policy forbids it.")
        assert effects.paid == []


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
async def test_a_step_that_failed_is_said_to_be_unsure(
    runner: Runner, memory: InMemorySaver, effects: Effects, kind: type[BaseException]
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    gateway.approve("ap0.0")

    def fail() -> None:
        raise kind("no line to the bank")

    effects.inside = fail
    end = await runner.resume(graph, gateway)

    assert isinstance(end["outcome"], Unsure)
    assert "no line to the bank" in end["outcome"].message
    assert gateway.only().state is ItemState.FAILED


async def test_a_step_that_was_recorded_is_given_back_and_not_run_again(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    gateway.edit("ap0.0", {"amount": 2, "to": "ada"})
    answers = await runner.answers(graph, gateway)

    def die() -> None:
        gateway.recorded = lambda: None
        raise Killed

    gateway.recorded = die
    with pytest.raises(Killed):
        await runner.run(graph, Command(resume=answers), STRICT)
    end = await runner.run(graph, Command(resume=answers), STRICT)

    assert effects.paid == [(2, "ada")]
    assert end["outcome"].result == "wired 2"
    assert end["outcome"].edit == told_edit(gateway.only())


@pytest.mark.parametrize("finding", ["executed", "skip"])
async def test_a_step_in_doubt_is_reconciled_by_a_person(
    runner: Runner, memory: InMemorySaver, effects: Effects, finding: str
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    gateway.approve("ap0.0")
    answers = await runner.answers(graph, gateway)

    def die() -> None:
        raise Killed

    effects.inside = die
    with pytest.raises(Killed):
        await runner.run(graph, Command(resume=answers), STRICT)
    gateway.lose_owner("ap0.0")
    await runner.run(graph, Command(resume=answers), STRICT)
    (pause,) = (await runner.state(graph)).interrupts
    found = gateway.reconcile("ap0.0", finding).model_dump(mode="json")

    end = await runner.run(graph, Command(resume={pause.id: found}), STRICT)

    assert len(effects.paid) == 1
    assert isinstance(end["outcome"], Unsure)


async def test_steps_of_a_fan_out_wait_apart(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()

    def wire(**args: Any) -> Any:
        effects.paid.append((args["amount"], "x"))

    async def awire(**args: Any) -> Any:
        wire(**args)

    def node(state: State) -> dict[str, Any]:
        require_approval("wire", {"amount": state["amount"]}, run=wire, gateway=gateway)
        return {}

    async def anode(state: State) -> dict[str, Any]:
        args = {"amount": state["amount"]}
        await arequire_approval("wire", args, run=awire, gateway=gateway)
        return {}

    def fan_out(state: State) -> list[Send]:
        return [Send("bank", {**state, "amount": amount}) for amount in (1, 2, 3)]

    builder: Any = StateGraph(State)
    builder.add_node("bank", anode if runner.is_async else node)
    builder.add_conditional_edges(START, fan_out)
    graph = builder.compile(checkpointer=memory)
    await runner.run(graph, {"amount": 0})
    waiting = [item.state for item in gateway.items.values()]
    for item in gateway.pending():
        gateway.approve(item.id)
        await runner.resume(graph, gateway)

    assert waiting == [ItemState.PENDING] * 3
    assert sorted(effects.paid) == [(1, "x"), (2, "x"), (3, "x")]
    assert gateway.calls["submit"] > 3
    assert len(gateway.items) == 3


async def test_a_gateway_that_does_not_answer_stops_the_node_before_it_runs(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    gateway.down.add("submit")
    graph = _graph(runner, effects, memory, gateway)

    with pytest.raises(ThreadUnavailable, match="'wire'"):
        await runner.run(graph, {"amount": 5})

    assert effects.paid == []


async def test_a_step_without_gateway_thread_or_json_is_refused(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    without_gateway = _graph(runner, effects, memory, None)
    without_thread = _graph(runner, effects, None, FakeGateway())

    with pytest.raises(NotAllowed, match="No approval gateway"):
        await runner.run(without_gateway, {"amount": 5})
    with pytest.raises(NotAllowed, match="thread_id"):
        await runner.run(without_thread, {"amount": 5}, {})
    with connected(FakeGateway()), pytest.raises(BadJson):
        await runner.run(
            without_gateway,
            {"amount": float("inf")},
            {"configurable": {"thread_id": "2"}},
        )

    assert effects.paid == []


@pytest.mark.parametrize("fault", ["forbid submit", "forbid claim"])
async def test_a_step_that_the_gateway_forbids_is_not_approved(
    runner: Runner, memory: InMemorySaver, effects: Effects, fault: str
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    if fault == "forbid claim":
        await runner.run(graph, {"amount": 5})
        gateway.approve("ap0.0")
    gateway.down.add(fault)

    end = (
        await runner.resume(graph, gateway)
        if gateway.items
        else await runner.run(graph, {"amount": 5})
    )

    assert isinstance(end["outcome"], NotApproved)
    assert end["outcome"].kind == "deny"
    assert "not allowed" in end["outcome"].message
    assert effects.paid == []


async def test_a_step_whose_arguments_change_while_it_waits_does_not_run(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, effects, memory, gateway)
    await runner.run(graph, {"amount": 5})
    ((key, (turn, verdicts)),) = gateway.turns.items()
    gateway.turns[key] = (turn, (verdicts[0].with_(args_hash="sha256:other"),))
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert effects.paid == []
    assert "not cleared" in end["outcome"].message


async def test_a_result_that_is_not_plain_is_given_once_and_then_said_to_be_lost(
    memory: InMemorySaver,
) -> None:
    runner = Runner(is_async=True)
    gateway = FakeGateway()
    outcomes: list[Any] = []

    async def work() -> Any:
        return {1, 2}

    async def node(state: State) -> dict[str, Any]:
        outcomes.append(await arequire_approval("x", {}, run=work, gateway=gateway))
        if len(outcomes) == 1:
            raise Killed
        return {}

    builder: Any = StateGraph(State)
    builder.add_node("bank", node)
    builder.add_edge(START, "bank")
    graph = builder.compile(checkpointer=memory)
    await runner.run(graph, {"amount": 1})
    gateway.approve("ap0.0")
    answers = await runner.answers(graph, gateway)
    with pytest.raises(Killed):
        await runner.run(graph, Command(resume=answers), STRICT)

    await runner.run(graph, Command(resume=answers), STRICT)

    assert outcomes[0] == Approved({1, 2}, {})
    assert isinstance(outcomes[1], Unsure)
    assert "took effect" in outcomes[1].message
