"""Find cards whose policy decision or reviewers changed since they were drawn.

A pending call may need more or fewer reviewers because of other calls: they count in
the same windows of the policy. Every change is an event in the outbox, so the publisher
looks for outdated cards after new events. A card authorizes nothing: each click is
digest by the current policy, so a late redraw is not a security problem.
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
"""Key of ``named`` that is there after the first check."""


async def outdated_cards(
    service: ReviewService,
    cards: CardStore,
    keys: Keys,
    seal_key: bytes,
    named: MutableMapping[str, str],
) -> list[str]:
    """Return the approvals whose cards have to be redrawn, a bounded number.

    Args:
        service: evaluates the current policy.
        cards: stores what each card shows.
        keys: of the tenant's shard.
        seal_key: signs the buttons; the first check, which is of all pending approvals,
            finds cards that were signed with another key.
        named: for each approval, the policy decision it was last returned for; updated.
            A card is returned once for each decision, so that one that Slack refuses is
            not redrawn for ever.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[str] = []
    # A copy, then cleared: an approval that is not outdated now is forgotten, so it is
    # returned again when it becomes outdated once more.
    before = dict(named)
    named.clear()
    named[_LOOKED] = ""
    # The first check is of all pending approvals, since no bot may have run before;
    # later ones only of those that an event may have changed.
    is_first = _LOOKED not in before
    looked_at = await (
        service.reevaluated_waiting() if is_first else service.reevaluated()
    )
    for loaded in looked_at:
        approval = loaded.approval
        digest = policy_decision_digest(approval, seal_key)
        place = await cards.place(keys, approval.id)
        # A card that is not posted yet will be rendered by the policy decision of then.
        if place is None:
            continue
        if (
            place.decision_digest == digest
            and not mentions_for(approval, but=place.mentioned_roles).roles
        ):
            continue
        named[approval.id] = digest
        # Once for each decision: a card that Slack refuses would otherwise be redrawn
        # every half second.
        if before.get(approval.id) != digest:
            found.append(approval.id)
    if found:
        logger.info("cards.evaluated_differently cards=%d", len(found))
    return found
