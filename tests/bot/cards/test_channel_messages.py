"""Messages without a card show the words of strangers as text."""

from __future__ import annotations

import pytest

from keyturn.bot.blocks import ensure_valid_message
from keyturn.bot.cards.channel_messages import security_message
from keyturn.bot.delivery.event_messages import message_without_card
from keyturn.gateway.approvals.events import (
    Event,
    EventName,
    SecurityEvent,
    SecurityKind,
)
from keyturn.sandbox.blockkit.messages import validate_message
from tests.bot.markup_audit import assert_tame
from tests.bot.readable import readable
from tests.bot.samples import NOW
from tests.bot.snapshots import CARD_TEXTS, assert_all_same
from tests.bot.strategies import CANARY


def said(name: EventName, **data: str) -> str:
    """Return the text about an event of a question."""
    data = {"until_ms": str(NOW), **data}
    event = Event(name=name, tenant="t", agent="shop", thread="t1", data=data)
    message = message_without_card(event, command="/approvals", is_last=True)
    assert message is not None
    assert not validate_message([*message.blocks], message.text)
    return readable(message.blocks)


def test_a_question_is_shown_as_text_with_what_happens_after_it() -> None:
    asked, over = EventName.RUN_ASKED, EventName.RUN_UNANSWERED
    hostile = "Which account? <!channel> *now*\u202e"
    texts = {
        "the run ends": said(asked, text=hostile),
        "it has ended": said(over),
    }

    assert_all_same(CARD_TEXTS, "questions", texts)


def test_a_long_question_is_cut() -> None:
    assert len(said(EventName.RUN_ASKED, text="x" * 20_000)) < 4_000


@pytest.mark.parametrize("kind", SecurityKind)
def test_the_names_in_a_security_event_are_shown_as_text(kind: SecurityKind) -> None:
    name = f"<!channel> *{CANARY}* <https://evil.example|ok>\u202e"
    found = SecurityEvent(kind=kind, tenant="t", about=name, agent=name, name=name)
    message = security_message(found.announced())
    ensure_valid_message(message.blocks, message.text)
    assert_tame(message.blocks, message.text)
    assert CANARY in str(message.blocks)
    assert "\u202e" not in str(message.blocks)


def test_a_restored_store_is_not_said_to_have_been_refused() -> None:
    kind, name = SecurityKind.REPLAYED, "restored from a backup of 2026-07-01"
    found = SecurityEvent(kind=kind, tenant="t", about="store", name=name)

    message = security_message(found.announced())

    told = readable(message.blocks, message.text)
    assert name in told
    assert "No call runs because of it." in told
    assert "refused" not in told
    # Waiting calls lost their votes, so reviewers have to decide.
    assert "don't need to decide" not in told
