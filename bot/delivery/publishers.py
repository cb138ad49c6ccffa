"""Set up the publisher of a bot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.card_copies import CopyUpdater
from keyturn.bot.delivery.card_publisher import CardPublisher
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.delivery.collecting import Collector
from keyturn.bot.delivery.metrics_reports import MetricsReports
from keyturn.bot.delivery.outdated_cards import outdated_cards
from keyturn.bot.delivery.publisher import Publisher
from keyturn.bot.delivery.queue_sender import QueueSender
from keyturn.bot.delivery.reach import GroupReach
from keyturn.bot.delivery.redacting import Redactor
from keyturn.bot.delivery.seeded_defects import SeededDefects
from keyturn.bot.identity import Identity
from keyturn.bot.limits import HomeUpdates, Limits
from keyturn.bot.user_cache import UserCache
from keyturn.bot.web import Slack
from keyturn.gateway.service.reviews import ReviewService
from keyturn.gateway.store.atomic_write import Loaded


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
        service: evaluates what cards show.
        config: what the bot was set up with.
        slack: Slack's Web API.
        me: who the bot is in the workspace.
        users: cached answers of Slack about people.
        home: told of new events.
        clock: seconds, never going backwards.
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
        service.collected_cards.rule,
        service.collected_cards.is_used,
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
