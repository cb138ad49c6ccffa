"""One step of a plain graph node waits for a person and runs once."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send
from pydantic import Field

from keyturn.agent import (
    Approved,
    NotApproved,
    Unsure,
    arequire_approval,
    connected,
    grant,
)
from keyturn.agent.require_approval import (
    canonical_step,
    step_reading,
    values,
)
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.errors import BadJson, BadStep, NotAllowed, ThreadUnavailable
from keyturn.gateway.protocol.records import Evidence, ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.run.claiming import told_edit
from tests.agent.agent_runner import (
    CONFIG,
    GO,
    STRICT,
    Killed,
    Runner,
    Step,
    step_graph,
)
from tests.agent.fake_gateway import FakeGateway

ARGS: JsonObject = {"amount": 5, "to": "ada"}
SCHEMA: Any = {
    "type": "object",
    "properties": {"amount": {"type": "number"}, "to": {"type": "string"}},
}


def _graph(
    runner: Runner,
    saver: Any,
    gateway: FakeGateway | None,
    amount: float = 5,
) -> Any:
    """Return a graph of one step that wires money."""

    def wire(**args: Any) -> Any:
        runner.keys.append(grant().idempotency_key)
        runner.paid.append((args["amount"], args["to"]))
        runner.inside()
        return f"wired {args['amount']}"

    options: Any = {"agent": "bank", "schema": SCHEMA, "gateway": gateway}
    given = {"amount": amount, "to": "ada"}
    return step_graph(runner, saver, "wire", given, run=wire, **options)


async def _waiting(runner: Runner, saver: Any) -> tuple[FakeGateway, Any]:
    """Return a graph whose step waits for people, and its gateway."""
    gateway = FakeGateway()
    graph = _graph(runner, saver, gateway)
    await runner.run(graph, GO)
    return gateway, graph


async def test_an_approved_step_runs_once_as_approved(runner: Runner) -> None:
    gateway, graph = await _waiting(runner, runner.memory)
    paused = list(runner.paid)
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert paused == []
    assert runner.paid == [(5, "ada")]
    assert end["outcome"] == Approved("wired 5", ARGS)
    assert gateway.only().state is ItemState.EXECUTED


async def test_an_edited_step_runs_with_the_edit_and_says_so(runner: Runner) -> None:
    gateway, graph = await _waiting(runner, runner.memory)
    gateway.edit("ap0.0", {"amount": 2, "to": "ada"}, "less")

    end = await runner.resume(graph, gateway)

    outcome = end["outcome"]
    assert runner.paid == [(2, "ada")]
    assert outcome.args == {"amount": 2, "to": "ada"}
    assert outcome.edit == told_edit(gateway.only())


async def test_a_step_that_nobody_approved_says_why(runner: Runner) -> None:
    gateway, graph = await _waiting(runner, runner.memory)
    gateway.reject("ap0.0", "no")
    rejected = (await runner.resume(graph, gateway))["outcome"]
    await runner.run(graph, GO)
    (second,) = gateway.pending()
    gateway.end(second.id, Transition.EXPIRE)

    expired = (await runner.resume(graph, gateway))["outcome"]

    assert runner.paid == []
    assert (rejected.kind, expired.kind) == ("reject", "expired")
    assert '"no"' in rejected.message
    assert "in time" in expired.message


@pytest.mark.parametrize("tier", [Tier.AUTO, Tier.DENY])
async def test_policy_decides_alone_where_it_can(runner: Runner, tier: Tier) -> None:
    graph = _graph(runner, runner.memory, FakeGateway({"wire": tier}))

    end = await runner.run(graph, GO)

    if tier is Tier.AUTO:
        assert end["outcome"] == Approved("wired 5", ARGS)
        assert runner.keys[0].startswith("sha256:")
    else:
        assert end["outcome"] == NotApproved("deny", "Policy forbids it.")
        assert runner.paid == []


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError])
async def test_a_step_that_failed_is_said_to_be_unsure(
    runner: Runner, kind: type[BaseException]
) -> None:
    gateway, graph = await _waiting(runner, runner.memory)
    gateway.approve("ap0.0")

    def fail() -> None:
        raise kind("no line to the bank")

    runner.inside = fail
    end = await runner.resume(graph, gateway)

    assert isinstance(end["outcome"], Unsure)
    assert "no line to the bank" in end["outcome"].message
    assert gateway.only().state is ItemState.FAILED


@pytest.mark.parametrize("finding", ["executed", "skip"])
async def test_a_person_reconciles_a_step(runner: Runner, finding: str) -> None:
    gateway, graph = await _waiting(runner, runner.memory)
    gateway.approve("ap0.0")
    answers = await runner.answers(graph, gateway)

    def die() -> None:
        raise Killed

    runner.inside = die
    with pytest.raises(Killed):
        await runner.run(graph, Command(resume=answers), STRICT)
    gateway.lose_owner("ap0.0")
    await runner.run(graph, Command(resume=answers), STRICT)
    (pause,) = (await runner.state(graph)).interrupts
    found = gateway.reconcile("ap0.0", finding).model_dump(mode="json")

    end = await runner.run(graph, Command(resume={pause.id: found}), STRICT)

    assert len(runner.paid) == 1
    assert isinstance(end["outcome"], Unsure)


async def test_steps_of_a_fan_out_wait_apart() -> None:
    runner, gateway = Runner(is_async=True), FakeGateway()

    async def wire(amount: float) -> None:
        runner.paid.append((amount, "x"))

    async def node(given: Step) -> dict[str, Any]:
        args = {"amount": given["outcome"]}
        await arequire_approval("wire", args, run=wire, gateway=gateway)
        return {}

    def fan_out(_: Step) -> list[Send]:
        return [Send("bank", Step(outcome=amount)) for amount in (1, 2, 3)]

    builder: Any = StateGraph(Step)
    builder.add_node("bank", node)
    builder.add_conditional_edges(START, fan_out)
    graph = builder.compile(checkpointer=runner.memory)
    await runner.run(graph, GO)
    waiting = [item.state for item in gateway.items.values()]
    for item in gateway.pending():
        gateway.approve(item.id)
        await runner.resume(graph, gateway)

    assert waiting == [ItemState.PENDING] * 3
    assert sorted(runner.paid) == [(1, "x"), (2, "x"), (3, "x")]
    assert len(gateway.items) == 3


async def test_an_absent_gateway_stops_the_node(runner: Runner) -> None:
    gateway = FakeGateway()
    gateway.down.add("submit")
    graph = _graph(runner, runner.memory, gateway)

    with pytest.raises(ThreadUnavailable, match="'wire'"):
        await runner.run(graph, GO)

    assert runner.paid == []


async def test_a_step_without_gateway_thread_or_json_is_refused(runner: Runner) -> None:
    without_gateway = _graph(runner, runner.memory, None)
    without_thread = _graph(runner, None, FakeGateway())

    with pytest.raises(NotAllowed, match="No approval gateway"):
        await runner.run(without_gateway, GO)
    with pytest.raises(NotAllowed, match="thread_id"):
        await runner.run(without_thread, GO, {})
    endless = _graph(runner, runner.memory, FakeGateway(), amount=math.inf)
    with pytest.raises(BadJson):
        await runner.run(endless, GO)

    assert runner.paid == []


@pytest.mark.parametrize("fault", ["forbid submit", "forbid claim"])
async def test_a_forbidden_step_is_not_approved(runner: Runner, fault: str) -> None:
    gateway = FakeGateway()
    graph = _graph(runner, runner.memory, gateway)
    if fault == "forbid claim":
        await runner.run(graph, GO)
        gateway.approve("ap0.0")
    gateway.down.add(fault)

    end = (
        await runner.resume(graph, gateway)
        if gateway.items
        else await runner.run(graph, GO)
    )

    assert isinstance(end["outcome"], NotApproved)
    assert end["outcome"].kind == "deny"
    assert "not allowed" in end["outcome"].message
    assert runner.paid == []


async def test_a_step_changed_while_waiting_does_not_run(runner: Runner) -> None:
    gateway, graph = await _waiting(runner, runner.memory)
    ((key, (turn, verdicts)),) = gateway.turns.items()
    gateway.turns[key] = (turn, (verdicts[0].with_(args_hash="sha256:other"),))
    gateway.approve("ap0.0")

    end = await runner.resume(graph, gateway)

    assert runner.paid == []
    assert "not cleared" in end["outcome"].message


async def test_a_result_that_is_not_plain_is_given_once() -> None:
    runner = Runner(is_async=True)
    gateway = FakeGateway()
    outcomes: list[Any] = []

    async def work() -> Any:
        return {1, 2}

    async def node(_: Step) -> Step:
        outcomes.append(await arequire_approval("x", {}, run=work, gateway=gateway))
        if len(outcomes) == 1:
            raise Killed
        return GO

    builder: Any = StateGraph(Step)
    builder.add_node("bank", node)
    builder.add_edge(START, "bank")
    graph = builder.compile(checkpointer=runner.memory)
    await runner.run(graph, GO)
    gateway.approve("ap0.0")
    answers = await runner.answers(graph, gateway)
    with pytest.raises(Killed):
        await runner.run(graph, Command(resume=answers), STRICT)

    await runner.run(graph, Command(resume=answers), STRICT)

    assert outcomes[0] == Approved({1, 2}, {})
    assert isinstance(outcomes[1], Unsure)
    assert "took effect" in outcomes[1].message


async def test_a_function_of_another_signature_is_refused(runner: Runner) -> None:
    def wire(to: str, total: int) -> str:
        return f"{to}{total}"

    gateway = FakeGateway()
    graph = step_graph(runner, runner.memory, "wire", ARGS, run=wire, gateway=gateway)

    with pytest.raises(BadStep, match=r"wire.*not submitted.*'total'"):
        await runner.run(graph, GO)

    assert not gateway.turns


async def test_a_coroutine_function_in_a_synchronous_step_is_refused() -> None:
    async def wire(to: str, amount: int) -> str:
        return f"{to}{amount}"

    gateway = FakeGateway()
    runner = Runner(is_async=False)
    graph = step_graph(runner, runner.memory, "wire", ARGS, run=wire, gateway=gateway)

    with pytest.raises(BadStep, match="await arequire_approval"):
        await runner.run(graph, GO)

    assert not gateway.turns


def book(
    day: date, seats: int, key: str = Field(default_factory=lambda: uuid.uuid4().hex)
) -> str:
    """Book seats."""
    return f"{seats} on {day:%d %B}{'' if key else '!'}"


async def test_what_is_approved_is_what_the_function_reads(runner: Runner) -> None:
    gateway = FakeGateway()
    args = {"day": "2026-01-02", "seats": "03"}
    graph = step_graph(runner, runner.memory, "book", args, run=book, gateway=gateway)

    await runner.run(graph, GO)
    item = gateway.only()
    gateway.approve(item.id)
    end = await runner.resume(graph, gateway)

    assert item.args == {"day": "2026-01-02", "seats": 3}
    assert end["outcome"] == Approved("3 on 02 January", item.args)


async def test_arguments_that_do_not_fit_are_refused(runner: Runner) -> None:
    gateway = FakeGateway()
    args = {"day": "soon", "seats": 3}
    graph = step_graph(runner, runner.memory, "book", args, run=book, gateway=gateway)

    with pytest.raises(BadStep, match="was not submitted: day: Input should be"):
        await runner.run(graph, GO)

    assert gateway.items == {}


def test_a_function_that_declares_nothing_gets_what_was_given() -> None:
    args: JsonObject = {"amount": "07"}

    takes: list[Any] = [lambda **_: None, lambda amount: amount, dict]  # pyright: ignore[reportUnknownLambdaType] - that is the point
    for run in takes:
        assert canonical_step(run, args, "t") == args
        assert values(run, args, "t") == args
        assert step_reading(run, args, "t") is None


FLAKY = 3


Body = Callable[["Ledger", list[int]], Awaitable[list[str]]]


class Ledger:
    """What steps did."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def pay(self, amount: int) -> str:
        """Pay."""
        self.lines.append(f"paid {amount}")
        return f"did {amount}"


async def step(ledger: Ledger, amount: int, **options: Any) -> str:
    """Ask for one payment."""
    outcome = await arequire_approval(
        "pay", {"amount": amount}, run=ledger.pay, agent="bank", **options
    )
    return outcome.result if isinstance(outcome, Approved) else outcome.message


async def in_turn(ledger: Ledger, amounts: list[int]) -> list[str]:
    """Ask one after the other."""
    return [await step(ledger, amount) for amount in amounts]


async def by_key(ledger: Ledger, amounts: list[int]) -> list[str]:
    """Ask twice in sequence, with a different name each time."""
    return [await step(ledger, a, key=f"n{n}") for n, a in enumerate(amounts)]


@pytest.mark.parametrize("body", [in_turn, by_key])
@pytest.mark.parametrize("amounts", [[1, 2, 3], [5, 5, 5]])
async def test_steps_of_one_body_are_told_apart(body: Body, amounts: list[int]) -> None:
    gateway, ledger = FakeGateway(), Ledger()

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: list[int]) -> list[str]:
        return await body(ledger, given)

    end = await played(flow, amounts, gateway)

    assert end == [f"did {amount}" for amount in amounts]
    assert ledger.lines == [f"paid {amount}" for amount in amounts]
    assert [one.state for one in gateway.items.values()] == [ItemState.EXECUTED] * 3


async def test_sources_go_to_the_gateway_with_their_step() -> None:
    gateway, source = FakeGateway(), {"title": "The invoice", "text": "5 euros"}

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(amount: int) -> str:
        return await step(Ledger(), amount, evidence=[source])

    await played(flow, 5, gateway)

    ((turn, _),) = gateway.turns.values()
    assert [one.hint and one.hint.evidence for one in turn.calls] == [
        (Evidence.model_validate(source),)
    ]
    with pytest.raises(ValueError, match="a `url` or a `text`; give one"):
        await step(Ledger(), 5, evidence=[{"title": "x"}], gateway=gateway)


@pytest.mark.slow
async def test_an_attempt_by_a_retry_policy_repeats_no_step() -> None:
    gateway, ledger, attempts = FakeGateway(), Ledger(), list[int]()

    async def node(_: Step) -> Step:
        done = await in_turn(ledger, [1, 2])
        attempts.append(len(done))
        if len(attempts) < FLAKY:
            raise ConnectionError("flaky")
        return Step(outcome=done)

    builder: Any = StateGraph(Step)
    policy = RetryPolicy(max_attempts=FLAKY, initial_interval=0.01)
    builder.add_node("node", node, retry_policy=policy)
    builder.add_edge(START, "node")

    end = await played(builder.compile(checkpointer=InMemorySaver()), GO, gateway)

    assert end == {"outcome": ["did 1", "did 2"]}
    assert ledger.lines == ["paid 1", "paid 2"]
    assert len(attempts) == FLAKY


async def test_a_step_that_failed_tells_its_error_when_the_body_runs_again() -> None:
    gateway, told = FakeGateway(), list[str]()

    async def hang_up(amount: int) -> str:
        raise ValueError(f"the bank hung up at {amount}")

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: list[int]) -> list[str]:
        for amount in given:
            outcome = await arequire_approval(
                "pay", {"amount": amount}, run=hang_up, agent="bank"
            )
            assert isinstance(outcome, Unsure)
            told.append(outcome.message)
        return told[-2:]

    end = cast("list[str]", await played(flow, [1, 2], gateway))

    assert "the bank hung up at 1" in end[0]
    assert "the bank hung up at 2" in end[1]
    assert {text for text in told if "at 1" in text} == {end[0]}


async def played(graph: Any, given: object, gateway: FakeGateway) -> object:
    """Run a graph and approve all its requests until it ends."""
    with connected(gateway):
        end = await graph.ainvoke(given, CONFIG)
        while pending := gateway.pending():
            for item in pending:
                gateway.approve(item.id)
            end = await Runner(is_async=True).resume(graph, gateway)
    return cast("object", end)
