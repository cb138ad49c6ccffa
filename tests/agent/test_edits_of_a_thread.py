"""An edit is reported in its thread, on every branch that contains it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import StateSnapshot

from keyturn.agent import edit_messages
from keyturn.agent.scripted_model import ScriptedModel, scripted
from keyturn.gateway.protocol import edits
from tests.agent.agent_runner import CONFIG, FREE, Effects, Runner, build, pay
from tests.agent.fake_gateway import FakeGateway

OTHER: RunnableConfig = {"configurable": {"thread_id": "thread-2"}}
DEFUSED = "[not-keyturn:edited]"


class Told:
    """A thread in which a person changed a payment, and its agent."""

    def __init__(self, effects: Effects, memory: InMemorySaver) -> None:
        self.effects, self.memory = effects, memory
        self.gateway = FakeGateway(FREE)
        self.model = scripted([pay(10), AIMessage("paid")])
        self.graph = self.another_process(self.model)

    def another_process(self, model: ScriptedModel) -> Any:
        """Return the same agent in a process that heard of nothing yet."""
        tools = self.effects.tools()
        return build(self.gateway, tools, model=model, saver=self.memory)

    async def edited(self, runner: Runner) -> None:
        """Make the agent pay, and have a reviewer change the payment."""
        await runner.say(self.graph, "pay ada")
        self.gateway.edit("ap0.0", {"amount": 1, "to": "ada"})
        await runner.resume(self.graph, self.gateway)

    async def history(self) -> list[StateSnapshot]:
        """Return the states of the thread, newest first."""
        return [one async for one in self.graph.aget_state_history(CONFIG)]


@pytest.fixture
def told(effects: Effects, memory: InMemorySaver) -> Told:
    return Told(effects, memory)


def read(model: ScriptedModel) -> str:
    """Return what the model read last."""
    return str(model.seen[-1])


def copied(memory: InMemorySaver, config: RunnableConfig) -> None:
    """Copy all checkpoints of the thread into another, as a server's copy does."""
    new = config["configurable"]["thread_id"]  # pyright: ignore[reportTypedDictNotRequiredAccess] - ours has it
    memory.storage[new] = copy.deepcopy(memory.storage["thread-1"])
    for (_, ns, checkpoint), writes in list(memory.writes.items()):
        memory.writes[new, ns, checkpoint] = dict(writes)
    for (_, ns, channel, version), value in list(memory.blobs.items()):
        memory.blobs[new, ns, channel, version] = value


@pytest.mark.parametrize("is_same_process", [True, False])
async def test_a_true_edit_copied_into_another_thread_is_not_told_there(
    runner: Runner, told: Told, *, is_same_process: bool
) -> None:
    await told.edited(runner)
    model = told.model if is_same_process else scripted([])
    graph = told.graph if is_same_process else told.another_process(model)
    await runner.say(graph, "hello", OTHER)
    state = await runner.state(told.graph)
    await graph.aupdate_state(OTHER, {"keyturn_edits": state.values["keyturn_edits"]})

    await runner.say(graph, "and now?", OTHER)
    elsewhere = read(model)
    await runner.say(graph, "and here?")

    assert edits.EDIT_MARK not in elsewhere
    assert read(model).count(edits.EDIT_MARK) == 1


async def test_in_a_copy_of_the_thread_the_notice_is_no_notice_any_more(
    runner: Runner, told: Told, memory: InMemorySaver
) -> None:
    await told.edited(runner)
    copied(memory, OTHER)
    model = scripted([])
    graph = told.another_process(model)

    await runner.say(graph, "and now?", OTHER)

    assert len(edit_messages((await runner.state(graph, OTHER)).values)) == 1
    assert edits.EDIT_MARK not in read(model)
    assert DEFUSED in read(model)


@pytest.mark.parametrize("is_same_process", [True, False])
async def test_a_branch_that_holds_the_edit_tells_it_once(
    runner: Runner, told: Told, *, is_same_process: bool
) -> None:
    await told.edited(runner)
    model = told.model if is_same_process else scripted([])
    graph = told.graph if is_same_process else told.another_process(model)
    after_edit = next(one for one in await told.history() if one.next == ("model",))
    forked: RunnableConfig = await graph.aupdate_state(
        after_edit.config, {"messages": [("user", "be brief")]}
    )

    await runner.run(graph, None, forked)

    assert read(model).count(edits.EDIT_MARK) == 1
    assert "be brief" in read(model)
    assert told.effects.paid == [(1, "ada")]


async def test_a_step_back_to_before_the_edit_tells_of_none(
    runner: Runner, told: Told
) -> None:
    await told.edited(runner)
    first = [one for one in await told.history() if one.next == ("model",)][-1]
    asked = told.gateway.calls["edits_known"]
    model = scripted([])
    graph = told.another_process(model)

    await runner.run(graph, None, first.config)

    assert edits.EDIT_MARK not in read(model)
    assert told.gateway.calls["edits_known"] == asked
