"""Draw hostile texts, arguments, schemas and approvals for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.policy_decision import Preview, PreviewKind
from keyturn.gateway.approvals.precedents import KINDS, Past, Precedent, WindowTotal
from keyturn.gateway.approvals.record import Approval, Item, TriageResult
from keyturn.gateway.approvals.requirement import SpotCheck
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import Evidence, ItemState, Result, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.samples import (
    ANA,
    BEN,
    KIM,
    LATER,
    NOW,
    ONE,
    SUPPORT,
    TWO,
    a_vote,
    an_approval,
    an_item,
    edited,
    in_state,
)
from tests.levels import examples

CANARY = "zQxCANARYxQz"
"""Stands in every hostile text; where it shows up, a stranger's bytes do."""

_ATTACKS = [
    f"<!channel> {CANARY}",
    f"<@U0ANA> *{CANARY}* _x_ ~y~ `z`",
    f"<https://evil.example|{CANARY}>",
    f"\u202e{CANARY}\u2066\u200b\U000e0041\u3164",
    f"{CANARY}\n\n\n\n\n\n\n  amount  1.00",
    f"a{CANARY}" + "\u0301" * 9,
    f"\u0440\u0430\u0443\u0440\u0430l.com {CANARY}",
    CANARY * 300,
    "\U0001d4b3" * 40 + CANARY,
    f"{CANARY}{{who}}{{0}}%s",
    "",
    " ",
    '"',
    "\t\r\n",
]

hostile = st.one_of(
    st.sampled_from(_ATTACKS),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60).map(
        lambda text: CANARY + text
    ),
)
"""Text that tries to be markup, to hide, to imitate or to overflow."""

numbers = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda x: not x.is_integer() or abs(x) < 2**53
    ),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, hostile),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(hostile, inner, max_size=4)
    ),
    max_leaves=8,
)


def quick(count: int) -> settings:
    """Return the settings of a property that draws whole approvals."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=examples(count), deadline=None, suppress_health_check=slow
    )


def _long(text: str, count: int) -> JsonObject:
    return {f"{CANARY}{n}": text[:200] * 40 for n in range(count)}


def _many(count: int) -> JsonObject:
    return {f"{CANARY}{n}": n for n in range(count)}


def _is_small_enough(args: JsonObject) -> bool:
    return len(digest.canonical(args)) < 60_000


arguments: st.SearchStrategy[JsonObject] = st.one_of(
    st.dictionaries(hostile, json_values, max_size=6),
    st.builds(_long, hostile, st.integers(1, 6)),
    st.integers(1, 400).map(_many),
).filter(_is_small_enough)


pasts = st.builds(
    Past,
    precedents=st.lists(
        st.builds(
            Precedent,
            call=st.sampled_from(["ap_other.0", "ap_other.1", "auto_1"]),
            state=st.sampled_from(sorted(KINDS)),
            agent=hostile,
            by=st.lists(hostile.map(lambda name: BEN.with_(name=name)), max_size=2).map(
                tuple
            ),
            reason=hostile,
            args_hash=st.just(""),
            at_ms=st.just(NOW),
        ),
        max_size=3,
    ).map(tuple),
    totals=st.lists(
        st.builds(
            WindowTotal,
            window=st.just("refunds_24h"),
            by=st.sampled_from(["", "args.customer", "requester"]),
            others_micro=st.integers(0, 2**53),
            within_ms=st.integers(1, 30 * 24 * 3_600_000),
            is_count=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    same_by=st.sampled_from([(), ("args.order_id",), ("args.<!channel>",)]),
)
"""What is known of earlier calls, with hostile text wherever text can be."""


previews = st.none() | st.sampled_from(PreviewKind).map(lambda kind: Preview(kind=kind))
spot_checks = st.none() | st.builds(
    SpotCheck,
    of=st.just((SUPPORT,)),
    asked_at_ms=st.sampled_from([0, NOW]),
    answer=st.sampled_from(["right", "wrong"]),
    by=st.none() | hostile.map(lambda name: BEN.with_(name=name)),
    at_ms=st.just(NOW),
)
"""No check, one that was drawn, one that waits, and one that somebody answered."""


SOURCES = st.builds(
    Evidence, title=hostile.filter(str.strip), text=hostile.filter(bool)
)


@st.composite
def items(draw: st.DrawFn, index: int = 0, tool: str = "") -> Item:
    """Draw an item in any state, with hostile text wherever text can be."""
    tier = draw(st.sampled_from([Tier.APPROVE, Tier.ESCALATE]))
    item = an_item(
        draw(arguments),
        tool=tool or draw(hostile) or "tool",
        index=index,
        tier=tier,
        requirement=TWO if tier is Tier.ESCALATE else ONE,
        reasons=tuple(draw(st.lists(hostile, max_size=3))),
        description=draw(hostile),
        evidence=tuple(draw(st.lists(SOURCES, max_size=2))),
        triage=draw(st.none() | st.builds(TriageResult, rationale=hostile)),
        allow=tuple(draw(st.lists(st.sampled_from(list(Verb)), unique=True))),
        requires_reason=draw(st.lists(st.sampled_from(Verb), unique=True).map(tuple)),
        idempotent=draw(st.booleans()),
        original_args=draw(st.none() | arguments),
        totals=draw(st.sampled_from([(), ("args.amount|eur", "args.n")])),
        preview=draw(previews),
    )
    if draw(st.booleans()):
        other = {**item.args, "added": draw(hostile)}
        item = edited(item, other, by=BEN, reason=draw(hostile))
    if draw(st.booleans()):
        item = item.with_(votes=(a_vote(item, ANA),))
    item = item.with_(past=draw(pasts), spot_check=draw(spot_checks))
    state = draw(st.sampled_from(list(ItemState)))
    result = Result(ok=True, summary=draw(hostile)) if draw(st.booleans()) else None
    return in_state(item, state, text=draw(hostile), result=result)


answers = st.builds(
    Answered,
    text=hostile,
    by=st.sampled_from([KIM, ANA.with_(name="<!channel>")]),
    at_ms=st.just(NOW),
)


@st.composite
def approvals(draw: st.DrawFn, most: int = 9) -> Approval:
    """Draw an approval of 1 to ``most`` items; many are of one tool, as on a card."""
    count = draw(st.one_of(st.just(1), st.integers(2, most)))
    tool = draw(hostile) if count > MAX_ITEMS else ""
    return an_approval(
        *[draw(items(index, tool)) for index in range(count)],
        says=draw(hostile),
        answered=draw(st.lists(answers, max_size=3).map(tuple)),
        agent=draw(hostile),
        requester=draw(st.sampled_from([None, KIM, ANA.with_(user=CANARY)])),
        version=draw(st.integers(1, 10**6)),
        rev=draw(st.integers(1, 10**6)),
    )


moments = st.sampled_from([NOW, LATER - 1, LATER, LATER + 10**9])
