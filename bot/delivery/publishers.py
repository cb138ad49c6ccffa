"""Set up the publisher of a bot, with its check for outdated cards.

A pending call may need more or fewer reviewers because of other calls: they count in
the same windows of the policy. Every change is an event in the outbox, so the publisher
checks for outdated cards after new events. A card authorizes nothing: the current
policy decides each click, so a late redraw is not a security problem.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial

from keyturn.bot.cards.mentions import copies_for, mentions_for
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.card_copies import CopyUpdater, GroupReach, with_unreachable
from keyturn.bot.delivery.card_publisher import (
    CardPublisher,
    policy_decision_digest,
    without_freeze,
)
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.delivery.collecting import Collector
from keyturn.bot.delivery.metrics_reports import MetricsReports
from keyturn.bot.delivery.publisher import Publisher
from keyturn.bot.delivery.queue_sender import QueueSender
from keyturn.bot.delivery.redacting import Redactor
from keyturn.bot.delivery.seeded_defects import SeededDefects
from keyturn.bot.identity import Identity
from keyturn.bot.limits import HomeUpdates, Limits
from keyturn.bot.reviewers import UserCache
from keyturn.bot.web import Slack
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.atomic_write import Loaded

logger = logging.getLogger(__name__)


def publisher_of(
    service: ReviewService,
    config: BotConfig,
    slack: Slack,
    me: Identity,
    users: UserCache,
    home: HomeUpdates,
    *,
    clock: Callable[[], float],
) -> Publisher:
    """Return the publisher of a tenant.

    Args:
        service: evaluates the cards.
        config: the bot's settings.
        slack: Slack's Web API.
        me: the bot's identity in the workspace.
        users: cached answers of Slack about people.
        home: notified of new events.
        clock: seconds, monotonic.
    """
    store, groups = service.store, GroupReach(users)
    reader = f"slack:{config.tenant}"

    async def read(approval: str) -> Loaded | None:
        loaded = await service.read_as_of_now(approval)
        return await groups.resolved(loaded) if loaded else None

    card_publisher = CardPublisher(slack, Limits(clock), store, config, me)
    updater = CardUpdater(
        card_publisher=card_publisher,
        copies=CopyUpdater(card_publisher),
        outbox=store.outbox(card_publisher.keys, reader=reader),
        read=read,
        clock=clock,
    )
    collector = Collector(
        updater,
        store.collected_cards,
        service.collecting_rule,
        service.collects,
    )
    reports = MetricsReports(
        service, config.metrics, tenant=config.tenant, reader=reader
    )
    seeded = SeededDefects(
        service,
        slack,
        seal_key=config.seal_key,
        team=me.team,
        tenant=config.tenant,
        changed=home.changed.set,
    )

    async def report() -> None:
        await seeded.look()
        await reports.look()

    kept = config.messages_kept
    return Publisher(
        store,
        QueueSender(updater, collector, channel=lambda: service.channel),
        outdated=partial(outdated_cards, service, card_publisher, groups.resolved),
        report=report,
        on_events=home.changed.set,
        redact=None if kept is None else Redactor(card_publisher, service, kept).look,
    )


_LOOKED = ""
"""Key of ``named`` that exists after the first check."""

_FROZEN = "frozen"
"""Key of ``named`` for the names frozen at that time."""

MOST_FROZEN = 20
"""Maximum number of cards that are redrawn only for a freeze of their tool.

Slack accepts about 50 updates a minute, which cards with decisions need. A click on
another card is answered with the freeze, and its next redraw shows it.
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
        publisher: has the key that signs the buttons; the first check covers all
            pending approvals and finds cards that were signed with another key.
        resolved: determines the people of user groups to ask one by one.
        named: for each approval, the policy decision and the people it was last
            returned for; updated. A card is returned once for these, so that a card
            that Slack refuses is not redrawn for ever.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    found, keys, seal_key = list[str](), publisher.keys, publisher.seal_key
    # A copy, then cleared: an approval that is not outdated now is forgotten, so it is
    # returned again when it becomes outdated once more.
    before = dict(named)
    named.clear()
    now_ms = await service.store.conn.now_ms(keys.outbox)
    named[_LOOKED] = str(now_ms)
    # The first check covers all pending approvals, since no bot may have run before; so
    # does a check after quiet hours or a turn of people on call ended. Other checks
    # cover only the approvals that an event may have changed.
    looked_ms = int(before.get(_LOOKED, "0"))
    named[_FROZEN] = await service.freezes.names()
    is_whole = (
        not looked_ms
        or service.reach_changed_ms(now_ms) > looked_ms
        or named[_FROZEN] != before.get(_FROZEN)
    )
    frozen = set[str]()
    looked_at = await (
        service.reevaluated_waiting() if is_whole else service.reevaluated()
    )
    for loaded in looked_at:
        place = await publisher.cards.place(keys, loaded.approval.id)
        # An unposted card will be rendered with the policy decision of that time.
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
            # The digest of a shared card covers all its calls, so it never equals that
            # of one; the updater compares it.
            if place.collected or place.decision_digest == unfrozen:
                # Cards that show the freeze already count as well, because the first
                # redraws cause the next check.
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
