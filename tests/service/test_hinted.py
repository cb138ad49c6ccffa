"""An agent's hint counts from submit to execution, within its limits."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from keyturn.gateway.approvals.decisions import Approve, Decided
from keyturn.gateway.approvals.evidence import HIDDEN
from keyturn.gateway.approvals.private_text import MAX_WORDS
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Evidence, Result, Tier
from keyturn.gateway.protocol.wire import (
    CallHint,
    Claimed,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from keyturn.gateway.store.store import Store
from tests.service.harness import POLICY, ServiceHarness, claim_of

OPEN = "{tier: approve, overridable: true, exp"
LISTED = "  process_refund: {tier: approve}\n"
RUN = VerdictKind.RUN
LOOSE = POLICY.replace("{tier: approve}", "{tier: approve, overridable: true}")


def turn_of(tool: str, hint: CallHint | None, message_id: str = "m1") -> Turn:
    ref = TurnRef(agent="support", thread="t1", message_id=message_id)
    call = ProposedCall(tool=tool, args={"amount": 1}, tool_call_id="c0", hint=hint)
    return Turn(ref=ref, calls=(call,))


async def test_a_hinted_call_is_decided_and_runs_once(harness: ServiceHarness) -> None:
    turn = turn_of("look_up_order", CallHint(hold=True, description="Look"))
    (verdict,) = await harness.agents.submit(turn)
    item = await harness.item(verdict.item_id)

    outcome = await harness.decide(verdict, Approve())
    reply = await harness.agents.claim(claim_of(turn.ref, verdict))

    assert verdict.kind is VerdictKind.HOLD
    assert item.tier is Tier.APPROVE
    assert item.agent_description == "Look"
    assert isinstance(outcome, Decided)
    assert isinstance(reply, Claimed)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (POLICY, VerdictKind.HOLD),
        (LOOSE, VerdictKind.RUN),
        (POLICY.replace("{tier: approve, exp", OPEN), VerdictKind.HOLD),
        (POLICY.replace("{tier: approve, exp", OPEN).replace(LISTED, ""), RUN),
    ],
)
async def test_a_person_is_waived_only_where_policy_says_so(
    harness: ServiceHarness, policy: str, kind: VerdictKind
) -> None:
    harness.put_policy(of=policy)

    (verdict,) = await harness.agents.submit(
        turn_of("process_refund", CallHint(hold=False))
    )

    assert verdict.kind is kind


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Tool execution requires approval", ""),
        ("Tool execution requires approval\n\nTool: pay\nArgs: {'a': '\n'}", ""),
        (
            "Tool execution requires approval by Bo",
            "Tool execution requires approval by Bo",
        ),
    ],
)
async def test_the_default_description_of_langchain_is_no_word_of_the_agents(
    harness: ServiceHarness, text: str, shown: str
) -> None:
    turn = turn_of("look_up_order", CallHint(hold=True, description=text))
    (verdict,) = await harness.agents.submit(turn)

    assert (await harness.item(verdict.item_id)).agent_description == shown


HOSTS = POLICY.replace(
    "{tier: approve, exp", "{tier: approve, link_hosts: [shop.example], exp", 1
)


@pytest.mark.parametrize(
    ("url", "is_shown"),
    [
        ("https://shop.example/orders/1?by=a%20b", True),
        ("https://shop.example", True),
        ("https://evil.example/orders/1", False),
        ("https://shop.example@evil.example/", False),
        ("https://shop.example.evil.example/", False),
        ("http://shop.example/", False),
        ("https://shop.example/\u202e", False),
        ("javascript:alert(1)//https://shop.example/", False),
    ],
)
async def test_a_source_keeps_an_address_on_a_host_of_the_policy_only(
    harness: ServiceHarness, url: str, *, is_shown: bool
) -> None:
    harness.put_policy(of=HOSTS)
    sources = (Evidence(title=f"Order\n{CARD}", url=url), Evidence(title="b", text="c"))

    (verdict,) = await harness.agents.submit(
        turn_of("process_refund", CallHint(evidence=sources))
    )

    first, second = (await harness.item(verdict.item_id)).evidence
    assert first.title == "Order (card number hidden)"
    assert (first.url, bool(first.text)) == ((url, False) if is_shown else ("", True))
    assert second == sources[1]


def test_a_source_with_a_blank_title_is_refused() -> None:
    with pytest.raises(ValidationError, match="a title that people can read"):
        Evidence(title=" \n", text="c")


# Private data in the words of agents and tools is hidden before it is stored.

CARD = "4111 1111 1111 1111"
MANY = "x" * MAX_WORDS
PRIVATE = """
version: 1
privacy: {hide: [card_numbers, email_addresses]}
roles: {all: {users: [U0ANA]}}
defaults: {needs: all}
tools:
  charge: {tier: approve, redact: [args.token]}
  send: {tier: approve}
"""


async def test_words_of_agent_and_tool_are_redacted(store: Store) -> None:
    harness = ServiceHarness(store, load_policy(PRIVATE, "policy.yml"))
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
async def test_long_words_keep_their_start(store: Store, says: str, kept: str) -> None:
    harness = ServiceHarness(store, load_policy(PRIVATE, "policy.yml"))
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    charge = ProposedCall(tool="charge", args={"token": "tok_4711"}, tool_call_id="c0")

    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(charge,), says=says))

    opened = await harness.approval(verdict.item_id)
    assert opened.says.startswith(kept)
    assert len(opened.says) < MAX_WORDS + 40
