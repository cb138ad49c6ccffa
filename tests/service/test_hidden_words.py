"""Private data in the words of agents and tools is hidden before it is stored."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.private_text import MAX_WORDS
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import CallHint, ProposedCall, Turn, TurnRef
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness, claim_of

CARD = "4111 1111 1111 1111"
MANY = "x" * MAX_WORDS
POLICY = """
version: 1
privacy: {hide: [card_numbers, email_addresses]}
roles: {all: {users: [U0ANA]}}
defaults: {needs: all}
tools:
  charge: {tier: approve, redact: [args.token]}
  send: {tier: approve}
"""


async def test_neither_the_agents_nor_the_tools_words_keep_it(
    store: Store,
) -> None:
    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    charge = ProposedCall(
        tool="charge", args={"token": "tok_4711", "amount": 5}, tool_call_id="c0"
    )
    hint = CallHint(description=f"Send {CARD} with TOK_4711", task=CARD)
    send = ProposedCall(tool="send", args={}, tool_call_id="c1", hint=hint)

    [verdict, _] = await harness.agents.submit(
        Turn(ref=ref, calls=(charge, send), says="For ana@example.com, tok_4711")
    )

    opened = await harness.approval(verdict.item_id)
    assert opened.says == ("For (e-mail address hidden), •••••• (hidden by policy)")
    assert opened.task == "(card number hidden)"
    assert opened.items[1].agent_description == (
        "Send (card number hidden) with •••••• (hidden by policy)"
    )
    # The requested call runs.
    assert opened.items[0].args["token"] == "tok_4711"

    await harness.decide(verdict, Approve())
    claimed = await harness.granted(claim_of(ref, verdict))
    result = Result(ok=True, summary=f"Charged {CARD} by tok_4711", payload="whole")
    await harness.agents.finish(verdict.item_id, claimed.fence, result)

    ended = (await harness.item(verdict.item_id)).result
    assert ended == result.with_(
        summary="Charged (card number hidden) by •••••• (hidden by policy)"
    )


@pytest.mark.parametrize(
    ("says", "kept"),
    [
        (MANY, MANY),
        (f"{MANY}xyz", f"{MANY}… (3 more characters)"),
        # Nothing is left of what the cut goes through.
        (f"{MANY[5:]} {CARD} x", f"{MANY[5:]} (car… (17 more characters)"),
        (f"{MANY[30:]} tok_4711 {MANY}", f"{MANY[30:]} {HIDDEN} xxx"),
        (MANY[:-4] + "secret" * 3000, f"{MANY[:-4]}secr… (17996 more characters)"),
    ],
)
async def test_of_very_long_words_the_beginning_is_kept(
    store: Store, says: str, kept: str
) -> None:
    harness = ServiceHarness(store, load_policy(POLICY, "policy.yml"))
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    charge = ProposedCall(tool="charge", args={"token": "tok_4711"}, tool_call_id="c0")

    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(charge,), says=says))

    opened = await harness.approval(verdict.item_id)
    assert opened.says.startswith(kept)
    assert len(opened.says) < MAX_WORDS + 40
