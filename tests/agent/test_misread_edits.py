"""An edit that the tool would not run exactly goes back to people, and nothing runs."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import AfterValidator

from keyturn.agent import guarded
from keyturn.agent.scripted_model import calling
from keyturn.gateway.protocol.records import ItemState, Reading
from keyturn.gateway.protocol.wire import ClaimReply, ClaimRequest
from tests.agent.agent_runner import STRICT, Runner, build, step_graph
from tests.agent.fake_gateway import FakeGateway


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
