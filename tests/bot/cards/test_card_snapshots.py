"""A card in each state reads as its text file, and the fullest card fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyturn.bot.blocks import BadBlocks, ensure_valid_message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.call_rows import whole_calls
from keyturn.bot.cards.frame import TABLE_FROM, Frame, shares, text_budget
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
    short_id,
)
from keyturn.gateway.approvals.requirement import (
    Asking,
    Floor,
    Observation,
    Requirement,
    Role,
    SpotCheck,
)
from keyturn.gateway.approvals.timing import with_end
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
from tests.bot.cards import test_notification, test_standing_card
from tests.bot.cards.test_table import refunds
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    LATER,
    LISTED,
    NOW,
    REFUND,
    SENIOR,
    TEAM,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
    handed,
    in_state,
)
from tests.bot.snapshots import CARD_TEXTS, assert_same
from tests.levels import examples, sample
from tests.service.test_turns_again import proposed

HALF = REFUND | {"amount": 449.5}
ESCALATED = a_refund(
    tier=Tier.ESCALATE,
    requirement=TWO,
    reasons=(LISTED, "refund over 500", "over 100 for this customer in 24 h"),
)
RAISED = a_refund(
    tier=Tier.ESCALATE,
    requirement=TWO,
    reasons=(
        LISTED,
        "Raised to escalate: triage, a model's opinion, asks for more care.",
    ),
    triage=TriageResult(
        raised_to=Tier.ESCALATE,
        score=80,
        rationale="*Urgent*: <!channel> the note asks its reader to approve at once.",
    ),
)
EDITED = edited(a_refund(), HALF, reason="Only half of it was broken")
EMAIL = an_item(
    {
        "to": "kim@example.com",
        "subject": "Your refund",
        "body": "Dear Kim,\n\nall well.",
    },
    tool="send_email",
    index=1,
    description="Write to kim@example.com",
)
DONE = Result(ok=True, summary="Refund R-1 of 449.50 GBP booked")
BROKEN = Result(ok=False, summary="payment provider: 503")
S = ItemState
SOON = NOW + 600_000
NOTED = a_refund(
    link="https://shop.example/orders/78291",
    effect_class=Effect.REVERSIBLE,
    is_frozen=True,
    original_args=REFUND | {"amount": "0899"},
)
CHECKED = Observation(finding=Finding.SKIP, vote=a_vote(a_refund(), BEN), fence=0)
REPORTED = {"finding": Finding.EXECUTED, "late_result": BROKEN}
EURO = ("args.amount|eur",)


def expiring_apart() -> Approval:
    """Return a card whose third call expires before the others."""
    approval = an_approval(*(an_item({"n": n}, index=n) for n in range(4)))
    return with_end(approval, approval.items[2].with_(expires_at_ms=SOON))


def paying(*calls: tuple[str, object]) -> Approval:
    """Return a card of calls of these tools with these amounts."""
    return an_approval(
        *(
            an_item({"amount": amount}, tool=tool, index=n, totals=EURO)  # type: ignore[dict-item]  # some are odd on purpose
            for n, (tool, amount) in enumerate(calls)
        )
    )


def finished_refunds() -> Approval:
    """Return many refunds that ended, two of them otherwise than the others."""
    items = [in_state(one, S.EXECUTED) for one in refunds(56).items]
    items[3] = in_state(items[3], S.FAILED)
    items[9] = in_state(items[9], S.REJECTED)
    return an_approval(*items)


CARDS: dict[str, Approval] = {
    "pending": an_approval(),
    "no_requester": an_approval(a_refund(), requester=None, says=""),
    "only_reject": an_approval(a_refund(allow=(Verb.REJECT,))),
    "escalated": an_approval(ESCALATED),
    "raised_by_triage": an_approval(RAISED),
    "one_of_two": an_approval(ESCALATED.with_(votes=(a_vote(ESCALATED, ANA),))),
    "two_of_two_but_no_senior": an_approval(
        ESCALATED.with_(votes=(a_vote(ESCALATED, ANA), a_vote(ESCALATED, BEN)))
    ),
    "raised_by_edit": an_approval(
        edited(ESCALATED, REFUND | {"amount": 1200.0}, reason="Plus a voucher"),
        version=2,
    ),
    "authorized": an_approval(in_state(a_refund(), ItemState.AUTHORIZED)),
    "executing": an_approval(in_state(a_refund(), ItemState.EXECUTING)),
    "edited_done": an_approval(in_state(EDITED, ItemState.EXECUTED, result=DONE)),
    "edited_by_another": an_approval(
        in_state(
            EDITED.with_(votes=(a_vote(EDITED, ANA), a_vote(EDITED, BEN))),
            ItemState.AUTHORIZED,
            by=BEN,
        )
    ),
    "left_in_doubt": an_approval(
        in_state(a_refund(), ItemState.FAILED).with_(finding=Finding.SKIP)
    ),
    "failed": an_approval(in_state(a_refund(), ItemState.FAILED, result=BROKEN)),
    "in_doubt": an_approval(in_state(a_refund(), ItemState.IN_DOUBT)),
    "in_doubt_idempotent": an_approval(
        in_state(a_refund(idempotent=True), ItemState.IN_DOUBT)
    ),
    "rejected": an_approval(
        in_state(a_refund(), ItemState.REJECTED, text="Already done, ticket 412")
    ),
    "answered": an_approval(
        in_state(a_refund(), ItemState.ANSWERED, text="Ask for a photo first")
    ),
    "expired": an_approval(in_state(a_refund(), ItemState.EXPIRED)),
    "superseded": an_approval(in_state(a_refund(), ItemState.SUPERSEDED)),
    "withdrawn": an_approval(in_state(a_refund(), ItemState.WITHDRAWN)),
    "lapsed": an_approval(in_state(a_refund(), ItemState.LAPSED)),
    "redacted": an_approval(
        an_item({"amount": 5, "card": {"number": "4111"}}, redact=("args.card.number",))
    ),
    "hostile": an_approval(
        an_item(
            {
                "url": "https://p\u0430ypal.com/x\u202egpj.exe",
                "note": "*bold* <!channel>\n  amount  1.00",
                "": " ",
            },
            tool="open\nurl",
            description="<@U0ANA> *look*",
        )
    ),
    "too_long": an_approval(an_item({"to": "kim@example.com", "body": "abc " * 2000})),
    "batch": an_approval(
        a_refund(),
        EMAIL,
        in_state(an_item({"n": 3}, index=2), ItemState.REJECTED, text="Ask first"),
    ),
    "batch_with_an_escalated_call": an_approval(ESCALATED, EMAIL),
    "batch_mixed": an_approval(
        in_state(a_refund(), ItemState.EXECUTED, result=DONE),
        in_state(EMAIL, ItemState.IN_DOUBT),
    ),
    "batch_done": an_approval(
        in_state(a_refund(), ItemState.EXECUTED),
        in_state(EMAIL, ItemState.REJECTED),
    ),
    "batch_of_nine": an_approval(*[an_item({"n": n}, index=n) for n in range(9)]),
    "tools_whose_names_are_markup": an_approval(
        *(
            an_item({}, index=n, tool=name)
            for n, name in enumerate(("refund", "<!channel>", "mail", "*bold*", "note"))
        )
    ),
    "denied": an_approval(a_refund(tier=Tier.DENY)),
    "with_every_note": an_approval(
        NOTED,
        recent_requests=11,
        answered=(Answered(text="Q: Which order?\nA: 78291", by=ANA, at_ms=NOW),),
        acknowledged=Acknowledgement(by=BEN, until_ms=LATER),
        waiting=Waiting(roles=(SENIOR,), channels=("#leads",)),
        escalated_at_ms=NOW,
    ),
    "batch_with_frozen_calls": an_approval(
        in_state(NOTED, S.REJECTED), NOTED.with_(index=1), a_refund(index=2)
    ),
    "expiring_apart": expiring_apart(),
    "named_act": an_approval(a_refund(act="refund")),
    "batch_of_named_acts": an_approval(
        a_refund(act="refund"), EMAIL.with_(act="e-mail")
    ),
    "totals_of_one_tool": refunds(3, totals=EURO).replacing(
        in_state(refunds(2, totals=EURO).items[1], S.EXECUTED)
    ),
    "totals_of_several_tools": paying(
        ("pay", 1), ("refund", 2), ("pay", 3), ("wire", 4), ("wire", "much")
    ),
    "spot_check": an_approval(
        in_state(a_refund(spot_check=SpotCheck(asked_at_ms=1)), S.EXECUTED)
    ),
    "edited_at_length": an_approval(
        in_state(
            edited(a_refund(), HALF | {"reason": "amount  2 → 3"}, by=BEN), S.EXECUTED
        )
    ),
    "edited_and_rejected": an_approval(in_state(EDITED, S.REJECTED)),
    "edited_and_expired": an_approval(
        in_state(EDITED.with_(votes=(a_vote(EDITED, ANA),)), S.EXPIRED)
    ),
    "doubt_that_ended": an_approval(
        in_state(a_refund(observations=(CHECKED,)), S.FAILED)
    ),
    "reported_otherwise": an_approval(in_state(a_refund(**REPORTED), S.EXECUTED)),
    "batch_reported_otherwise": an_approval(
        in_state(a_refund(), S.EXECUTED),
        in_state(a_refund(index=1, **REPORTED), S.EXECUTED),
    ),
    "batch_with_a_failure": an_approval(
        in_state(a_refund(), S.EXECUTED),
        in_state(EMAIL, S.FAILED, result=BROKEN),
    ),
    "many_that_ended": finished_refunds(),
    "handed_pending": an_approval(handed(a_refund(), S.PENDING)),
    "handed_authorized": an_approval(handed(a_refund(), S.AUTHORIZED)),
    "handing_over": an_approval(handed(a_refund(), S.HANDING_OVER)),
    "handed_over": an_approval(handed(EDITED, S.HANDED_OVER)),
    "handed_over_and_reported": an_approval(
        handed(a_refund(), S.HANDED_OVER, reported=BROKEN)
    ),
    "not_taken": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="answered_elsewhere")
    ),
    "not_taken_refused": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused", detail="KeyError: 'type'")
    ),
    "not_taken_failed": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="failed", detail="KeyError: 'type'")
    ),
    "not_taken_wanted_again": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused", again_by=BEN)
    ),
    "handed_lapsed": an_approval(handed(a_refund(), S.LAPSED)),
    "batch_handed": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused", detail="KeyError: 'type'"),
        handed(EMAIL, S.HANDED_OVER),
    ),
    "batch_partly_handed": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused"), handed(EMAIL, S.PENDING)
    ),
    "table_handed": an_approval(
        *(
            handed(an_item({"n": n}, index=n), S.NOT_TAKEN, problem=why, again_by=by)
            for n, (why, by) in enumerate(
                [("refused", None)] * 3 + [("failed", BEN)] + [("deleted", None)] * 3
            )
        )
    ),
    "batch_being_handed": an_approval(
        handed(a_refund(), S.HANDING_OVER), handed(EMAIL, S.PENDING)
    ),
}
MOMENTS = {
    "late": (an_approval(), LATER),
    "one_call_late": (expiring_apart(), SOON),
}


@pytest.mark.parametrize("calls", [1, 56])
def test_calls_of_the_same_card_are_no_other_requests(calls: int) -> None:
    items = [an_item({"n": n}, index=n) for n in range(calls)]

    read = readable(card(frame(an_approval(*items, recent_requests=10))).blocks)

    assert "in 10 minutes" not in read


@pytest.mark.parametrize("name", CARDS)
def test_a_card_reads_as_written_down(name: str) -> None:
    message = card(frame(CARDS[name]))

    assert_same(CARD_TEXTS, name, readable(message.blocks, message.text))


@pytest.mark.parametrize(
    "shown",
    [
        *map(frame, CARDS.values()),
        *map(frame, test_standing_card.CARDS.values()),
        *map(frame, test_notification.MESSAGES.values()),
        *(frame(approval, now_ms=now_ms) for approval, now_ms in MOMENTS.values()),
    ],
)
def test_every_card_leads_to_the_id_for_commands(shown: Frame) -> None:
    blocks = str(card(shown).blocks)

    assert f"`{short_id(shown.approval.id)}`" in blocks or Action.VIEW_ALL in blocks


@pytest.mark.parametrize("name", MOMENTS)
def test_a_call_past_its_time_says_so_and_has_no_buttons(name: str) -> None:
    approval, now_ms = MOMENTS[name]
    message = card(frame(approval, now_ms=now_ms))

    assert_same(CARD_TEXTS, name, readable(message.blocks, message.text))


def test_metadata_holds_ids_only() -> None:
    message = card(frame(an_approval()))

    assert message.metadata == {
        "event_type": "keyturn_card",
        "event_payload": {"approval": "ap_7f3k", "version": 1, "rev": 1},
    }


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
