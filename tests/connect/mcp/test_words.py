"""The texts of results for models, word by word, and decisions for programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.modals import details
from keyturn.connect.gate import HttpGate
from keyturn.connect.mcp.calls import call_id_of, turn_of
from keyturn.connect.mcp.results import DECISION
from keyturn.gateway.approvals.decisions import Approve, Decision, Edit, Reject, Respond
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.samples import frame
from tests.connect.mcp.conftest import AUTO_AND_HELD, Connect, World, modern
from tests.connect.mcp.test_calls import CANARY, text_of

ARGS = {"to": "ada", "amount": 5}
LESS: JsonObject = {"to": "ada", "amount": 3}

Act = Callable[[World, str], Awaitable[object]]


def decided(decision: Decision) -> Act:
    """Return an act that decides a call."""
    return lambda world, item_id: world.people.decide(item_id, decision)


async def expire(world: World, item_id: str) -> None:
    """Let the time to decide pass."""
    await world.people.overdue(item_id.partition(".")[0])
    await world.people.sweeper.sweep()


async def withdraw(world: World, item_id: str) -> None:
    """Withdraw a call in the name of its agent."""
    gate = HttpGate(world.stack.url, world.key)
    thread = (await world.people.approval(item_id)).thread
    await gate.withdraw(turn_of("coder", "billing", call_id_of(thread)).run_ref)
    await gate.aclose()


ACTS: dict[str, Act] = {
    "approve": decided(Approve()),
    "edit": decided(Edit(args=LESS, reason='too "much"')),
    "reject": decided(Reject(reason='no "way"')),
    "respond": decided(Respond(message="ask Ben")),
    "expired": expire,
    "withdrawn": withdraw,
}
GOLDEN = {
    "approve": '{"paid": 5, "to": "ada"}',
    "edit": """\
[keyturn:edited] A reviewer changed this call before it ran. \
Requested arguments: {"amount": 5, "to": "ada"}. \
Executed arguments: {"amount": 3, "to": "ada"}. \
Changed by: "ANA" (Slack user U0ANA). Their reason: "too \\"much\\"". \
The executed arguments are what really happened: use them from here on, tell the user \
about the change, and do not repeat the original call.
{"paid": 3, "to": "ada"}""",
    "reject": """\
A reviewer ("ANA") rejected this call, so it did not run. \
Their reason: "no \\"way\\"". Do not make the same call again. \
Tell the user, and continue only in a way that respects this decision.""",
    "respond": """\
This call did not run. A reviewer ("ANA") answered it instead: "ask Ben". \
Take this as the answer. Do not make the same call again.""",
    "expired": """\
Nobody decided in time, so the call did not run. \
Do not make the same call again. Tell the user, who may ask for it again.""",
    "withdrawn": """\
The request was withdrawn, so the call did not run. \
Do not make the same call again. Tell the user, who may ask for it again.""",
}
RAN, BY = {"approve", "edit"}, {"edit", "reject", "respond"}


@pytest.mark.parametrize("kind", GOLDEN)
async def test_a_model_reads_whether_its_call_ran_and_what_to_do(
    world: World, client_of: Connect, kind: str
) -> None:
    async with world.gate() as gate, client_of(gate) as client:
        # Listed first, so that the client checks each result against the schema.
        await client.list_tools()
        calling = asyncio.create_task(client.call_tool("pay", ARGS))
        [item_id] = await world.asked()
        await ACTS[kind](world, item_id)
        result = await calling
    assert text_of(result) == GOLDEN[kind]
    assert result.is_error is (kind not in RAN)
    executed = {"approve": [ARGS], "edit": [LESS]}.get(kind, [])
    assert [one["args"] for one in world.script.calls()] == executed
    decision = {"type": kind, "requested": ARGS, "approval": item_id.partition(".")[0]}
    decision |= {"executed": executed[0]} if executed else {}
    decision |= {"by": "ANA"} if kind in BY else {}
    assert (result.meta or {})[DECISION] == decision


async def test_a_denied_call_reaches_nobody(world: World, client_of: Connect) -> None:
    async with world.gate() as gate, client_of(gate) as client:
        result = await client.call_tool("drop", {})
    assert text_of(result) == (
        "The policy lists this tool as deny. So this call did not run. Do not make the "
        "same call again. Tell the user."
    )
    assert result.is_error
    assert (result.meta or {})[DECISION] == {"type": "denied", "requested": {}}
    assert not world.script.calls()
    assert await world.cards() == 0


async def test_a_hidden_argument_reaches_its_client_only(world: World) -> None:
    hidden = ("billing__pay: {tier: approve", "billing__pay: {redact: [args.to]")
    world.people.put_policy(hidden, of=AUTO_AND_HELD)
    asked: JsonObject = {"to": CANARY, "amount": 5}
    less: JsonObject = {"to": CANARY, "amount": 3}
    async with world.gate() as gate, modern(gate) as client:
        calling = asyncio.create_task(client.call_tool("pay", asked))
        [item_id] = await world.asked()
        await world.people.decide(item_id, Edit(args=less))
        result = await calling
    found: Any = (result.meta or {})[DECISION]
    assert (found["requested"], found["executed"]) == (asked, less)
    shown = frame(await world.people.approval(item_id))
    async with world.stack.client(world.key) as http:
        listed = (await http.get("/v1/approvals")).text
        listed += (await http.get(f"/v1/approvals/{item_id.partition('.')[0]}")).text
    # The card of the end, its details and the API show the change without the value.
    views = json.dumps([card(shown).blocks, details.view(shown, 0, 1)], default=str)
    assert CANARY not in views + listed
    assert "amount" in views
