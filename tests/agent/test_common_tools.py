"""What tools and middleware of LangChain's users do works behind the gate as before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - partly typed
from langchain.agents.middleware import ModelFallbackMiddleware, ToolRetryMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel, ConfigDict, Field

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import Effects, Runner, build, by_call, pay
from tests.agent.fake_gateway import FakeGateway


class Cat(BaseModel):
    """A cat."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """A dog."""

    kind: Literal["dog"]
    barks: bool = True


class Loose(BaseModel):
    """Accepts unknown arguments, too."""

    model_config = ConfigDict(extra="allow")
    known: int


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


def noting(kind: Any, got: list[Any]) -> BaseTool:
    """Return a tool that notes its argument of this type."""

    def note(value: Any) -> str:
        got.append(value)
        return "noted"

    note.__annotations__["value"] = kind
    return tool(note, description="Note it.")


@pytest.mark.parametrize(
    ("kind", "written", "shown", "value"),
    [
        (Pet, {"kind": "dog"}, {"kind": "dog", "barks": True}, Dog(kind="dog")),
        (
            list[Pet],
            [{"kind": "cat", "lives": "3"}],
            [{"kind": "cat", "lives": 3}],
            [Cat(kind="cat", lives=3)],
        ),
        (
            Loose,
            {"known": "1", "more": [1, {"a": 2.5}]},
            {"known": 1, "more": [1, {"a": 2.5}]},
            Loose.model_validate({"known": 1, "more": [1, {"a": 2.5}]}),
        ),
    ],
)
async def test_a_tool_gets_the_models_that_people_saw(
    runner: Runner,
    memory: InMemorySaver,
    kind: Any,
    written: Any,
    shown: Any,
    value: Any,
) -> None:
    got: list[Any] = []
    gateway = FakeGateway({})
    call = calling(("note", {"value": written}, "c1"))
    graph = build(gateway, [guarded(noting(kind, got))], call, saver=memory)
    await runner.say(graph, "note")
    item = gateway.only()
    gateway.approve(item.id)

    await runner.resume(graph, gateway)

    assert item.args == {"value": shown}
    assert got == [value]


async def test_an_approved_tool_gets_the_store_of_its_graph(
    runner: Runner, memory: InMemorySaver
) -> None:
    @tool
    def remember(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
        """Remember."""
        store.put(("texts",), "last", {"text": text})
        return "remembered"

    gateway, store = FakeGateway({}), InMemoryStore()
    graph = create_agent(
        scripted([calling(("remember", {"text": "milk"}, "c1"))]),
        [guarded(remember)],
        middleware=[ApprovalMiddleware("support", gateway=gateway)],
        checkpointer=memory,
        store=store,
    )
    await runner.say(graph, "remember")
    gateway.approve(gateway.only().id)

    await runner.resume(graph, gateway)

    kept = store.get(("texts",), "last")
    assert kept
    assert kept.value == {"text": "milk"}


async def test_calls_of_a_model_that_stands_in_for_another_are_asked_about_once(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    def down(_messages: object) -> Any:
        raise ConnectionError("the first model is down")

    gateway = FakeGateway({})
    graph = build(
        gateway,
        effects.tools(),
        model=ScriptedModel(reply=down),
        before=[ModelFallbackMiddleware(scripted([pay()]))],
        saver=memory,
    )
    await runner.say(graph, "pay")
    gateway.approve(gateway.only().id)

    await runner.resume(graph, gateway)

    assert effects.paid == [(10, "ada")]


@pytest.mark.parametrize(("tier", "times"), [(Tier.AUTO, 3), (Tier.APPROVE, 1)])
async def test_retrying_middleware_repeats_no_call_that_people_approved(
    runner: Runner, memory: InMemorySaver, effects: Effects, tier: Tier, times: int
) -> None:
    def fail() -> None:
        if len(effects.paid) < 3:
            raise ConnectionError("try again")

    effects.inside = fail
    gateway = FakeGateway({"pay": tier})
    retrying = ToolRetryMiddleware(max_retries=5, initial_delay=0, jitter=False)
    graph = build(gateway, effects.tools(), pay(), saver=memory, before=[retrying])
    end = await runner.say(graph, "pay")
    if gateway.items:
        gateway.approve(gateway.only().id)
        end = await runner.resume(graph, gateway)

    assert len(effects.paid) == times
    assert by_call(end)["c1"].status == ("success" if times > 1 else "error")


@pytest.mark.parametrize("on_failure", ["continue", "error"])
async def test_retries_behind_the_gate_are_warned_of_and_do_nothing(
    runner: Runner, memory: InMemorySaver, effects: Effects, on_failure: Any
) -> None:
    def fail() -> None:
        raise ConnectionError("try again")

    effects.inside = fail
    gateway = FakeGateway({"pay": Tier.AUTO})
    retrying = ToolRetryMiddleware(initial_delay=0, jitter=False, on_failure=on_failure)
    graph = build(gateway, effects.tools(), pay(), saver=memory, after=[retrying])

    with pytest.warns(UserWarning, match="ToolRetryMiddleware is listed after"):
        end = await runner.say(graph, "pay")

    assert len(effects.paid) == 1
    assert by_call(end)["c1"].status == "error"
