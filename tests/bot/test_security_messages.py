"""The message about a security event."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.blocks import ensure_valid_message
from keyturn.bot.cards.channel_messages import security_message
from keyturn.gateway.approvals.events import SecurityEvent, SecurityKind

HOSTILE = "<!channel> *x* <https://evil.example|ok>\u202e"


@pytest.mark.parametrize("kind", SecurityKind)
def test_names_of_strangers_are_shown_and_not_interpreted(kind: SecurityKind) -> None:
    found = SecurityEvent(
        kind=kind, tenant="default", about=HOSTILE, agent=HOSTILE, name=HOSTILE
    )

    message = security_message(found.announced())

    ensure_valid_message(message.blocks, message.text)
    shown = json.dumps(message.blocks, ensure_ascii=False)
    marked = [one for one in shown.split('"type"') if "mrkdwn" in one]
    assert not any("evil" in one or "channel" in one for one in marked)
    assert "evil" in shown
    assert "\u202e" not in shown
