"""A card stays inside the budget of text when everything on it is at its longest."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from twokey.bot.cards.approval import card
from twokey.bot.cards.frame import MAX_ROWS, rows_of, text_budget
from twokey.gateway.approvals.authorization import Floor
from twokey.gateway.approvals.inquiry import MAX_QUESTION, MAX_REPLY, Inquiry
from twokey.gateway.approvals.precedents import Past, Precedent, WindowTotal
from twokey.gateway.approvals.record import (
    Acknowledgement,
    Approval,
    Item,
    TriageResult,
    Waiting,
)
from twokey.gateway.approvals.requirement import (
    Asking,
    Observation,
    Role,
    SpotCheck,
)
from twokey.gateway.policy.fields import MAX_LINK
from twokey.gateway.protocol.business_state import BusinessState, with_state
from twokey.gateway.protocol.effect import Effect
from twokey.gateway.protocol.questions import Answered
from twokey.gateway.protocol.records import Person, Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Finding
from twokey.gateway.service.proposals import MAX_BATCH
from twokey.sandbox.blockkit import validate_message

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
    call = text_budget(an_approval(*[an_item({}, index=n) for n in range(count)])).call
    args = {"body": ("word " * 1_000)[: call - 360], "odd": ODD, "n": "9" * 50}
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
            approvals=20, of=(*MANY, *TWO.of), at_least={"r" * 200: 3, "s" * 64: 9}
        ),
    )
    after = {**args, "z": long} if index % 2 else {**args, "body": args["body"][1:]}
    if is_edited:
        item = edited(item, {**after}, reason=long)
    item = item.with_(
        requested=with_state(item.requested, BusinessState(value={"a": 1})),
        action=with_state(item.action, BusinessState(value={"a": filler * 900})),
    )
    votes = tuple(a_vote(item, voter) for voter in VOTERS)
    share = text_budget(an_approval(*[an_item({}, index=n) for n in range(count)])).text
    link = "https://shop.example/".ljust(min(share, MAX_LINK), "x")
    item = item.with_(past=_longest_past(filler), is_frozen=True)
    item = item.with_(floor=FLOOR, votes=votes, original_args={"body": long}, link=link)
    check = SpotCheck(of=MANY, asked_at_ms=NOW)
    item = item.with_(spot_check=check if state is ItemState.EXECUTED else None)
    return in_state(item, state, text=long, result=Result(ok=True, summary=long))


def _longest_past(filler: str) -> Past:
    people = tuple(voter.with_(name=filler * 80) for voter in VOTERS)
    done = Precedent(
        call="ap_1.0", state=ItemState.AUTHORIZED, agent=filler * 200, by=people
    )
    rejected = Precedent(
        call="ap_2.0",
        state=ItemState.REJECTED,
        agent=filler * 300,
        by=people,
        reason=filler * 300,
    )
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
    """Return a call of a table that takes as much text as any, beside a full table."""
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
    found = tuple(
        Observation(finding=Finding.RERUN, vote=vote, note=long, fence=0)
        for vote in votes[:3]
    )
    is_doubt = state is ItemState.IN_DOUBT
    item = item.with_(votes=votes, observations=found if is_doubt else ())
    return in_state(item, state, text=long, result=Result(ok=False, summary=long))


def _card_problems(approval: Approval) -> list[str]:
    longest = f"https://{'h' * 80}/{'p' * 120}"
    sent = tuple(one.user for one in VOTERS)
    message = card(replace(frame(approval), sent=sent, conversation=longest))
    problems = validate_message([*message.blocks], message.text, update=True)
    return [str(problem) for problem in problems]


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["x", "\u200b"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("is_edited", [True, False])
def test_the_fullest_card_is_still_accepted(
    count: int, filler: str, *, is_edited: bool
) -> None:
    for state in ItemState:
        items = [
            _fullest(filler, index, count, state, is_edited=is_edited)
            for index in range(count)
        ]
        approval = an_approval(
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

        assert _card_problems(approval) == [], state


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["x", "\u200b"])
@pytest.mark.parametrize("count", [7, 20, 56, MAX_BATCH])
def test_the_fullest_table_is_still_accepted(count: int, filler: str) -> None:
    mixed = [
        ItemState.IN_DOUBT,
        ItemState.FAILED,
        ItemState.PENDING,
        ItemState.EXECUTED,
    ]
    for states in ([ItemState.PENDING], [ItemState.IN_DOUBT], mixed):
        approval = an_approval(
            *(
                _fullest_row(filler, index, count, states[index % len(states)])
                for index in range(count)
            ),
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

        assert _card_problems(approval) == [], states


def test_calls_that_wait_get_the_rows_of_a_card() -> None:
    items = [an_item({}, index=n) for n in range(MAX_ROWS + 2)]
    items[0] = in_state(items[0], ItemState.REJECTED)

    shown = rows_of(an_approval(*items))

    assert [item.index for item in shown] == [1, 2, 3, 4, 5]


def test_a_refund_fits_on_a_card_of_five() -> None:
    assert (
        text_budget(an_approval(*[an_item({}, index=n) for n in range(5)])).call > 330
    )
