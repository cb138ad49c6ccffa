"""A question that cannot be answered in Slack is shown as text, and how it ends."""

from __future__ import annotations

from typing import Any, cast

from keyturn.bot.blocks import Message
from keyturn.bot.delivery.event_messages import message_without_card
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.sandbox.blockkit.messages import validate_message
from tests.bot.readable import readable
from tests.bot.samples import NOW


def said(name: EventName, **data: str) -> Message:
    """Return the text about an event of a question."""
    event = Event(name=name, tenant="t", agent="shop", thread="t1", data=data)
    message = message_without_card(event, command="/approvals", is_last=True)
    assert message is not None
    return message


def asked(text: str, ends: str = "ended") -> str:
    """Return the shown text of a question."""
    until = str(NOW)
    message = said(EventName.RUN_ASKED, text=text, until_ms=until, ends=ends)
    assert not validate_message(cast("Any", [*message.blocks]), message.text)
    return readable(message.blocks)


def test_the_question_is_shown_and_never_read_as_markup() -> None:
    shown = asked("Which account? <!channel> *now*")

    assert "\nWhich account? <!channel> *now*\n" in shown
    assert "cannot be answered in Slack" in shown
    assert "the run ends" in shown


def test_how_it_ends_is_what_will_happen() -> None:
    assert "the agent continues" in asked("Run it?", ends="answered")

    end = readable(said(EventName.RUN_UNANSWERED, ends="ended").blocks)
    assert "The run ended" in end
    goes_on = readable(said(EventName.RUN_UNANSWERED, ends="answered").blocks)
    assert "The run ended" not in goes_on


def test_a_long_question_is_cut_and_nothing_hidden_stays_hidden() -> None:
    shown = asked("\u202e" + "x" * 20_000)

    assert len(shown) < 4_000
    assert "\u202e" not in shown
