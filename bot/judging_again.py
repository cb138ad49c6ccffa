"""Find cards that no longer show what a click on them needs.

A call that waits may need more people, or fewer, because of other calls: they share its
windows. Whatever happens is an event in the outbox, so the publisher asks after each
few of them which cards have to be redrawn. What a card shows authorizes nothing: every
click is judged for itself, so a redraw that is late or lost costs no safety.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from bot.posting import judgement_digest
from gateway.service.reviews import ReviewService
from gateway.store.cards import CardStore
from gateway.store.keys import Keys

logger = logging.getLogger(__name__)


async def outdated(
    service: ReviewService,
    cards: CardStore,
    keys: Keys,
    named: MutableMapping[str, str],
) -> list[str]:
    """Return the approvals whose cards have to be redrawn; a bounded look.

    Args:
        service: judges.
        cards: knows what each card shows.
        keys: of the tenant's shard.
        named: the judgement that each approval was returned for last. A card is named
            once for each, so that one that Slack refuses is not tried for ever.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[str] = []
    before = dict(named)
    named.clear()
    for loaded in await service.judged_again():
        approval = loaded.approval
        judged = judgement_digest(approval)
        place = await cards.place(keys, approval.id)
        # A card that is not posted yet will be made by the judgement of then.
        if place is None or place.judged == judged:
            continue
        named[approval.id] = judged
        if before.get(approval.id) != judged:
            found.append(approval.id)
    if found:
        logger.info("cards.judged_otherwise cards=%d", len(found))
    return found
