"""Make the local Slack wait longer than three seconds, and the bot for its answers.

On a busy machine these limits measure the machine. The bot's latency is measured in
bench/, and Slack's timeout is tested in tests/sandbox.
"""

from __future__ import annotations

import pytest

from keyturn.bot import ingress, reviewers, web
from keyturn.sandbox import delivery, triggers

WAIT_S = 30.0


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Wait longer in this process, and in those that are forked from it."""
    patch.setattr(delivery, "ACK_WITHIN_S", WAIT_S)
    patch.setattr(triggers, "LIFE_S", WAIT_S)
    patch.setattr(ingress, "ANSWER_WITHIN_S", WAIT_S - 5)
    patch.setattr(reviewers, "LOOKUP_TIMEOUT_S", WAIT_S - 10)
    patch.setattr(web, "TIMEOUT_S", WAIT_S)
