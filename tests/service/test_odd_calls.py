"""Any call is evaluated, or its turn is refused in one of our sentences."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.decisions import Approve, Decided, Edit
from keyturn.gateway.approvals.evidence import HIDDEN, MAX_WORDS
from keyturn.gateway.errors import KeyturnError, NotAllowed
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Evidence, Result, RunRef, Tier, Verb
from keyturn.gateway.protocol.wire import (
    CallHint,
    Claimed,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.store.store import Store
from tests.bot.samples import frame
from tests.levels import examples
from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of

TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(
    ["", " ", "\x00", "\ud800", "a:b", "look_up_order", "process_refund", "odd"]
)
NUMBERS = st.sampled_from([math.nan, math.inf, -0.0, 1e400, 2**53, -(2**70), True, 0])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | TEXTS | NUMBERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)
RULES = load_policy(
    POLICY
    + """
  odd:
    tier: auto
    raise:
      - {to: approve, when: "args.amount > 5 || args.to.startsWith('a')", because: "x"}
      - {to: deny, when: "windows.refunds > 1000", because: "over 1,000 in a day"}
windows:
  refunds: {tools: [odd], by: args.to, sum: args.amount, within: 24h}
""",
    "policy.yml",
)
OBJECTS = st.dictionaries(TEXTS | st.sampled_from(["to", "amount"]), JSON, max_size=4)
SCHEMAS = OBJECTS | st.fixed_dictionaries(
    {"type": JSON, "properties": JSON, "required": JSON, "$ref": JSON, "pattern": JSON}
)


@st.composite
def odd_calls(draw: st.DrawFn) -> ProposedCall:
    """Return a call of any content, as the wire takes it."""
    return ProposedCall(
        tool=draw(TEXTS),
        args=draw(OBJECTS),
        tool_call_id=draw(TEXTS),
        hint=draw(st.none() | st.builds(CallHint, description=TEXTS)),
        original_args=draw(st.none() | OBJECTS),
        problem=draw(st.just("") | TEXTS),
    )


@st.composite
def odd_turns(draw: st.DrawFn) -> Turn:
    """Return a turn of any content, as the wire takes it."""
    calls = draw(st.lists(odd_calls(), min_size=1, max_size=4))
    ref = TurnRef(
        agent=draw(TEXTS), thread=draw(TEXTS), ns=draw(TEXTS), message_id=draw(TEXTS)
    )
    return Turn(
        ref=ref,
        calls=tuple(calls),
        says=draw(TEXTS),
        schemas={one.tool: draw(SCHEMAS) for one in calls},
    )


async def evaluated(harness: ServiceHarness, turn: Turn) -> tuple[Verdict, ...] | str:
    """Return the verdicts, or the sentence that refuses the turn."""
    try:
        return await harness.agents.submit(turn)
    except KeyturnError as error:
        return str(error)


@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(turn=odd_turns())
async def test_any_turn_is_evaluated_or_refused(store: Store, turn: Turn) -> None:
    await store.conn.command("FLUSHALL")
    harness = ServiceHarness(store, RULES)

    found = await evaluated(harness, turn)

    if isinstance(found, str):
        assert found.endswith(".")
    else:
        assert [one.tool for one in found] == [one.tool for one in turn.calls]
    assert await evaluated(harness, turn) == found


async def test_a_nameless_call_is_denied_alone(store: Store) -> None:
    harness = ServiceHarness(store)

    _, [nameless, known] = await harness.submit(("", {}), ("look_up_order", {}))

    assert (nameless.kind, known.kind) == (VerdictKind.DENY, VerdictKind.RUN)
    assert "names no tool" in nameless.reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"agent": ""}, "agent=''"),
        ({"thread": ""}, "thread=''"),
        ({"message_id": ""}, "message_id=''"),
        ({"ns": "\ud800"}, "half of a surrogate pair"),
        ({"nested_in": RunRef(agent="\ud800", thread="t")}, "half of a surrogate pair"),
    ],
)
async def test_a_turn_that_cannot_be_stored_is_refused_with_what_is_wrong(
    store: Store, change: dict[str, Any], words: str
) -> None:
    ref = TurnRef(agent="support", thread="t1", message_id="m1").with_(**change)
    call = ProposedCall(tool="look_up_order", args={}, tool_call_id="c1")

    with pytest.raises(NotAllowed, match=words):
        await ServiceHarness(store).agents.submit(Turn(ref=ref, calls=(call,)))


@pytest.mark.parametrize("value", ["\ud800", float("nan")])
async def test_a_bad_schema_stops_only_edits(store: Store, value: str | float) -> None:
    harness = ServiceHarness(store, RULES)
    call = ProposedCall(tool="odd", args={"to": "a", "amount": 9}, tool_call_id="c")
    ref = TurnRef(agent="support", thread="t", message_id="m")

    (verdict,) = await harness.agents.submit(
        Turn(ref=ref, calls=(call,), schemas={"odd": {"": value}})
    )

    assert verdict.kind is VerdictKind.HOLD
    assert Verb.EDIT not in verdict.allow


# A 64-bit id reaches the tool digit by digit, through store, card, form and rules.

ID, NEXT = 1234567890123456789, 1234567890123456788


@pytest.mark.parametrize("runs", [ID, NEXT])
async def test_every_approved_digit_runs(harness: ServiceHarness, runs: int) -> None:
    ref, [verdict] = await harness.submit(("process_refund", {"id": ID}))
    click = await harness.click(verdict)
    decision = Approve() if runs == ID else Edit(args={"id": runs})
    shown = json.dumps(card(frame(await harness.approval(verdict.item_id))).blocks)

    await harness.reviews.decide(click, decision, ANA)
    reply = await harness.agents.claim(claim_of(ref, verdict))

    assert str(ID) in shown
    assert isinstance(reply, Claimed)
    assert digest.action_args(reply.action) == {"id": runs}
    assert f'"id":{runs}' in reply.action
    assert (await harness.item(verdict.item_id)).args == {"id": runs}


@pytest.mark.parametrize(("asked", "tier"), [(ID, Tier.DENY), (NEXT, Tier.APPROVE)])
async def test_a_rule_tells_two_ids_apart_that_a_double_does_not(
    harness: ServiceHarness, asked: int, tier: Tier
) -> None:
    rule = f"raise: [{{to: deny, when: args.id == {ID}, because: it is blocked}}]"
    text = POLICY.replace(
        "  process_refund: {tier: approve}",
        f"  process_refund: {{tier: approve, {rule}}}",
    )
    harness.put_policy(of=text)

    _, [verdict] = await harness.submit(("process_refund", {"id": asked}))

    assert float(ID) == float(NEXT)
    is_denied = verdict.kind == "deny"
    assert is_denied is (tier is Tier.DENY)


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
    result = Result(ok=True, summary=f"Charged {CARD} by tok_4711", payload="whole")
    await harness.ran(claim_of(ref, verdict), result)

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


async def test_long_words_need_no_hidden_argument(store: Store) -> None:
    harness = ServiceHarness(store, load_policy(PRIVATE, "policy.yml"))
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    send = ProposedCall(tool="send", args={}, tool_call_id="c0")
    words, kept = f"{MANY}xyz", f"{MANY}… (3 more characters)"

    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(send,), says=words))
    await harness.decide(verdict, Approve())
    await harness.ran(claim_of(ref, verdict), Result(ok=True, summary=words))

    assert (await harness.approval(verdict.item_id)).says == kept
    ended = (await harness.item(verdict.item_id)).result
    assert ended == Result(ok=True, summary=kept)
