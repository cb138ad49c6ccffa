"""Make the local Slack and the bot wait longer, and gateways look for work more often.

On a busy machine Slack's limit of three seconds measures the machine. The bot's latency
is measured in bench/, and Slack's timeout is tested in tests/sandbox. A test waits for
each turn of a gateway's sweep, and for the end of its last read when it stops.
"""

from __future__ import annotations

import pytest

from keyturn.bot import ingress, limits, reviewers, web
from keyturn.gateway import embed
from keyturn.gateway.resume import worker
from keyturn.sandbox import delivery, triggers
from keyturn.sandbox.rate_limits import RateLimits

WAIT_S = 30.0

LEASE_MS = 6000
"""How long a lease lasts without a heartbeat: a busy machine pauses for two seconds."""


def be_patient(patch: pytest.MonkeyPatch) -> None:
    """Change the waits in this process, and in those that are forked from it."""
    patch.setattr(delivery, "ACK_WITHIN_S", WAIT_S)
    patch.setattr(triggers, "LIFE_S", WAIT_S)
    patch.setattr(ingress, "ANSWER_WITHIN_S", WAIT_S - 5)
    patch.setattr(reviewers, "LOOKUP_TIMEOUT_S", WAIT_S - 10)
    patch.setattr(web, "TIMEOUT_S", WAIT_S)
    patch.setattr(embed, "SWEEP_S", 0.05)
    patch.setattr(worker, "BLOCK_MS", 50)


def lift_limits(patch: pytest.MonkeyPatch) -> None:
    """Let the bot call the local Slack without pauses."""
    for method in limits.RATES:
        patch.setitem(limits.RATES, method, limits.Rate(60_000, 1000))
    patch.setattr(limits, "OTHERS", limits.Rate(60_000, 1000))
    patch.setattr(RateLimits, "take", _allow)


def _allow(*_: object) -> None:
    """Count no call."""
