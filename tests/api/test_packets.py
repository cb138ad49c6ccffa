"""A reading of one approval carries all that a person needs to decide it."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.approval_views import CallView
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from tests.api.api_stack import ApiStack
from tests.service.harness import ANA, BEN, CHLOE, POLICY, still_members

RULES = POLICY.replace(
    "wire_money: {tier: escalate}",
    """wire_money:
    tier: escalate
    description: "Send {args.amount}"
    link: "https://bank.example/{args.to}"
    effect: reversible
    redact: [args.pin]
    same_by: [args.to]""",
).replace("channel:", "link_hosts: [bank.example], channel:")
REF = TurnRef(agent="support", thread="t1", message_id="m1")
# No hash, id or time has "pin" before its digits.
ARGS: JsonObject = {"amount": 120, "to": "ada", "pin": "pin1234"}


async def wire(stack: ApiStack, message_id: str = "m1", agent: str = "support") -> str:
    """Ask for a transfer; return the approval."""
    stack.harness.policy = load_policy(RULES, "policy.yml")
    call = ProposedCall(
        tool="wire_money",
        args=ARGS,
        tool_call_id="c0",
        original_args={"amount": "120.0", "to": "ada", "pin": "pin1234"},
        state=BusinessState(value={"balance": 500}),
    )
    ref = REF.with_(message_id=message_id, thread=message_id, agent=agent)
    turn = Turn(ref=ref, calls=(call,), says="Trust me.")
    (verdict,) = await stack.harness.agents.submit(turn)
    return verdict.item_id.partition(".")[0]


async def read(stack: ApiStack, approval: str) -> dict[str, Any]:
    """Read an approval over HTTP."""
    async with stack.client() as client:
        reply = await client.get(f"/v1/approvals/{approval}")
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    return found


async def test_words_rule_effect_link_state_and_digest_are_in_it(
    stack: ApiStack,
) -> None:
    approval = await wire(stack)

    found = await read(stack, approval)

    [call] = found["calls"]
    record = await stack.harness.approval(f"{approval}.0")
    assert found["digest"] == record.digest
    assert found["policy_digest"] == record.policy_digest
    assert found["agent_says"] == "Trust me."
    assert "120.0" in call["agent_wrote"]
    assert call["description"] == "Send 120"
    assert call["link"] == "https://bank.example/ada"
    assert call["effect"] == "reversible"
    assert call["reasons"]
    assert call["state_asked"] == call["state_now"] == {"value": {"balance": 500}}
    assert "pin1234" not in str(found)


async def test_a_missing_role_is_named_also_with_enough_people(stack: ApiStack) -> None:
    approval = await wire(stack)
    for person in (ANA, BEN):
        click = await stack.harness.click_on(f"{approval}.0")
        await stack.harness.reviews.decide(
            click, Approve(reason="fine"), person, voters=still_members
        )

    [call] = (await read(stack, approval))["calls"]

    assert [vote["by"]["user"] for vote in call["votes"]] == ["U0ANA", "U0BEN"]
    assert {vote["reason"] for vote in call["votes"]} == {"fine"}
    assert call["needs"] == [
        {"votes": 2, "of": ["senior", "support"]},
        {"votes": 1, "of": ["senior"]},
    ]
    assert call["missing"] == [{"votes": 1, "of": ["senior"]}]
    [senior] = [role for role in call["roles"] if role["name"] == "senior"]
    assert senior["users"] == ["U0CHLOE"]


async def test_an_edit_is_in_it_with_its_person_and_reason(stack: ApiStack) -> None:
    approval = await wire(stack)
    edit = Edit(args={**ARGS, "amount": 80, "pin": "pin5678"}, reason="the agreed part")
    click = await stack.harness.click_on(f"{approval}.0")
    await stack.harness.reviews.decide(click, edit, ANA)

    found = await read(stack, approval)

    [call] = found["calls"]
    assert call["edit"]["by"]["user"] == "U0ANA"
    assert call["edit"]["reason"] == "the agreed part"
    rows = {
        row["name"]: (row["before"], row["after"]) for row in call["edit"]["changes"]
    }
    assert rows["amount"] == (120, 80)
    assert "pin1234" not in str(found)
    assert "pin5678" not in str(found)


@pytest.mark.parametrize("earlier_agent", ["support", "billing"])
async def test_precedents_of_other_agents_name_nobody(
    stack: ApiStack, earlier_agent: str
) -> None:
    earlier = await wire(stack, "m0", earlier_agent)
    click = await stack.harness.click_on(f"{earlier}.0")
    await stack.harness.reviews.decide(click, Approve(), ANA)
    click = await stack.harness.click_on(f"{earlier}.0")
    await stack.harness.reviews.decide(click, Approve(), CHLOE, voters=still_members)

    [call] = (await read(stack, await wire(stack)))["calls"]

    [precedent] = call["precedents"]
    assert call["same_by"]
    assert precedent["state"] == "authorized"
    is_own = earlier_agent == "support"
    assert precedent["agent"] == ("support" if is_own else "")
    assert bool(precedent["by"]) is is_own


def test_members_of_the_agent_are_marked_by_their_names() -> None:
    named = {name for name in CallView.model_fields if name.startswith("agent_")}
    assert named == {"agent_description", "agent_wrote"}
