"""For each end of an edited call, no sentence and no field claims more than it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import AfterValidator

from keyturn.agent import edit_messages, edited_view, guarded
from keyturn.agent.scripted_model import ScriptedModel, calling, scripted
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.protocol.records import (
    EditOutcome,
    FailureKind,
    Finding,
    ItemState,
    Reading,
    Result,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ClaimReply, ClaimRequest
from keyturn.gateway.service.run.claiming import told_edit
from tests.agent.agent_runner import STRICT, Runner, build, pay, step_graph
from tests.agent.fake_gateway import FakeGateway

ASKED: JsonObject = {"amount": 10.0, "to": "ada"}
EDITED: JsonObject = {"amount": 1, "to": "ada"}
RAN = ("executed", "really happened", "before it ran", "took effect and")
NOT_RUN = ("did not run", "not_run")


class World:
    """One edited payment: its agent, its gateway and what its tool did."""

    def __init__(self, memory: InMemorySaver) -> None:
        self.runner = Runner(is_async=True)
        self.gateway = FakeGateway()
        self.model = scripted([pay(), AIMessage("done")])
        self.memory = memory
        self.paid: list[float] = []
        self.error: Exception | None = None
        self.version = 1
        self.graph: Any = self.process(self.model)

    def process(self, model: ScriptedModel, kind: type = float) -> Any:
        """Return the agent in a process whose tool takes this kind of amount."""

        def transfer(amount: Any, to: str) -> str:
            """Make a payment."""
            self.paid.append(amount)
            if self.error is not None:
                raise self.error
            return f"paid {amount} to {to}"

        transfer.__annotations__["amount"] = kind
        tool: BaseTool = StructuredTool.from_function(transfer, name="pay")

        def version(**_given: object) -> Any:
            return self.version

        checked = guarded(tool, recheck=version)
        return build(self.gateway, [checked], model=model, saver=self.memory)

    async def edit(self) -> None:
        """Make the agent's request, and have a reviewer change the amount."""
        await self.runner.say(self.graph, "pay")
        self.gateway.edit("ap0.0", EDITED, "less")

    async def resume(self) -> None:
        """Resume the agent with the decisions."""
        await self.runner.resume(self.graph, self.gateway)

    def run_elsewhere(self, result: Result) -> None:
        """Run the call in another process; stop the turn before it gets the result."""
        self.gateway.claim_and_die(self.gateway.only())
        end = Transition.EXECUTE if result.ok else Transition.FAIL
        self.gateway.end("ap0.0", end)
        self.gateway.items["ap0.0"] = self.gateway.only().with_(result=result)

    async def speak(self) -> None:
        """Cut the turn off by new input."""
        await self.runner.say(self.graph, "never mind")


async def executed(world: World) -> None:
    await world.resume()


async def executed_and_cut_off(world: World) -> None:
    world.run_elsewhere(Result(ok=True, summary="paid 1 to ada"))
    await world.speak()


async def failed(world: World) -> None:
    world.error = ValueError("the bank hung up")
    await world.resume()


async def failed_and_cut_off(world: World) -> None:
    failed = Result(ok=False, summary="ValueError", failure=FailureKind.RAISED)
    world.run_elsewhere(failed)
    await world.speak()


async def not_started(world: World) -> None:
    world.graph = world.process(world.model, kind=bool)
    await world.resume()


async def not_started_and_cut_off(world: World) -> None:
    refused = Result(ok=False, summary="no", failure=FailureKind.NOT_STARTED)
    world.run_elsewhere(refused)
    await world.speak()


async def frozen(world: World) -> None:
    world.gateway.down.add("forbid claim")
    await world.resume()


async def lapsed(world: World) -> None:
    world.gateway.end("ap0.0", Transition.LAPSE)
    await world.resume()


async def cut_off_before_it_ran(world: World) -> None:
    await world.speak()


async def raised_and_rejected(world: World) -> None:
    world.gateway.take_back("ap0.0")
    world.gateway.reject("ap0.0", "no")
    await world.resume()


async def raised_and_expired(world: World) -> None:
    world.gateway.take_back("ap0.0")
    world.gateway.end("ap0.0", Transition.EXPIRE)
    await world.resume()


async def raised_and_cut_off(world: World) -> None:
    world.gateway.take_back("ap0.0")
    await world.speak()


async def recheck_differs(world: World) -> None:
    world.version = 2
    await world.resume()
    world.gateway.reject("ap0.0", "not in this state")
    await world.resume()


async def in_doubt_and_cut_off(world: World) -> None:
    world.gateway.claim_and_die(world.gateway.only())
    await world.speak()


async def found(world: World, finding: Finding) -> None:
    world.gateway.claim_and_die(world.gateway.only())
    await world.resume()
    answer = world.gateway.reconcile("ap0.0", finding)
    snapshot = await world.runner.state(world.graph)
    answers = {snapshot.interrupts[0].id: answer.model_dump(mode="json")}
    await world.runner.run(world.graph, Command(resume=answers), STRICT)


async def found_executed(world: World) -> None:
    await found(world, Finding.EXECUTED)


async def found_and_left(world: World) -> None:
    await found(world, Finding.SKIP)


ENDS: tuple[Callable[[World], Awaitable[None]], ...] = (
    executed,
    executed_and_cut_off,
    failed,
    failed_and_cut_off,
    not_started,
    not_started_and_cut_off,
    frozen,
    lapsed,
    cut_off_before_it_ran,
    raised_and_rejected,
    raised_and_expired,
    raised_and_cut_off,
    recheck_differs,
    in_doubt_and_cut_off,
    found_executed,
    found_and_left,
)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_nothing_that_is_told_of_an_edit_claims_more_than_its_end(
    memory: InMemorySaver, end: Callable[[World], Awaitable[None]]
) -> None:
    world = World(memory)
    await world.edit()
    await end(world)

    item = world.gateway.only()
    values = (await world.runner.state(world.graph)).values
    told = edit_messages(values)
    fields = json.dumps(
        [
            values.get("keyturn_edits", []),
            [m.model_dump(mode="json") for m in told],
            [m.additional_kwargs for m in values["messages"]],
            [m.artifact for m in values["messages"] if isinstance(m, ToolMessage)],
        ]
    )
    read = "\n".join(
        str(m.content)
        for m in world.model.seen[-1]
        if isinstance(m, ToolMessage | HumanMessage)
    )
    shown = edited_view(values["messages"])
    page = json.dumps([one.model_dump(mode="json") for one in shown])
    everything = f"{fields}\n{read}\n{page}".lower()

    has_run = item.state is ItemState.EXECUTED
    assert ("really happened" in read) == has_run
    assert [m.record.outcome is EditOutcome.EXECUTED for m in told] == [has_run] * len(
        told
    )
    if has_run:
        assert [m.record for m in told] == [told_edit(item)]
    else:
        assert [each for each in RAN if each in everything] == []
    may_have_run = has_run or bool(world.paid) or item.has_started
    if may_have_run and end not in {not_started, not_started_and_cut_off}:
        assert [each for each in NOT_RUN if each in everything] == []
    else:
        (call,) = next(m for m in shown if isinstance(m, AIMessage)).tool_calls
        assert call["args"] == ASKED


def _lower(text: str) -> str:
    if text == "nobody":
        raise ValueError("nobody has no mailbox")
    return text.lower()


Mailbox = Annotated[str, AfterValidator(_lower)]
REFUSED = "nobody has no mailbox"


class ReadingGateway(FakeGateway):
    """A gateway that puts misread edits to people again, unless it is deaf."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        super().__init__()
        self.is_deaf = is_deaf
        self.readings: list[Reading] = []

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        item, reading = self.items[request.item_id], request.reading
        if reading and reading.action_hash == item.action_hash:
            self.readings.append(reading)
            if not self.is_deaf:
                self.take_back(item.id)
        return await super().claim(request)


@pytest.fixture
def sent() -> list[str]:
    return []


@pytest.fixture(params=["tool", "step"])
def graph_of(
    request: pytest.FixtureRequest,
    runner: Runner,
    memory: InMemorySaver,
    sent: list[str],
) -> Any:
    """Return a function that makes a graph which sends to a mailbox."""

    def send(to: Mailbox) -> str:
        """Send."""
        sent.append(to)
        return f"sent to {to}"

    def agent(gateway: FakeGateway) -> Any:
        call = calling(("send", {"to": "ada"}, "c1"))
        return build(gateway, [guarded(tool(send))], call, saver=memory)

    def node_graph(gateway: FakeGateway) -> Any:
        args = {"to": "ada"}
        return step_graph(runner, memory, "send", args, run=send, gateway=gateway)

    return agent if request.param == "tool" else node_graph


async def edited(
    runner: Runner, graph_of: Any, gateway: ReadingGateway, to: str
) -> Any:
    """Change the mailbox of a mail; return the graph that continued with it."""
    graph = graph_of(gateway)
    await runner.run(graph, {"messages": [("user", "go")], "outcome": None})
    gateway.edit(gateway.only().id, {"to": to})
    answers = await runner.answers(graph, gateway)
    await runner.run(graph, Command(resume=answers), STRICT)
    return graph


@pytest.mark.parametrize("to", ["Ada", "nobody"])
async def test_a_misread_edit_waits_for_people_again_with_its_reading(
    runner: Runner, graph_of: Any, sent: list[str], to: str
) -> None:
    gateway = ReadingGateway()

    graph = await edited(runner, graph_of, gateway, to)

    item, [reading] = gateway.only(), gateway.readings
    assert (item.is_pending, sent) == (True, [])
    assert reading.args == ({"to": "ada"} if to == "Ada" else None)
    assert (REFUSED in reading.problem) == (to == "nobody")
    gateway.edit(item.id, {"to": "bob"})
    await runner.resume(graph, gateway)
    assert (sent, gateway.only().state) == (["bob"], ItemState.EXECUTED)


@pytest.mark.parametrize("to", ["Ada", "nobody"])
async def test_a_gateway_that_grants_a_misread_edit_is_told_once_and_nothing_runs(
    runner: Runner, graph_of: Any, sent: list[str], to: str
) -> None:
    gateway = ReadingGateway(is_deaf=True)

    await edited(runner, graph_of, gateway, to)

    assert sent == []
    assert len(gateway.readings) == 1
    assert gateway.only().state is ItemState.FAILED
