"""A notification reads as in the text files, fits, and interprets nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from keyturn.bot.blocks import Message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.special_cards import many_ran, plain_card, report_line
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.record import Approval, HandOver, Item, Remark
from keyturn.gateway.approvals.similar import Cover
from keyturn.gateway.protocol.records import ItemState, Person, Result, Tier
from keyturn.sandbox.blockkit import validate_message
from tests.bot.markup_audit import assert_tame
from tests.bot.readable import readable
from tests.bot.samples import ANA, BEN, KIM, NOW, TEAM, an_approval, an_item, frame
from tests.bot.snapshots import CARD_TEXTS, assert_same
from tests.bot.strategies import hostile, quick

S = ItemState
LISTED = "The policy lists this tool as notify."


def a_call(index: int = 0, tool: str = "post_notice", **changes: Any) -> Item:
    """Return a call that the policy allowed, and that runs."""
    args = changes.pop("args", {"text": "We are open again."})
    listed: dict[str, Any] = {
        "tier": Tier.NOTIFY,
        "reasons": (LISTED,),
        "state": S.EXECUTING,
    }
    fields: dict[str, Any] = {**listed, "fence": 1, **changes}
    return an_item(args, tool=tool, index=index, **fields)


def a_message(*calls: Item, **changes: Any) -> Approval:
    asked = {"requester": KIM, "channel": "C0APPROVALS", "says": ""}
    return an_approval(*(calls or (a_call(),)), **{**asked, **changes})


def ended(call: Item, state: ItemState, summary: str = "done") -> Item:
    result = Result(ok=state is S.EXECUTED, summary=summary)
    return call.with_(state=state, changed_at_ms=NOW + 60_000, result=result)


MESSAGES = {
    "notification_cleared": a_message(
        a_call(state=S.AUTHORIZED, fence=0), requester=None
    ),
    "notification_started": a_message(requester=None),
    "notification_done": a_message(
        ended(a_call(description="Post the opening hours"), S.EXECUTED)
    ),
    "notification_not_taken": a_message(
        a_call(
            state=S.NOT_TAKEN,
            handed_to="Codex",
            handed=HandOver(problem="refused"),
            changed_at_ms=NOW + 60_000,
        )
    ),
    "notification_failed": a_message(ended(a_call(), S.FAILED, "503")),
    "notification_in_doubt": a_message(
        a_call(state=S.IN_DOUBT, changed_at_ms=NOW + 60_000)
    ),
    "notification_of_a_covered_call_in_doubt": a_message(
        a_call(
            state=S.IN_DOUBT,
            changed_at_ms=NOW + 60_000,
            cover=Cover(approval="ap_9", given_by=(ANA, BEN), uses_left=3),
        )
    ),
    "notification_lapsed": a_message(
        a_call(state=S.LAPSED, fence=0, changed_at_ms=NOW + 60_000)
    ),
    "notification_of_seven": a_message(
        ended(a_call(0), S.EXECUTED),
        a_call(1, args={"text": "abc " * 2_000, "key": "s3cret"}, redact=("args.key",)),
        *(a_call(index) for index in range(2, 7)),
    ),
    "notification_reported": a_message(
        remarks=tuple(
            Remark(by=by, text=text, at_ms=NOW + 60_000)
            for by, text in ((KIM, ""), (ANA, "*who* asked?"), (BEN, ""), (KIM, "x"))
        )
    ),
}


def shown(approval: Approval) -> Message:
    return card(frame(approval))


@pytest.mark.parametrize("name", MESSAGES)
def test_a_notification_reads_as_written_down(name: str) -> None:
    message = shown(MESSAGES[name])

    assert_same(CARD_TEXTS, name, readable(message.blocks, message.text))


@pytest.mark.slow
@pytest.mark.parametrize("state", [ItemState.FAILED, ItemState.IN_DOUBT])
@pytest.mark.parametrize("filler", ["x", "\u200b", "\u0430b "])
@pytest.mark.parametrize("count", [1, 2, MAX_ITEMS, MAX_ITEMS + 90])
def test_the_fullest_one_fits(count: int, filler: str, state: ItemState) -> None:
    long = filler * 2_000
    calls = [
        ended(
            a_call(
                index,
                f"{index % (MAX_ITEMS if count <= MAX_ITEMS else 1)}{long}"[:200],
                args={"a": long, "b": [long]},
                description=long,
                reasons=(long, long),
            ),
            state,
            long,
        )
        for index in range(count)
    ]
    somebody = Person(team=TEAM, user="U" + "0" * 29)
    remarks = [Remark(by=somebody, text=long, at_ms=NOW) for _ in range(9)]
    approval = a_message(
        *calls, agent=long, requester=somebody, remarks=tuple(remarks), rev=9
    )

    message = shown(approval)

    problems = validate_message([*message.blocks], message.text, update=True)
    assert [str(problem) for problem in problems] == []


@quick(40)
@given(hostile, hostile)
def test_no_text_of_a_stranger_is_interpreted(text: str, name: str) -> None:
    event = Event(
        name=EventName.APPROVAL_REPORTED,
        tenant="acme",
        reason=text,
        actor=f"{TEAM}/U0ANA",
    )
    ran = event.with_(name=EventName.ITEM_AUTHORIZED, tool=name, agent=text)
    call = a_call(0, name or "t", args={name: text}, description=text)
    approval = a_message(
        ended(call, S.FAILED, text),
        a_call(1),
        agent=text,
        remarks=(Remark(by=ANA, text=text, at_ms=NOW),),
    )

    for message in (
        shown(approval),
        plain_card(frame(approval)),
        report_line(event),
        many_ran([ran, ran]),
    ):
        problems = validate_message([*message.blocks], message.text, update=True)
        assert [str(problem) for problem in problems] == []
        assert_tame(message.blocks, message.text)


def test_many_calls_are_counted_by_tool_and_agent() -> None:
    ran = Event(name=EventName.ITEM_AUTHORIZED, tenant="acme", agent="a", tool="post")
    events = [ran, ran, ran.with_(agent="b"), ran.with_(name=EventName.ITEM_FAILED)]

    message = many_ran(events)

    assert_same(CARD_TEXTS, "many_ran", readable(message.blocks, message.text))
