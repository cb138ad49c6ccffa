"""People read the tool's own output; advice is only where the model reads it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import guarded
from keyturn.agent.messages import NOT_AGAIN, UNKNOWN_EFFECT
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.records import FailureKind, Tier
from tests.agent.agent_runner import Runner, build, by_call, pay
from tests.agent.fake_gateway import FakeGateway

ERRORS = {
    "raised": (ValueError("the bank hung up"), "ValueError: the bank hung up"),
    "refused inside": (NotAllowed("no"), "NotAllowed: no"),
    "no text": (KeyError(), "KeyError: "),
    "a lone surrogate": (OSError("\ud800"), "OSError: ?"),
}
ADVICE = ("repeat", "same call", "user", "unknown")


def _tool(error: Exception, kind: type = float) -> Any:
    def transfer(amount: Any, to: str) -> str:
        """Make a payment."""
        raise error

    transfer.__annotations__["amount"] = kind
    return guarded(StructuredTool.from_function(transfer, name="pay"))


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("tier", [Tier.APPROVE, Tier.NOTIFY])
async def test_the_stored_result_of_a_failure_is_the_tools_own_error(
    memory: InMemorySaver, name: str, tier: Tier
) -> None:
    error, said = ERRORS[name]
    gateway, runner = FakeGateway({"pay": tier}), Runner(is_async=True)
    graph = build(gateway, [_tool(error)], pay(), AIMessage("done"), saver=memory)
    end = await runner.say(graph, "pay")
    if tier is Tier.APPROVE:
        gateway.approve("ap0.0")
        end = await runner.resume(graph, gateway)

    result = gateway.only().result
    assert result is not None
    is_refused = isinstance(error, NotAllowed)
    kind = FailureKind.REFUSED if is_refused else FailureKind.RAISED
    assert (result.summary, result.failure) == (said, kind)
    assert [each for each in ADVICE if each in result.payload] == []
    told = by_call(end)["c1"].text
    assert said.partition(":")[0] in told
    assert told.endswith(UNKNOWN_EFFECT)


async def test_a_refusal_to_start_is_stored_as_its_reason_alone(
    memory: InMemorySaver,
) -> None:
    gateway, runner = FakeGateway(), Runner(is_async=True)
    graph = build(gateway, [_tool(ValueError())], pay(), saver=memory)
    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    changed = [_tool(ValueError(), kind=bool)]
    graph = build(gateway, changed, AIMessage("done"), saver=memory)

    told = by_call(await runner.resume(graph, gateway))["c1"].text

    result = gateway.only().result
    assert result is not None
    assert result.failure is FailureKind.NOT_STARTED
    assert "so it did not run" in result.summary
    stored = result.summary + result.payload
    assert [each for each in ADVICE if each in stored] == []
    assert told == f"{result.summary} {NOT_AGAIN} Tell the user."
