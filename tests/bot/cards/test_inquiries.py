"""Questions to the requester and the replies are on the card, as text alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyturn.bot.cards.buttons import menu, time_buttons
from keyturn.bot.cards.inquiries import ask_requester, inquiries
from keyturn.bot.modals import call_form as modal
from keyturn.bot.modals import details
from keyturn.gateway.approvals.record import Approval, Inquiry
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.sandbox.blockkit import validate_modal
from tests.bot import readable
from tests.bot.markup_audit import assert_tame
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
from tests.bot.snapshots import assert_all_same
from tests.bot.strategies import CANARY

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

    assert_all_same(Path(__file__).parent / "snapshots", "inquiries", texts)


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

    for view in forms.values():
        assert_tame(view["blocks"])
        assert not validate_modal(view)
    texts = {name: readable.view(one) for name, one in forms.items()}
    assert_all_same(Path(__file__).parent / "snapshots", "inquiry_forms", texts)
