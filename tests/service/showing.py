"""Show approvals, and decide them by what was shown."""

from __future__ import annotations

import itertools

from tests.service.harness import (
    ANA,
    ServiceHarness,
    still_members,
)
from twokey.gateway.approvals.decisions import (
    Approve,
    Click,
    Outcome,
    Reviewer,
)
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.service.as_shown import Place
from twokey.gateway.service.reviews import ReviewService

_NUMBERS = itertools.count(100)


async def shown(harness: ServiceHarness, *calls: tuple[str, JsonObject]) -> Click:
    """Submit calls as one approval, show them, and return a click on the first."""
    # Each in a thread of its own: a newer message of one supersedes what waits there.
    number = next(_NUMBERS)
    calls = calls or (("process_refund", {"amount": number}),)
    _, verdicts = await harness.submit(*calls, thread=f"t{number}")
    return await shown_again(harness, verdicts[0])


async def shown_again(harness: ServiceHarness, verdict: Verdict) -> Click:
    click = await harness.click(verdict)
    assert await harness.reviews.read_as_of_now(click.approval)
    return click


async def at_once(
    service: ReviewService,
    click: Click,
    who: Reviewer = ANA,
    place: Place | None = None,
) -> Outcome | None:
    """Approve by what was shown; None: only a reading can tell."""
    return await service.as_shown.decide(
        click, Approve(), who, voters=still_members, place=place
    )
