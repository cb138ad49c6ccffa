"""Which calls of a turn share a card: none changes the time of another."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.approvals.timing import authorization_ms
from keyturn.gateway.policy.evaluate import Evaluation
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import Tier, Verb
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
from tests.levels import examples

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
