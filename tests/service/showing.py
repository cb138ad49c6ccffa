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
    Decided,
    Gesture,
    Outcome,
    Reviewer,
)
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Verdict
from twokey.gateway.service.as_shown import Place
from twokey.gateway.service.reviews import ReviewService

_NUMBERS = itertools.count(100)

_REQUEST = "sha256:" + "a" * 64


class Ways:
    """How `at_once` approves what was shown: as it comes, or as it was precomputed."""

    precomputes = False


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
    if Ways.precomputes:
        harness.reviews.as_shown.precompute(click.approval)
    return click


async def at_once(
    service: ReviewService,
    click: Click,
    who: Reviewer = ANA,
    place: Place | None = None,
) -> Outcome | None:
    """Approve by what was shown; None: only a reading can tell."""
    as_shown = service.as_shown
    if Ways.precomputes:
        if (precomputation := as_shown.precomputed(click)) is None:
            as_shown.precompute(click.approval)
            precomputation = as_shown.precomputed(click)
        pressed = who.with_(gesture=Gesture.BUTTON)
        signed = click.with_(request_digest=click.request_digest or _REQUEST)
        if await as_shown.approve(signed, pressed, place):
            assert precomputation
            return Decided(approval=precomputation.after, index=click.index)
    return await as_shown.decide(
        click, Approve(), who, voters=still_members, place=place
    )
