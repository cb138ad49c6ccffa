"""A question that cannot be answered in Slack is shown as text, and how it ends."""

from __future__ import annotations

from pathlib import Path

from keyturn.bot.delivery.event_messages import message_without_card
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.sandbox.blockkit.messages import validate_message
from tests.bot.readable import readable
from tests.bot.samples import NOW
from tests.bot.snapshots import assert_all_same


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

    assert_all_same(Path(__file__).parent / "snapshots", "questions", texts)


def test_a_long_question_is_cut() -> None:
    assert len(said(EventName.RUN_ASKED, text="x" * 20_000)) < 4_000
