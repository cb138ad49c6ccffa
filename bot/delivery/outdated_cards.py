"""Find cards whose policy decision or reviewers changed since they were drawn.

A pending call may need more or fewer reviewers because of other calls: they count in
the same windows of the policy. Every change is an event in the outbox, so the publisher
looks for outdated cards after new events. A card authorizes nothing: each click is
digest by the current policy, so a late redraw is not a security problem.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping

from keyturn.bot.cards.mentions import copies_for, mentions_for
from keyturn.bot.delivery.card_publisher import (
    CardPublisher,
    policy_decision_digest,
    without_freeze,
)
from keyturn.bot.delivery.reach import with_unreachable
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)

_LOOKED = ""
"""Key of ``named`` that is there after the first check."""

_FROZEN = "frozen"
"""Key of ``named`` for what was frozen then."""

MOST_FROZEN = 20
"""How many cards are redrawn to say no more than that their tool is frozen.

Slack takes about 50 updates a minute, which cards of people who decide need. Whoever
clicks on another one is told of the freeze, and its next redraw says so.
"""


async def outdated_cards(
    service: ReviewService,
    publisher: CardPublisher,
    resolved: Callable[[Loaded], Awaitable[Loaded]],
    named: MutableMapping[str, str],
) -> list[str]:
    """Return the approvals whose cards have to be redrawn, a bounded number.

    Args:
        service: evaluates the current policy.
        publisher: has the key that signs the buttons; the first check, which is of all
            pending approvals, finds cards that were signed with another key.
        resolved: works out which people of user groups are asked one by one.
        named: for each approval, the policy decision and the people it was last
            returned for; updated. A card is returned once for these, so that one that
            Slack refuses is not redrawn for ever.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found, keys, seal_key = list[str](), publisher.keys, publisher.seal_key
    # A copy, then cleared: an approval that is not outdated now is forgotten, so it is
    # returned again when it becomes outdated once more.
    before = dict(named)
    named.clear()
    now_ms = await service.store.conn.now_ms(keys.outbox)
    named[_LOOKED] = str(now_ms)
    # The first check is of all pending approvals, since no bot may have run before; so
    # is one after quiet hours or a turn of people on call ended. Others are only of
    # those that an event may have changed.
    looked_ms = int(before.get(_LOOKED, "0"))
    named[_FROZEN] = await service.freezes.names()
    is_whole = (
        not looked_ms
        or service.reach.changed_ms(now_ms) > looked_ms
        or named[_FROZEN] != before.get(_FROZEN)
    )
    frozen = set[str]()
    looked_at = await (
        service.reevaluated_waiting() if is_whole else service.reevaluated()
    )
    for loaded in looked_at:
        place = await publisher.cards.place(keys, loaded.approval.id)
        # A card that is not posted yet will be rendered by the policy decision of then.
        if place is None:
            continue
        approval = with_unreachable((await resolved(loaded)).approval, place.copies)
        decided = policy_decision_digest(approval, seal_key, sent=place.sent)
        unasked = [*mentions_for(approval, but=place.mentioned_roles).roles]
        unasked += [one for one in copies_for(approval) if one not in place.copies]
        is_frozen = any(item.is_frozen for item in approval.items)
        card = place.collected or approval.id
        if place.decision_digest == decided and not unasked:
            frozen |= {card} if is_frozen else set()
            continue
        if is_frozen and not unasked:
            thawed = without_freeze(approval)
            unfrozen = policy_decision_digest(thawed, seal_key, sent=place.sent)
            # The digest of a shared card is of all its calls, so it never equals that
            # of one; the updater compares it.
            if place.collected or place.decision_digest == unfrozen:
                # With those that say so already: the first redraws cause the next
                # check.
                frozen.add(card)
                if len(frozen) > MOST_FROZEN:
                    continue
        shown = named[approval.id] = " ".join((decided, *unasked))
        # Once for each decision: a card that Slack refuses would otherwise be redrawn
        # every half second.
        if before.get(approval.id) != shown:
            found.append(approval.id)
    if found:
        logger.info("cards.evaluated_differently cards=%d", len(found))
    return found
