"""Questions to the requester and the replies are on the card, as text alone."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.buttons import menu, time_buttons
from keyturn.bot.cards.inquiries import (
    MOST_TEXT,
    ask_requester,
    inquiries,
)
from keyturn.bot.cards.queue import decidable_in_row
from keyturn.bot.modals import call_form as modal
from keyturn.bot.modals import details
from keyturn.gateway.approvals.record import Approval, Inquiry
from keyturn.gateway.approvals.waiting_changes import MAX_QUESTION, MAX_REPLY
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.sandbox.blockkit import validate_modal
from tests.bot.markup_audit import assert_tame, objects
from tests.bot.samples import (
    ANA,
    KIM,
    LATER,
    NOW,
    a_refund,
    an_approval,
    edited,
    frame,
    in_state,
)
from tests.bot.strategies import CANARY

ASKED = Inquiry(by=ANA, text="Was it broken?", at_ms=NOW)
REPLIED = Inquiry(by=KIM, text="It was.", at_ms=NOW, reply_ts="1.1")
HOSTILE = f"{CANARY} <!channel> *b* `c` \u202e <@U0BEN> ```\n> &lt;"
REQUESTED = {"requester": KIM}


def shown(approval: Approval) -> str:
    return str(card(frame(approval)).blocks)


def asked_about(*items: int, **changes: object) -> Approval:
    calls = [a_refund(index=n) for n in items or (0,)]
    return an_approval(*calls, **REQUESTED, **changes)


def test_the_newest_question_and_reply_are_shown_and_the_rest_counted() -> None:
    older = ASKED.with_(text="Older?")

    one = shown(asked_about(inquiries=(ASKED,)))
    both = shown(asked_about(inquiries=(older, ASKED, REPLIED)))

    assert "Was it broken?" in one
    assert "has not replied yet" in one
    assert "Was it broken?" in both
    assert "It was." in both
    assert "Older?" not in both
    assert "1 more of these are in Full details" in both
    assert f"<@{ANA.user}>" not in one.replace(f"<@{KIM.user}>", "")


def test_view_all_has_every_word() -> None:
    long = REPLIED.with_(text="word " * 599 + "end")
    approval = asked_about(0, 1, inquiries=(ASKED.with_(call=1), ASKED, long))

    views = [str(details.view(frame(approval), 0, n)) for n in (1, 2, 3)]
    other = str(details.view(frame(approval), 1, 1))

    assert any("word end" in one for one in views)
    assert str(views[0]).count("Was it broken?") == 1, "the other is about call 2"
    assert other.count("Was it broken?") == 2


def test_a_batch_says_where_to_read_it() -> None:
    open_ = shown(asked_about(0, 1, inquiries=(ASKED,)))
    answered = shown(asked_about(0, 1, inquiries=(ASKED, REPLIED)))

    assert "has not replied yet" in open_
    assert "*The requester replied:* see Full details" in answered


def test_a_card_that_asks_nobody_any_more_shows_neither() -> None:
    over = in_state(a_refund(), ItemState.EXECUTED)
    done = an_approval(over, **REQUESTED, inquiries=(ASKED, REPLIED))

    assert ASKED.text not in shown(done)
    assert "It was." in str(details.view(frame(done), 0, 1))
    assert not ask_requester(frame(done), 0)
    assert not ask_requester(frame(asked_about(), now_ms=LATER), 0)


@pytest.mark.parametrize(
    "requester", [None, Person(team="T0", user="cron"), Person(team="T0", user="")]
)
def test_nobody_is_asked_who_cannot_be_mentioned(requester: Person | None) -> None:
    approval = an_approval(requester=requester)

    assert not ask_requester(frame(approval), 0)


def test_a_call_about_which_was_asked_is_not_approved_in_a_row() -> None:
    assert decidable_in_row(asked_about()) is not None
    assert decidable_in_row(asked_about(inquiries=(ASKED,))) is None


def test_what_a_menu_has_no_room_for_stands_beside_it() -> None:
    shown = frame(asked_about(), now_ms=LATER - 1)
    offered = [*ask_requester(shown, 0) * 4, *time_buttons(shown, is_in_full=False)]

    beside, more = menu(offered)

    assert beside["action_id"] == "extend"
    assert more["type"] == "overflow"
    assert len(json.loads(json.dumps(more["options"]))) == 5


@pytest.mark.parametrize("filler", ["x", "\u200b", "&", "<"])
def test_all_of_it_stays_inside_its_budget(filler: str) -> None:
    by = ANA.with_(name=filler * 90)
    asked = Inquiry(by=by, text=filler * MAX_QUESTION, at_ms=NOW)
    replied = asked.with_(text=filler * MAX_REPLY, reply_ts="1.1")

    for kept in ((asked,) * 9, (asked, replied) * 9):
        texts = inquiries(frame(asked_about(inquiries=kept)))
        assert sum(map(text_in, texts)) <= MOST_TEXT


def text_in(block: object) -> int:
    """Count the characters of every text in a block."""
    texts = (each.get("text") for each in objects(block))
    return sum(len(one) for one in texts if isinstance(one, str))


def test_the_form_is_about_one_call_or_all_of_them() -> None:
    changed = edited(a_refund(), {"amount": 1, "order_id": HOSTILE, "reason": ""})
    approval = an_approval(changed, a_refund(index=1), **REQUESTED)

    one = modal.question_form(frame(approval), 0, KIM)
    every = modal.question_form(frame(approval), None, KIM)
    decided = in_state(changed, ItemState.REJECTED)
    rest = frame(an_approval(decided, a_refund(index=1), **REQUESTED))

    assert "About all *2 calls*" in str(every)
    assert "About the *1 call* that still waits." in str(
        modal.question_form(rest, None, KIM)
    )
    assert f"<@{KIM.user}> is mentioned in the thread" in str(one)
    for view in (one, every):
        assert_tame(view["blocks"])
        assert not validate_modal(view)
