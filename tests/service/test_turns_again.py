"""A turn that is submitted again gets its first answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.approvals.timing import authorization_ms
from keyturn.gateway.errors import CorruptRecord, RefReused
from keyturn.gateway.policy.evaluate import Evaluation
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.submit.proposals import (
    MAX_BATCH,
    EvaluatedCall,
    Proposal,
    Source,
    TurnPrecedents,
    propose,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store
from tests.levels import examples
from tests.service.harness import ServiceHarness

REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 5})
WIRE: tuple[str, JsonObject] = ("wire_money", {"amount": 5})
ORDER: tuple[str, JsonObject] = ("look_up_order", {"id": "1"})

RULE = "raise: [{to: escalate, when: args.amount > 500, because: over 500}]"


@pytest.mark.parametrize(
    "calls",
    [[REFUND], [REFUND, REFUND, REFUND], [REFUND, ORDER], [ORDER], [WIRE, WIRE]],
    ids=["one", "one card", "beside another", "no record", "two cards"],
)
async def test_a_turn_gets_its_first_answer_again(
    harness: ServiceHarness, calls: list[tuple[str, JsonObject]]
) -> None:
    ref, verdicts = await harness.submit(*calls)

    _, again = await harness.submit(*calls, message_id=ref.message_id)

    assert again == verdicts


async def test_a_raised_turn_has_its_first_answer(harness: ServiceHarness) -> None:
    listed = "process_refund: {tier: approve"
    harness.put_policy((listed, f"{listed}, {RULE}"))
    ref, (verdict,) = await harness.submit(REFUND)
    edit = Edit(args={"amount": 900}, reason="the whole order")
    await harness.decide(verdict, edit)
    raised = await harness.item(verdict.item_id)
    assert (raised.tier, raised.args) != (verdict.tier, {"amount": 5})

    _, (again,) = await harness.submit(REFUND, message_id=ref.message_id)

    assert again == verdict
    assert len(await harness.opened()) == 1


async def test_a_damaged_turn_is_not_opened_again(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(REFUND)
    approval = verdict.item_id.rpartition(".")[0]
    keys, conn = harness.keys, harness.store.conn
    pinned = keys.document(approval)

    await conn.command("DEL", pinned)
    _, again = await harness.submit(REFUND, message_id=ref.message_id)

    assert again == (verdict,)
    assert len(await harness.opened()) == 1


async def test_a_record_under_another_id_is_refused(harness: ServiceHarness) -> None:
    _, (one,) = await harness.submit(REFUND)
    ref, (two,) = await harness.submit(REFUND)
    keys, conn = harness.keys, harness.store.conn
    approvals = [verdict.item_id.rpartition(".")[0] for verdict in (one, two)]
    moved = [
        (key(approvals[0]), key(approvals[1])) for key in (keys.head, keys.document)
    ]
    for source, target in moved:
        await conn.command("RENAME", target, f"{target}:aside")
        await conn.command("COPY", source, target)

    with pytest.raises(CorruptRecord):
        await harness.item(two.item_id)
    assert (await harness.item(one.item_id)).id == one.item_id
    turn = keys.turn(digest.turn_key(tenant="default", **ref.names))
    await conn.command("DEL", turn, *(f"{target}:aside" for _, target in moved))


async def test_a_turn_without_verdicts_is_refused(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(REFUND)
    await forget(harness, b":turn:")

    with pytest.raises(CorruptRecord):
        await harness.submit(REFUND, message_id=ref.message_id)

    assert await harness.opened() == [verdict.item_id.rpartition(".")[0]]


async def test_a_lost_turn_keeps_the_ids_of_the_ledger(harness: ServiceHarness) -> None:
    ref, verdicts = await harness.submit(REFUND, WIRE)
    await harness.command("FLUSHALL")

    _, again = await harness.submit(REFUND, WIRE, message_id=ref.message_id)

    assert [one.item_id for one in again] == [one.item_id for one in verdicts]


async def forget(harness: ServiceHarness, part: bytes) -> None:
    """Delete every key of the store with this in its name."""
    conn = harness.store.conn
    for key in cast("list[bytes]", await conn.command("KEYS", "*")):
        if part in key:
            await conn.command("DEL", key)


# A turn's name is valid for its calls only; other calls under it are refused.

REF = TurnRef(agent="support", thread="t1", message_id="m1")


def call(tool: str, call_id: str = "c0", amount: JsonValue = 10) -> ProposedCall:
    return ProposedCall(tool=tool, args={"amount": amount}, tool_call_id=call_id)


TOOLS = ["process_refund", "look_up_order", "drop_table", "wire_money"]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("call_id", "amount", "renamed", "kept"),
    [
        pytest.param("c1", 10, "", 0, id="another id"),
        pytest.param("c0", 999, "", 0, id="other arguments"),
        pytest.param("c0", 10.5, "", 0, id="a fraction more"),
        pytest.param("c0", 10, "send_email", 0, id="another tool"),
        pytest.param("c1", 10, "", 1, id="a call more"),
        pytest.param("c0", 999, "", 1, id="the same id twice"),
    ],
)
async def test_other_calls_are_refused(
    harness: ServiceHarness,
    tool: str,
    call_id: str,
    amount: float,
    renamed: str,
    kept: int,
) -> None:
    first = call(tool)
    before = await harness.agents.submit(Turn(ref=REF, calls=(first,)))
    other = call(renamed or tool, call_id, amount)
    calls = (*[first] * kept, other)

    with pytest.raises(RefReused, match=rf"'{call_id}'.*does not run") as caught:
        await harness.agents.submit(Turn(ref=REF, calls=calls))

    assert "999" not in str(caught.value)
    assert await harness.agents.submit(Turn(ref=REF, calls=(first,))) == before


@pytest.mark.parametrize("tool", TOOLS)
async def test_equal_calls_have_one_answer(harness: ServiceHarness, tool: str) -> None:
    calls = (call(tool, "c0", 10), call(tool, "c1", 20), call(tool, "c2", 30))
    before = await harness.agents.submit(Turn(ref=REF, calls=calls))

    again = await harness.agents.submit(
        Turn(ref=REF, calls=(call(tool, "c2", 30.0), calls[0]))
    )

    assert again == (before[2], before[0])


# Calls that are submitted one by one in a thread wait side by side in own lanes.

PENDING, SUPERSEDED = ItemState.PENDING, ItemState.SUPERSEDED


@pytest.mark.parametrize(
    ("lanes", "states"),
    [
        (["", "", ""], [SUPERSEDED, SUPERSEDED, PENDING]),
        (["a", "b", "c"], [PENDING] * 3),
        (["a", "b", "a"], [SUPERSEDED, PENDING, PENDING]),
        (["", "a", ""], [SUPERSEDED, SUPERSEDED, PENDING]),
    ],
)
async def test_only_a_turn_of_the_same_lane_supersedes(
    store: Store, lanes: list[str], states: list[ItemState]
) -> None:
    harness, items = ServiceHarness(store), list[str]()
    for number, lane in enumerate(lanes):
        ref = TurnRef(agent="support", thread="t1", ns=lane, message_id=f"m{number}")
        call = ProposedCall(
            tool="process_refund", args={"amount": number}, tool_call_id="c"
        )
        (verdict,) = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
        items.append(verdict.item_id)

    assert [(await harness.item(one)).state for one in items] == states


KEYS = Keys("default")
RULES = load_policy("version: 1\ndefaults: {tier: auto}\n", "p.yml")
MINUTE_MS = 60_000
ONE, OTHER = (
    Requirement(approvals=1, of=(Role(name=name, users=("U0ANA",)),))
    for name in ("support", "finance")
)
evaluations = st.builds(
    Evaluation,
    tier=st.sampled_from([Tier.NOTIFY, Tier.APPROVE, Tier.ESCALATE]),
    requirement=st.sampled_from([ONE, OTHER]),
    allow=st.just(tuple(Verb)),
    policy_digest=st.just("sha256:1"),
    channel=st.sampled_from(["C0ONE", "C0TWO"]),
    ttl_ms=st.sampled_from([MINUTE_MS, 60 * MINUTE_MS]),
    authorization_ms=st.sampled_from([0, MINUTE_MS]),
    remind_at_ms=st.sampled_from([0, MINUTE_MS // 2]),
    escalate_at_ms=st.sampled_from([0, MINUTE_MS // 4]),
    escalate_to=st.sampled_from(["", "#leads"]),
)
turns = st.lists(
    st.tuples(st.sampled_from(["refund", "email"]), evaluations), max_size=20
)


def proposed(
    turn: list[tuple[str, Evaluation]], args: Sequence[JsonObject] = ()
) -> Proposal:
    calls = [
        ProposedCall(
            tool=tool, args=args[n] if args else {"n": n}, tool_call_id=f"c{n}"
        )
        for n, (tool, _) in enumerate(turn)
    ]
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    turn_of = Turn(ref=ref, calls=tuple(calls))
    effects = [""] * len(calls)
    source = Source(TurnPrecedents(RULES, turn_of, KEYS, effects, {}))
    pairs = zip(calls, turn, strict=True)
    return propose([EvaluatedCall(call, one) for call, (_, one) in pairs], source)


@given(turns)
@settings(max_examples=examples(200))
def test_each_call_has_its_own_deadline(turn: list[tuple[str, Evaluation]]) -> None:
    found = proposed(turn)

    items = {
        item.id: (approval, item)
        for approval in found.approvals
        for item in approval.items
    }
    assert len(items) == len(turn)
    for verdict, (tool, evaluation) in zip(found.verdicts, turn, strict=True):
        approval, item = items[verdict.item_id]
        assert item.tool == tool
        waits = approval.waiting
        if evaluation.tier is Tier.NOTIFY:
            assert approval.ttl_ms == authorization_ms(evaluation.authorization_ms)
        else:
            assert approval.ttl_ms == evaluation.ttl_ms
            assert waits.remind_at_ms == evaluation.remind_at_ms
            assert waits.escalate_at_ms == evaluation.escalate_at_ms


@given(st.integers(1, 250), evaluations)
@settings(max_examples=examples(25), deadline=None)
def test_calls_of_one_kind_share_few_cards(count: int, evaluation: Evaluation) -> None:
    found = proposed([("refund", evaluation.with_(tier=Tier.APPROVE))] * count)

    most = MAX_BATCH if count > MAX_ITEMS else MAX_ITEMS
    assert len(found.approvals) == -(-count // most)
