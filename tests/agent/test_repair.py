"""New user input in the middle of a turn loses nothing that happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pytest
from deepagents.middleware.patch_tool_calls import PatchToolCallsMiddleware
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from keyturn.agent import calls, guarded, turns
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.client import bridge
from keyturn.gateway.errors import StoreUnavailable, ThreadUnavailable
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.wire import Turn, Verdict, VerdictKind
from tests.agent import providers
from tests.agent.agent_runner import (
    CONFIG,
    FREE,
    STRICT,
    Effects,
    Runner,
    build,
    by_call,
    item_of,
    paused,
    pay,
    results,
)
from tests.agent.fake_gateway import FakeGateway

TURN = calling(
    ("pay", {"amount": 1, "to": "ada"}, "edited"),
    ("pay", {"amount": 2, "to": "bob"}, "rejected"),
    ("pay", {"amount": 3, "to": "cleo"}, "waiting"),
    ("pay", {"amount": 4, "to": "dora"}, "approved"),
    ("look_up", {"query": "x"}, "free"),
)


async def _cut_off(
    runner: Runner,
    saver: Any,
    before: Sequence[AgentMiddleware[Any, Any, Any]] = (),
) -> tuple[FakeGateway, Any, ScriptedModel]:
    gateway = FakeGateway(FREE)
    model = scripted([TURN])
    graph = build(gateway, runner.tools(), saver=saver, model=model, before=before)
    await runner.say(graph, "pay them")
    gateway.edit(item_of(gateway, "edited").id, {"amount": 0.5, "to": "ada"}, "less")
    gateway.reject(item_of(gateway, "rejected").id, "not bob")
    await runner.resume(graph, gateway)
    gateway.approve(item_of(gateway, "approved").id)
    return gateway, graph, model


@pytest.mark.slow
@pytest.mark.parametrize("beside", ["alone", "deepagents"])
async def test_results_are_put_back(runner: Runner, saver: Any, beside: str) -> None:
    before = [PatchToolCallsMiddleware()] if beside == "deepagents" else []
    gateway, graph, model = await _cut_off(runner, saver, before)

    end = await runner.say(graph, "stop, what did you do?")

    told = by_call(end)
    roles = [message.type for message in end["messages"]]
    assert roles == ["human", "ai", *["tool"] * 5, "human", "ai"]
    assert set(told) == {"edited", "rejected", "waiting", "approved", "free"}
    assert told["edited"].text.startswith("[keyturn:edited]")
    assert told["edited"].text.endswith("paid 0.5 to ada")
    assert '"not bob"' in told["rejected"].text
    assert "moved on" in told["waiting"].text
    assert "moved on before this call ran" in told["approved"].text
    lost = "may have run" if beside == "alone" else "no result was recorded"
    assert lost in told["free"].text
    assert item_of(gateway, "waiting").state is ItemState.SUPERSEDED
    assert runner.paid == [(0.5, "ada")]
    for provider, payload in providers.payloads(model.seen[-1]).items():
        assert providers.problems(provider, payload) == []
        text = "\n".join(providers.texts(payload))
        assert text.count("[keyturn:edited]") == 1


async def test_a_whole_history_is_left_alone(runner: Runner) -> None:
    gateway, graph = await paused(runner, runner.memory)
    gateway.approve("ap0.0")
    before = (await runner.resume(graph, gateway))["messages"]

    end = await runner.say(graph, "thanks")

    assert end["messages"][: len(before)] == before
    assert gateway.calls["outcomes"] == 0


async def test_a_call_cut_off_while_running_is_unknown(runner: Runner) -> None:
    gateway, graph = await paused(runner, runner.memory)
    gateway.approve("ap0.0")
    gateway.end("ap0.0", Transition.CLAIM)

    end = await runner.say(graph, "hurry")

    assert "had been started" in by_call(end)["c1"].text
    assert "unknown" in by_call(end)["c1"].text


def _joined(old: list[str], new: list[str]) -> list[str]:
    return [*old, *new]


class _Notebook(AgentState[Any]):
    pages: Annotated[list[str], _joined]


class _Pages(AgentMiddleware[Any, Any, Any]):
    state_schema = _Notebook


async def test_a_tools_update_of_the_state_is_put_back(runner: Runner) -> None:
    @guarded
    @tool
    def write(page: str) -> Any:
        """Write a page."""
        told = ToolMessage(f"wrote {page}", tool_call_id=page)
        return Command(update={"messages": [told], "pages": [page]})

    gateway = FakeGateway()
    turn = calling(*[("write", {"page": name}, name) for name in ("a", "b", "c")])
    graph = build(gateway, [write], turn, before=[_Pages()])
    await runner.say(graph, "write")
    gateway.approve(item_of(gateway, "a").id)
    gateway.approve(item_of(gateway, "b").id)
    await runner.run(
        graph, Command(resume=await runner.answers(graph, gateway)), STRICT
    )

    end = await runner.say(graph, "enough")

    assert end["pages"] == ["a", "b"]
    assert by_call(end)["a"].text == "wrote a"
    assert "did not run" in by_call(end)["c"].text


BOTH = calling(
    ("pay", {"amount": 1, "to": "ada"}, "c1"), ("look_up", {"query": "x"}, "c2")
)
DONE = AIMessage("done")


@pytest.mark.parametrize("is_down", [False, True])
async def test_a_programs_answer_runs_nothing(runner: Runner, *, is_down: bool) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, runner.tools(), pay(), DONE)
    await runner.say(graph, "pay")
    mine = ToolMessage("I paid it myself", name="pay", tool_call_id="c1")
    await graph.aupdate_state(CONFIG, {"messages": [mine]}, as_node="tools")
    if is_down:
        gateway.down.add("supersede")

    end = await runner.run(graph, None)

    assert end["messages"][-1].text == "done"
    is_over = item_of(gateway, "c1").state is ItemState.SUPERSEDED
    assert is_over is not is_down
    assert runner.paid == []


async def test_a_decided_call_is_not_asked_about_again(runner: Runner) -> None:
    gateway = FakeGateway(FREE)
    graph = build(gateway, runner.tools(), BOTH, DONE)
    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    gateway.down.add("supersede")

    await runner.resume(graph, gateway)

    assert runner.paid == [(1, "ada")]
    assert item_of(gateway, "c1").state is ItemState.EXECUTED


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


async def test_a_call_whose_card_stayed_never_runs(runner: Runner) -> None:
    gateway = Losing(FREE)
    graph = build(gateway, runner.tools(), pay())

    end = await runner.say(graph, "pay")

    assert by_call(end)["c1"].text == turns.UNREACHABLE
    gateway.approve(gateway.only().id)
    await runner.say(graph, "and now?")
    assert runner.paid == []


async def test_calls_of_an_unknown_end_may_have_run(runner: Runner) -> None:
    gateway, graph = await paused(runner, runner.memory)
    gateway.down.add("supersede")

    end = await runner.say(graph, "hurry")

    assert "may have run" in by_call(end)["c1"].text
    assert end["messages"][-1].text == "done"
    assert gateway.only().is_pending


# A claim that went back to people is asked about again, in every kind of run.


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
