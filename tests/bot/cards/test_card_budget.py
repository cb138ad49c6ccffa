"""A card stays inside the budget of text when everything on it is at its longest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.blocks import BadBlocks, ensure_valid_message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.call_rows import whole_calls
from keyturn.bot.cards.frame import TABLE_FROM, shares, text_budget
from keyturn.bot.cards.listing import boxes_of
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.precedents import Past, Precedent, WindowTotal
from keyturn.gateway.approvals.record import (
    Acknowledgement,
    Approval,
    Inquiry,
    Item,
    TriageResult,
    Waiting,
)
from keyturn.gateway.approvals.requirement import (
    Asking,
    Floor,
    Observation,
    Requirement,
    Role,
    SpotCheck,
)
from keyturn.gateway.approvals.waiting_changes import MAX_QUESTION, MAX_REPLY
from keyturn.gateway.policy.evaluate import Evaluation
from keyturn.gateway.policy.fields import MAX_LINK
from keyturn.gateway.protocol.digest import BusinessState, with_state
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import (
    Effect,
    Finding,
    ItemState,
    Person,
    Result,
    Tier,
    Verb,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.submit.proposals import MAX_BATCH
from tests.bot.samples import (
    LATER,
    NOW,
    TEAM,
    TWO,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
    in_state,
)
from tests.levels import examples, sample
from tests.service.test_cards_of_a_turn import proposed

ODD = "\u0430b\u200b c\u0430 " * 6
VOTERS = [Person(team=TEAM, user=f"U{'0' * 20}{n}") for n in range(8)]


MANY = (
    Role(name="s" * 64, usergroups=tuple(f"S{'0' * 19}{n}" for n in range(9))),
    Role(name="u" * 64, users=tuple(f"U{'0' * 18}{n}" for n in range(10, 99))),
    Role(name="q" * 64, asking=Asking(users=("U0Q",), quiet_until_ms=LATER)),
)
FLOOR = Floor(tier=Tier.APPROVE, reasons=(), requirement=TWO, policy_digest="p")


def _fullest(
    filler: str, index: int, count: int, state: ItemState, *, is_edited: bool
) -> Item:
    budget = text_budget(an_approval(*[an_item({}, index=n) for n in range(count)]))
    body = ("word " * 1_000)[: max(budget.row * 45 // 100 - 360, 10)]
    args = {"body": body, "odd": ODD, "n": "9" * 50}
    long = filler * 2_000
    item = an_item(
        {**args},
        index=index,
        tool="t" * 60,
        description=long,
        reasons=(long, long),
        triage=TriageResult(raised_to=Tier.ESCALATE, rationale=long),
        tier=Tier.ESCALATE,
        totals=("args.n|eur", "args.n", "args.n|usd"),
        effect_class=Effect.IRREVERSIBLE,
        requirement=TWO.with_(
            approvals=20,
            of=(*MANY, *TWO.of),
            also=tuple(
                Requirement(approvals=count, of=(Role(name=name, users=("U0ANA",)),))
                for name, count in (("r" * 200, 3), ("s" * 64, 9))
            ),
        ),
    )
    after = {**args, "z": long} if index % 2 else {**args, "body": args["body"][1:]}
    if is_edited:
        item = edited(item, {**after}, reason=long)
    item = item.with_(
        requested=with_state(item.requested, BusinessState(value={"a": 1})),
        action=with_state(item.action, BusinessState(value={"a": filler * 900})),
    )
    is_checked = state is ItemState.EXECUTED
    item = item.with_(
        votes=tuple(a_vote(item, voter) for voter in VOTERS),
        past=_longest_past(filler),
        is_frozen=True,
        floor=FLOOR,
        original_args={"body": long},
        link="https://shop.example/".ljust(min(budget.text, MAX_LINK), "x"),
        spot_check=SpotCheck(of=MANY, asked_at_ms=NOW) if is_checked else None,
    )
    return in_state(item, state, text=long, result=Result(ok=True, summary=long))


def _longest_past(filler: str) -> Past:
    people = tuple(voter.with_(name=filler * 80) for voter in VOTERS)
    done = Precedent(
        call="ap_1.0", state=ItemState.AUTHORIZED, agent=filler * 300, by=people
    )
    rejected = done.with_(state=ItemState.REJECTED, reason=filler * 300)
    total = WindowTotal(
        window="w" * 64,
        by="args." + "b" * 90,
        others_micro=2**53,
        within_ms=1,
        is_count=False,
    )
    return Past(
        precedents=(*[done] * 20, *[rejected] * 20),
        totals=(total,) * 9,
        same_by=("args." + "n" * 60,),
    )


def _longest_inquiries(filler: str) -> tuple[Inquiry, ...]:
    by = VOTERS[0].with_(name=filler * 80)
    asked = Inquiry(by=by, text=filler * MAX_QUESTION, at_ms=NOW)
    replied = asked.with_(text=filler * MAX_REPLY, reply_ts="1.1")
    return (*(asked, replied) * 9, asked, replied)


def _fullest_row(filler: str, index: int, count: int, state: ItemState) -> Item:
    """Return a call of a table with the longest possible text, in a full table."""
    long = filler * 2_000
    args = {f"f{n}": "w" * (300 // count + 18) for n in range(14)}
    item = an_item(
        {**args, "a": 1 if index % 2 else "x", "odd": ODD},
        index=index,
        tool="t" * 200,
        tier=Tier.ESCALATE if index % 2 else Tier.APPROVE,
        reasons=("listed", *(f"{n}" * 200 for n in range(index % 2 * 9))),
        totals=("args.a|eur", "args.f1", "args.a|number"),
        requirement=TWO.with_(approvals=20, of=(*MANY, *TWO.of)),
        past=_longest_past(filler),
        is_frozen=True,
        original_args={"a": long},
    )
    votes = tuple(a_vote(item, voter) for voter in VOTERS)
    seen = Observation(finding=Finding.RERUN, vote=votes[0], note=long, fence=0)
    found = tuple(seen.with_(vote=vote) for vote in votes[:3])
    is_doubt = state is ItemState.IN_DOUBT
    item = item.with_(votes=votes, observations=found if is_doubt else ())
    return in_state(item, state, text=long, result=Result(ok=False, summary=long))


def _crowded(items: Sequence[Item], filler: str) -> Approval:
    """Return an approval about which everything is known that a card can show."""
    return an_approval(
        *items,
        says=filler * 3_000,
        answered=(Answered(text=filler * 9_000, by=VOTERS[0], at_ms=NOW),) * 3,
        inquiries=_longest_inquiries(filler),
        agent=filler * 300,
        requester=Person(team=TEAM, user="U" + "0" * 29),
        escalated_at_ms=NOW,
        recent_requests=100_000,
        acknowledged=Acknowledgement(by=VOTERS[0], until_ms=LATER),
        waiting=Waiting(roles=(Role(name="r" * 64),), channels=("#" + "c" * 80,)),
    )


def _card_problems(approval: Approval) -> list[str]:
    longest = f"https://{'h' * 80}/{'p' * 120}"
    sent = tuple(one.user for one in VOTERS)
    message = card(replace(frame(approval), sent=sent, conversation=longest))
    try:
        ensure_valid_message(message.blocks, message.text, update=True)
    except BadBlocks as error:
        return [str(error)]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["x", "\u200b"])
@pytest.mark.parametrize("count", [1, 2, 3, MAX_ITEMS])
@pytest.mark.parametrize("is_edited", [True, False])
def test_the_fullest_card_fits(count: int, filler: str, *, is_edited: bool) -> None:
    for state in ItemState:
        items = [
            _fullest(filler, index, count, state, is_edited=is_edited)
            for index in range(count)
        ]
        approval = _crowded(items, filler)

        assert _card_problems(approval) == [], state


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["x", "\u200b"])
@pytest.mark.parametrize("count", sample([MAX_BATCH, 20, TABLE_FROM, 56], 2))
def test_the_fullest_table_is_still_accepted(count: int, filler: str) -> None:
    doubt, waits = ItemState.IN_DOUBT, ItemState.PENDING
    mixed = [doubt, ItemState.FAILED, waits, ItemState.EXECUTED]
    for states in ([waits], [doubt], mixed):
        items = [
            _fullest_row(filler, index, count, states[index % len(states)])
            for index in range(count)
        ]
        approval = _crowded(items, filler)

        assert _card_problems(approval) == [], states


def test_short_texts_get_their_length_and_long_ones_share_the_rest() -> None:
    assert shares(130, [10, 500, 20, 30, 90]) == [10, 35, 20, 30, 35]
    assert shares(-5, [10, 20]) == [0, 0]


WORDS = "the parcel came late and one cup was broken so we pay it back " * 2
SHAPES: dict[str, Callable[[int], JsonObject]] = {
    "a refund": lambda n: {"order_id": f"7{n:04}", "amount": 19.9 + n, "cause": "Late"},
    "one text": lambda n: {"text": f"{n} {WORDS}"[:107]},
    "two texts": lambda n: {"to": f"{n} {WORDS}"[:45], "why": f"{n} {WORDS}"[:46]},
    "lines": lambda n: {"text": f"Order {n}:\n{WORDS[:60]}\n\n{WORDS[:20]}\nAna"},
    "an id": lambda n: {"id": f"{n:04}".ljust(64, "f"), "at": "2026-11-28T20:00:00Z"},
    "many": lambda n: {f"f{one}": n for one in range(9)},
    "a link": lambda n: {"url": f"https://shop.example/{n:04}/".ljust(100, "x")},
}


@given(
    count=st.integers(1, MAX_BATCH),
    shape=st.sampled_from([*SHAPES]),
    are_of_many_tools=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_short_calls_of_every_shape_are_whole_and_approved_by_one_click(
    count: int, shape: str, *, are_of_many_tools: bool
) -> None:
    tools = [f"send_{n * are_of_many_tools}" for n in range(count)]
    asked = Evaluation(
        tier=Tier.APPROVE,
        requirement=TWO.with_(approvals=1),
        allow=tuple(Verb),
        policy_digest="sha256:1",
        channel="C0OPS",
        ttl_ms=LATER - NOW,
    )
    args = [SHAPES[shape](n) for n in range(count)]

    found = proposed([(tool, asked) for tool in tools], args).approvals

    most = MAX_ITEMS if are_of_many_tools else 33
    assert len(found) <= -(-count // most)
    for approval in found:
        assert all(
            sum(map(len, boxes_of(item, item.args))) <= 120 for item in approval.items
        )
        items = (item.with_(args_schema=None) for item in approval.items)
        shown = approval.with_(
            items=tuple(items), created_at_ms=NOW, expires_at_ms=LATER
        )
        offered = str([*card(frame(shown)).blocks])
        assert whole_calls(shown) == {*range(len(shown.items))}
        assert (Action.APPROVE_ALL if shown.is_batch else Action.APPROVE) in offered
        assert _card_problems(shown) == []


@pytest.mark.parametrize("count", range(2, MAX_ITEMS + 1))
def test_a_long_call_of_a_card_does_not_shorten_the_short_ones(count: int) -> None:
    short = [
        an_item(SHAPES["a refund"](n), index=n, tool=f"process_refund_{n}")
        for n in range(count - 1)
    ]
    long = an_item({"body": "word " * 2_000}, index=count - 1, tool="send_email")

    assert whole_calls(an_approval(*short, long)) == set(range(count - 1))
