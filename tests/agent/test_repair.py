"""New user input in the middle of a turn loses nothing that happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from deepagents.middleware.patch_tool_calls import PatchToolCallsMiddleware
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command

from keyturn.agent import guarded, turns
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.client import bridge
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Turn, Verdict
from tests.agent import providers
from tests.agent.agent_runner import (
    CONFIG,
    FREE,
    STRICT,
    Runner,
    build,
    by_call,
    item_of,
    paused,
    pay,
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
