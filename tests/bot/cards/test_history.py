"""The thread under a card shows its history and its reminders."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.blocks import Message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.buttons import menu, snooze, time_buttons
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.inquiries import ask_requester, inquiries
from keyturn.bot.cards.reminders import (
    Call,
    channel_escalation,
    escalation,
    newly_needed,
    reminder,
    still_in_doubt,
    undelivered,
    waits_again,
    with_reviewers,
)
from keyturn.bot.cards.table import noticed, precedents
from keyturn.bot.delivery.card_publisher import policy_decision_digest
from keyturn.bot.ids import Action
from keyturn.bot.modals import call_form as modal
from keyturn.bot.modals import details
from keyturn.bot.modals.choose import confirmation, opened, view
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.precedents import Past, Precedent, WindowTotal
from keyturn.gateway.approvals.record import Approval, Inquiry, Item, Waiting
from keyturn.gateway.approvals.repeating import args_hash
from keyturn.gateway.approvals.requirement import Requirement, Revocation, Role
from keyturn.gateway.approvals.timing import with_end
from keyturn.gateway.approvals.waiting_changes import extend
from keyturn.gateway.protocol.records import ItemState, Person, Result, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.sandbox.blockkit import validate_modal
from tests.bot import readable
from tests.bot.cards.test_card_snapshots import expiring_apart
from tests.bot.markup_audit import assert_tame, objects
from tests.bot.samples import (
    ANA,
    BEN,
    KIM,
    LATER,
    NOW,
    REFUND,
    TEAM,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
    in_state,
)
from tests.bot.snapshots import CARD_TEXTS, assert_all_same
from tests.bot.strategies import CANARY

N, S = EventName, ItemState
ESCALATED = a_refund(tier=Tier.ESCALATE, requirement=TWO)
EDITED = edited(a_refund(), REFUND | {"amount": 449.5}, reason="half was broken")
BY_BEN = f"{TEAM}/U0BEN"


def note(name: EventName, item: Item, **changes: object) -> str:
    """Return the line of an event about the only call of a card; "" for none."""
    return line(name, an_approval(item), item=item.id, **changes)


def line(name: EventName, approval: Approval, **changes: object) -> str:
    event = Event(name=name, tenant="acme", approval=approval.id)
    made = thread_note(event.with_(**changes), approval)
    return readable.readable(made.blocks, made.text) if made else ""


def together(**data: str) -> str:
    """Return the line of a decision about several calls."""
    several = an_approval(*(a_refund(index=n) for n in range(4)))
    return line(N.APPROVAL_DECIDED, several, data=data)


def more_time() -> str:
    """Return the line of more time for all calls except the first to expire."""
    approval = expiring_apart()
    third = approval.items[2].with_(latest_at_ms=approval.items[2].expires_at_ms)
    groups = frozenset({"S0SUPPORT"})
    ana = Reviewer(
        team=TEAM, user="U0ANA", usergroups=groups, account=AccountKind.MEMBER
    )
    change = extend(approval.replacing(third), ana, NOW)
    assert isinstance(change, Change)
    made = thread_note(change.events[0], change.approval)
    assert made is not None
    return readable.readable(made.blocks, made.text)


ONE_OF_TWO = ESCALATED.with_(votes=(a_vote(ESCALATED, ANA),))
TWO_OF_TWO = ESCALATED.with_(votes=(a_vote(ESCALATED, ANA), a_vote(ESCALATED, BEN)))
VOTED = EDITED.with_(votes=(a_vote(EDITED, ANA),))
DONE = in_state(a_refund(), S.EXECUTED, result=Result(ok=True, summary="R-1"))
FIRST_OF_TWO = an_approval(in_state(an_item({}), S.EXPIRED), an_item({}, index=1))
REJECTED = in_state(a_refund(), S.REJECTED, text="*no*")
ANSWERED = in_state(a_refund(), S.ANSWERED, text="ask first")
NOTES = {
    "one of two": note(N.ITEM_VOTED, ONE_OF_TWO),
    "two of two, and the senior lacks": note(N.ITEM_VOTED, TWO_OF_TWO),
    "an own edit": note(N.ITEM_EDITED, in_state(EDITED, S.EXECUTED)),
    "an edit that needs others": note(
        N.ITEM_EDITED, edited(ESCALATED, REFUND | {"amount": 1200})
    ),
    "an edit that expired": note(N.ITEM_EDITED, in_state(VOTED, S.EXPIRED)),
    "approved by several": note(N.ITEM_AUTHORIZED, in_state(ESCALATED, S.AUTHORIZED)),
    "another person's edit, approved": note(
        N.ITEM_AUTHORIZED, in_state(EDITED, S.AUTHORIZED, by=BEN)
    ),
    "rejected": note(N.ITEM_REJECTED, REJECTED),
    "answered": note(N.ITEM_ANSWERED, ANSWERED),
    "expired": note(N.ITEM_EXPIRED, in_state(a_refund(), S.EXPIRED)),
    "expired, one of two calls": line(
        N.ITEM_EXPIRED, FIRST_OF_TWO, item=FIRST_OF_TWO.items[0].id
    ),
    "done": note(N.ITEM_EXECUTED, DONE),
    "failed": note(N.ITEM_FAILED, in_state(a_refund(), S.FAILED)),
    **{
        f"a doubt, {found}": note(N.ITEM_RECONCILED, DONE, actor=BY_BEN, reason=found)
        for found in ("executed", "rerun", "skip")
    },
    "withdrawn together": together(withdrawn="0-1", rejected="2"),
    "the first of two people": together(approved="0-2", edited="3", waiting="0-1,3"),
    "the first of several people": together(approved="0", waiting="0", left_out="1"),
    "more time for the others": more_time(),
}


def test_each_event_has_its_line() -> None:
    assert_all_same(CARD_TEXTS, "history", NOTES)


@pytest.mark.parametrize(
    ("name", "item", "changes"),
    [
        (N.APPROVAL_OPENED, a_refund(), {}),
        (N.ITEM_EXECUTING, in_state(a_refund(), S.EXECUTING), {}),
        (N.ITEM_VOTED, a_refund(), {}),
        (N.ITEM_EDITED, a_refund(), {}),
        # Who approves alone is not mentioned for it.
        (N.ITEM_AUTHORIZED, in_state(a_refund(), S.AUTHORIZED), {}),
        (N.ITEM_AUTHORIZED, in_state(EDITED, S.AUTHORIZED), {}),
        (N.ITEM_RECONCILED, in_state(a_refund(), S.EXECUTED), {"reason": "else"}),
    ],
)
def test_what_is_no_news_has_no_line(
    name: EventName, item: Item, changes: dict[str, object]
) -> None:
    assert note(name, item, **changes) == ""


def test_an_event_about_another_approval_has_no_line() -> None:
    assert line(N.ITEM_EXPIRED, an_approval(), item="ap_other.0") == ""


PEOPLE = Role(name="support", users=("U0ANA", "U0BEN", "U0KIM"))
OF_PEOPLE = a_refund(requirement=Requirement(approvals=2, of=(PEOPLE,)))
CALLED = Waiting(roles=(Role(name="senior", users=("U0BEN",)),), channels=("#leads",))
APART = expiring_apart()


def edit_of_one() -> Call:
    """Return the note about the edit of one call of a card for different people."""
    edit = edited(an_item(index=0, requirement=TWO), {"amount": 1}, by=ANA)
    other = an_item(index=1, requirement=Requirement(approvals=1, of=(PEOPLE,)))
    note = Message((), "Edited: process_refund.")
    return with_reviewers(note, an_approval(edit, other, principals=(KIM,)), edit)


def reopened() -> Approval:
    """Return a card of two calls; the second one is asked anew for longer."""
    items = [an_item({"n": n}, index=n) for n in range(2)]
    why = Revocation(reason="The policy changed.", at_ms=NOW)
    later = items[1].with_(expires_at_ms=LATER + 60_000, revoked=why)
    return with_end(an_approval(*items), later)


def two_calls() -> Approval:
    """Return a card whose first call Ben has approved, and whose second he has not."""
    first, second = an_item(index=0, requirement=TWO), an_item(index=1, requirement=TWO)
    return an_approval(first.with_(votes=(a_vote(first, BEN),)), second)


def in_doubt() -> Message:
    item = an_item(requirement=Requirement(approvals=1, of=(PEOPLE,)))
    call = still_in_doubt(an_approval(item.with_(state=ItemState.IN_DOUBT)))
    assert call is not None
    assert call.roles == {"support"}
    return call.message


MESSAGES = {
    "a reminder names neither who asked nor who has voted": reminder(
        an_approval(OF_PEOPLE.with_(votes=(a_vote(OF_PEOPLE, ANA),)), principals=(KIM,))
    ).message,
    "a reminder names those whom another call of the card needs": reminder(
        two_calls()
    ).message,
    "a reminder of calls that expire apart": reminder(APART).message,
    "people who are needed now, too": newly_needed(
        an_approval(an_item(requirement=TWO)), but={"support"}
    ).message,
    "people who are needed for calls that expire apart": newly_needed(
        APART, but=()
    ).message,
    "an edit names those who decide the edited call": edit_of_one().message,
    "a doubt names those who can settle it": in_doubt(),
    "a call that waits again has its own end": waits_again(
        reopened(), "It changed."
    ).message,
    "others are called, and a channel": escalation(
        an_approval(waiting=CALLED), {"#leads": ""}
    ).message,
    "all are called where a channel could not be told": escalation(
        an_approval(OF_PEOPLE, waiting=CALLED.with_(channels=("#leads", "C0GENERAL"))),
        {"#leads": "not_in_channel", "C0GENERAL": ""},
    ).message,
    "another channel, without a card": channel_escalation(an_approval(), ""),
    "another channel, with calls that expire apart": channel_escalation(
        APART, "C0APPROVALS"
    ),
    "a card that cannot be updated": undelivered(
        APART, channel="C0APPROVALS", why="is_archived", is_posted=True
    ),
}


def test_each_message_names_those_who_can_act_and_the_time() -> None:
    texts = {
        name: readable.readable(one.blocks, one.text) for name, one in MESSAGES.items()
    }

    assert_all_same(CARD_TEXTS, "reminders", texts)


def test_an_edit_notes_the_roles_that_it_mentions() -> None:
    assert edit_of_one().roles == {"senior", "support"}


def test_nobody_is_reminded_of_a_doubt_that_is_settled() -> None:
    executed = an_approval(OF_PEOPLE.with_(state=ItemState.EXECUTED))

    assert still_in_doubt(executed) is None


def test_another_channel_reads_no_argument_and_no_markup_of_strangers() -> None:
    item = an_item({"x": CANARY}, tool=f"*{CANARY}*", tier=Tier.ESCALATE)

    note = channel_escalation(an_approval(item, agent=CANARY), "C0APPROVALS")

    assert_tame(note.blocks, note.text)
    assert "<#C0APPROVALS>" in readable.readable(note.blocks)


# Questions to the requester and the replies are on the card, as text alone.


ASKED = Inquiry(by=ANA, text="Was it broken?", at_ms=NOW)
REPLIED = Inquiry(by=KIM, text="It was.", at_ms=NOW, reply_ts="1.1")
HOSTILE = f"{CANARY} <!channel> *b* `c` \u202e <@U0BEN> ```\n> &lt;"


def asked_about(*items: int, **changes: object) -> Approval:
    calls = [a_refund(index=n) for n in items or (0,)]
    return an_approval(*calls, **changes)


def test_a_card_shows_the_newest_question_and_reply_while_it_waits() -> None:
    kept = {
        "one question": (ASKED,),
        "with its reply": (ASKED.with_(text="Older?"), ASKED, REPLIED),
    }
    over = in_state(a_refund(), ItemState.EXECUTED)
    texts = {
        f"{name}, {calls} calls": readable.readable(
            inquiries(frame(asked_about(*range(calls), inquiries=kept[name])))
        )
        for name in kept
        for calls in (1, 2)
    }
    texts["decided"] = readable.readable(
        inquiries(frame(an_approval(over, inquiries=(ASKED,))))
    )

    assert_all_same(CARD_TEXTS, "inquiries", texts)


def test_view_all_has_every_word() -> None:
    long = REPLIED.with_(text="word " * 599 + "end")
    approval = asked_about(0, 1, inquiries=(ASKED.with_(call=1), ASKED, long))

    views = [str(details.view(frame(approval), 0, n)) for n in (1, 2, 3)]
    other = str(details.view(frame(approval), 1, 1))

    assert any("word end" in one for one in views)
    assert str(views[0]).count("Was it broken?") == 1, "the other is about call 2"
    assert other.count("Was it broken?") == 2


def test_nobody_is_asked_about_a_call_that_waits_no_more() -> None:
    over = in_state(a_refund(), ItemState.EXECUTED)

    assert ask_requester(frame(asked_about()), 0)
    assert not ask_requester(frame(an_approval(over)), 0)
    assert not ask_requester(frame(asked_about(), now_ms=LATER), 0)


@pytest.mark.parametrize(
    ("tier", "hours", "offered"),
    [
        (Tier.APPROVE, 1, []),
        (Tier.APPROVE, 3, [Action.SNOOZE]),
        (Tier.APPROVE, 48, [Action.SNOOZE, Action.SNOOZE_OVERNIGHT]),
        (Tier.ESCALATE, 48, []),
    ],
)
def test_only_snoozes_that_end_in_time_are_offered_and_none_of_urgent_calls(
    tier: Tier, hours: int, offered: list[Action]
) -> None:
    ends = {"expires_at_ms": NOW + hours * 3_600_000}
    waiting = an_approval(a_refund(tier=tier, **ends), **ends)
    assert [one["action_id"] for one in snooze(frame(waiting))] == offered


@pytest.mark.parametrize(
    "requester", [None, Person(team="T0", user="cron"), Person(team="T0", user="")]
)
def test_nobody_is_asked_who_cannot_be_mentioned(requester: Person | None) -> None:
    approval = an_approval(requester=requester)

    assert not ask_requester(frame(approval), 0)


def test_what_a_menu_has_no_room_for_stands_beside_it() -> None:
    shown = frame(asked_about(), now_ms=LATER - 1)
    offered = [*ask_requester(shown, 0) * 4, *time_buttons(shown, is_in_full=False)]

    beside, more = menu(offered)

    assert beside["action_id"] == "extend"
    assert more["type"] == "overflow"
    assert len(json.loads(json.dumps(more["options"]))) == 5


def test_the_form_is_about_one_call_or_all_of_them() -> None:
    changed = edited(a_refund(), {"amount": 1, "order_id": HOSTILE, "reason": ""})
    decided = in_state(a_refund(), ItemState.REJECTED)
    both = frame(an_approval(changed, a_refund(index=1)))
    forms = {
        "one call": modal.question_form(both, 0, KIM),
        "all calls": modal.question_form(both, None, KIM),
        "the call that waits": modal.question_form(
            frame(an_approval(decided, a_refund(index=1))), None, KIM
        ),
    }

    for form in forms.values():
        assert_tame(form["blocks"])
        assert not validate_modal(form)
    texts = {name: readable.view(one) for name, one in forms.items()}
    assert_all_same(CARD_TEXTS, "inquiry_forms", texts)


# A card shows how the same call ended before, and names only if it may.


STATE = ItemState
SAME = args_hash("process_refund", a_refund().args)
AGENT = an_approval(a_refund()).agent


def a_precedent(state: ItemState, *by: Person, **changes: object) -> Precedent:
    """Return the same refund of another card."""
    found = Precedent(call="ap_other.0", state=state, agent=AGENT, by=by, at_ms=NOW)
    return found.with_(**{"args_hash": SAME, **changes})


def with_past(*found: Precedent, **changes: object) -> Item:
    """Return a pending refund, with the facts about earlier calls."""
    return a_refund().with_(past=Past(precedents=found).with_(**changes))


RAN = a_precedent(STATE.EXECUTED, ANA)
REJECTED_BEFORE = a_precedent(STATE.REJECTED, ANA, reason="already got *one*")
OTHER = RAN.with_(args_hash="other")
WAITS = a_precedent(STATE.PENDING)
DAY = WindowTotal(
    window="refunds_24h",
    by="args.customer_id",
    others_micro=1_348_500_000,
    within_ms=24 * 3_600_000,
    is_count=False,
)
BURST = DAY.with_(
    window="burst", by="", is_count=True, others_micro=3_000_000, within_ms=600_000
)
ALONE = DAY.with_(window="alone", others_micro=0)
WITH_ITEMS = {
    "ran": [with_past(RAN.with_(by=(ANA, BEN)))],
    "approved, may run": [with_past(a_precedent(STATE.AUTHORIZED, ANA))],
    "approved, is running": [with_past(a_precedent(STATE.EXECUTING, ANA))],
    "in doubt": [with_past(a_precedent(STATE.IN_DOUBT, ANA))],
    "let run by the policy": [with_past(a_precedent(STATE.AUTHORIZED))],
    "rejected": [with_past(REJECTED_BEFORE)],
    "rejected for another agent, whose words are for others": [
        with_past(REJECTED_BEFORE.with_(agent="billing"))
    ],
    "waits on another card": [with_past(WAITS, same_by=("args.order_id",))],
    "other arguments": [with_past(OTHER, same_by=("args.order_id", "args.user.id"))],
    "a name that could be markup": [with_past(OTHER, same_by=("args.*bold*",))],
    "windows": [with_past(totals=(ALONE, DAY, BURST))],
    "several of a batch": [
        with_past(*([] if n == 1 else [RAN])).with_(index=n) for n in range(5)
    ],
    "nine that wait elsewhere": [with_past(WAITS).with_(index=n) for n in range(9)],
    "a call of the same card": [with_past(RAN.with_(call="ap_7f3k.1"))],
    "a decided call": [in_state(with_past(RAN), STATE.AUTHORIZED)],
}


def test_a_banner_says_what_became_of_the_same_call() -> None:
    texts = {
        name: readable.readable(precedents(frame(an_approval(*items))))
        for name, items in WITH_ITEMS.items()
    }

    assert_all_same(CARD_TEXTS, "precedents", texts)
    # A mention would notify people of a call that is not theirs to decide.
    assert "<@" not in str(texts)


def test_calls_that_wait_elsewhere_are_marked() -> None:
    nine = an_approval(*WITH_ITEMS["nine that wait elsewhere"])

    assert noticed(nine) == set(range(9))


def test_a_card_is_drawn_again_when_the_same_was_done_elsewhere() -> None:
    def digest(*found: Precedent) -> str:
        return policy_decision_digest(an_approval(with_past(*found)), b"k")

    done = a_precedent(STATE.AUTHORIZED, ANA)

    assert digest() == digest(a_precedent(STATE.REJECTED, ANA))
    assert digest() != digest(done) != digest(done.with_(state=STATE.EXECUTED))


@pytest.mark.parametrize("count", [2, MAX_ITEMS, MAX_ITEMS + 1, 56])
@pytest.mark.parametrize("is_same", [True, False])
def test_doubled_calls_are_marked_everywhere(count: int, *, is_same: bool) -> None:
    calls = [_effect_of(n, f"{78000 + n % (count - 1)}", 1) for n in range(count - 1)]
    last = _effect_of(count - 1, "78000", 1 if is_same else 2)
    approval = an_approval(*calls, last)
    said = "are the same call" if is_same else "have the same order_id"
    sentence = f"Calls 1 and {count} {said}."

    blocks = [*card(frame(approval)).blocks]
    (all_of,) = [
        one for one in objects(blocks) if one.get("action_id") == Action.APPROVE_ALL
    ]
    form = view(frame(approval), opened(approval))
    confirmed = opened(approval).with_(approve=tuple(range(count)))
    texts = [str(one.get("text")) for one in objects(blocks)]

    assert any(text == f"⚠️ {sentence}" for text in texts)
    assert sentence in str(all_of["confirm"])
    assert sum(text.startswith(("⚠️ 1", f"⚠️ {count}")) for text in texts) == 2
    assert sentence in str(form["blocks"])
    assert f"⚠️ {count}. " in str(form["blocks"])
    assert sentence in str(confirmation(frame(approval), confirmed)["blocks"])


def _effect_of(index: int, order: str, amount: int) -> Item:
    past = Past(same_by=("args.order_id",))
    args: JsonObject = {"order_id": order, "amount": amount}
    return an_item(args, index=index, effect=order, past=past)
