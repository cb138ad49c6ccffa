"""Any call is evaluated, or its turn is refused in one of our sentences."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.errors import KeyturnError, NotAllowed
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import RunRef, Tier, Verb
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
async def test_what_runs_has_every_digit_that_was_approved(
    harness: ServiceHarness, runs: int
) -> None:
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
