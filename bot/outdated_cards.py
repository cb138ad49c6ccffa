"""Find cards whose policy decision or reviewers changed since they were drawn.

A pending call may need more or fewer reviewers because of other calls: they count in
the same windows of the policy. Every change is an event in the outbox, so the publisher
looks for outdated cards after new events. A card authorizes nothing: each click is
evaluated by the current policy, so a late redraw is not a security problem.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping

from twokey.bot.cards.mentions import mentions_for
from twokey.bot.delivery.card_publisher import policy_decision_digest
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.cards import CardStore
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

_LOOKED = ""
"""Among the named approvals: there was a first look."""


async def outdated_cards(
    service: ReviewService,
    cards: CardStore,
    keys: Keys,
    seal_key: bytes,
    named: MutableMapping[str, str],
) -> list[str]:
    """Return the approvals whose cards have to be redrawn; a bounded look.

    Args:
        service: judges.
        cards: knows what each card shows.
        keys: of the tenant's shard.
        seal_key: what cards are sealed with now; one that was sealed with another key
            is found by the first look, which is at all that waits.
        named: the judgement that each approval was returned for last. A card is named
            once for each, so that one that Slack refuses is not tried for ever.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[str] = []
    # A copy, then cleared: an approval that is not outdated at this look is forgotten,
    # so it may be named again when it is outdated once more.
    before = dict(named)
    named.clear()
    named[_LOOKED] = ""
    # The first look is at all that waits, for what happened while no bot ran; later
    # ones only at what an event may have changed.
    is_first = _LOOKED not in before
    looked_at = await (service.judged_waiting() if is_first else service.judged_again())
    for loaded in looked_at:
        approval = loaded.approval
        judged = policy_decision_digest(approval, seal_key)
        place = await cards.place(keys, approval.id)
        # A card that is not posted yet will be made by the judgement of then.
        if place is None:
            continue
        if place.judged == judged and not mentions_for(approval, but=place.asked).roles:
            continue
        named[approval.id] = judged
        # Named once for each judgement: a card that Slack refuses would otherwise be
        # redrawn every half second.
        if before.get(approval.id) != judged:
            found.append(approval.id)
    if found:
        logger.info("cards.judged_otherwise cards=%d", len(found))
    return found
