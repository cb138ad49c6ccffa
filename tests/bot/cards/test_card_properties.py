"""Every card keeps Slack's limits, and a stranger's text stays text."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given

from keyturn.bot.blocks import Message
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.call_rows import needs_full_view
from keyturn.bot.cards.channel_messages import agent_answer
from keyturn.bot.cards.history import thread_note
from keyturn.bot.cards.home import home
from keyturn.bot.cards.queue import page_of
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import Tier
from keyturn.sandbox.blockkit import validate_home, validate_message
from tests.bot.markup_audit import assert_tame, objects
from tests.bot.samples import KEY, TEAM, frame
from tests.bot.strategies import CANARY, approvals, hostile, moments, quick

_quick = quick(40)


def _check(message: Message, *names: str) -> None:
    """Check a message by the rules; its text may contain plain names of tools."""
    problems = validate_message([*message.blocks], message.text, update=True)
    assert problems == []
    text = message.text
    for name in names:
        text = text.replace(name, "") if re.fullmatch(r"[\w.-]+", name) else text
    assert_tame(message.blocks, text)


@_quick
@given(approvals(), moments)
def test_slack_accepts_every_card(approval: Approval, now_ms: int) -> None:
    made = frame(approval, now_ms=now_ms)
    copied = replace(made, sent=("U0ANA", "U0BEN")), replace(made, card_in="#refunds")

    for message in (card(made), *map(card, copied)):
        _check(message, *(item.tool for item in approval.items))
        assert CANARY not in str(message.metadata)


@_quick
@given(approvals(), moments)
def test_only_a_whole_call_has_approve(approval: Approval, now_ms: int) -> None:
    message = card(frame(approval, now_ms=now_ms))

    for each in objects(list(message.blocks)):
        if each.get("action_id") == Action.APPROVE:
            index = int(each["value"].split(":")[-2])
            assert not needs_full_view(approval, index)
            assert approval.items[index].is_pending
            assert now_ms < approval.expires_at_ms
        if each.get("action_id") == Action.APPROVE_ALL:
            waiting = [item for item in approval.items if item.is_pending]
            assert not any(needs_full_view(approval, one.index) for one in waiting)
            assert not any(one.tier is Tier.ESCALATE for one in waiting)


@_quick
@given(approvals(most=3))
def test_every_note_of_history_is_accepted_and_tame(approval: Approval) -> None:
    for name in EventName:
        event = Event(
            name=name,
            tenant="acme",
            approval=approval.id,
            item=approval.items[0].id,
            actor=f"{TEAM}/U0ANA",
            reason="skip",
        )
        note = thread_note(event, approval)
        if note is not None:
            _check(note, *(item.tool for item in approval.items))


@_quick
@given(hostile)
def test_the_agents_own_words_are_only_ever_plain_text(text: str) -> None:
    _check(agent_answer(text * 40))


@_quick
@given(approvals(most=3), moments)
def test_the_home_tab_is_accepted_and_tame(approval: Approval, now_ms: int) -> None:
    many = [approval.with_(id=f"{approval.id}{number}") for number in range(69)]
    page = page_of(many[:60])
    view = home(page, own=many[60:], key=KEY, team=TEAM, now_ms=now_ms)

    assert validate_home(view) == []
    assert_tame(view["blocks"], "")
