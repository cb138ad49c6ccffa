"""Set up the publishers of a bot: one for each part of its tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from twokey.bot.clicks_first import ClicksFirst
from twokey.bot.config import BotConfig
from twokey.bot.delivery.card_copies import CopyUpdater
from twokey.bot.delivery.card_publisher import CardPublisher
from twokey.bot.delivery.card_replacer import CardReplacer
from twokey.bot.delivery.card_updater import CardUpdater
from twokey.bot.delivery.collecting import Collector
from twokey.bot.delivery.metrics_reports import MetricsReports
from twokey.bot.delivery.moved_channels import MovedChannels
from twokey.bot.delivery.own_places import OwnPlaces
from twokey.bot.delivery.publisher import Publisher
from twokey.bot.delivery.queue_sender import QueueSender
from twokey.bot.delivery.redacting import Redactor
from twokey.bot.delivery.seeded_defects import SeededDefects
from twokey.bot.home_updates import HomeUpdates
from twokey.bot.identity import Identity
from twokey.bot.limits import Limits
from twokey.bot.outdated_cards import outdated_cards
from twokey.bot.reach import GroupReach
from twokey.bot.reviewers import Reviewers
from twokey.bot.tasks import Tasks
from twokey.bot.web import Slack
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.retention import MESSAGES_KEPT
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.keys import Keys


def publishers_of(  # noqa: PLR0913 - what a bot is made of
    service: ReviewService,
    config: BotConfig,
    slack: Slack,
    me: Identity,
    reviewers: Reviewers,
    home: HomeUpdates,
    tasks: Tasks,
    *,
    answers: bool,
    clock: Callable[[], float],
    first: ClicksFirst,
) -> list[Publisher]:
    """Return the publishers of a tenant, that of its own shard first.

    They share the rate limits of the workspace.

    Args:
        service: evaluates what cards show.
        config: what the bot was set up with.
        slack: Slack's Web API.
        me: who the bot is in the workspace.
        reviewers: who people are.
        home: told of new events.
        tasks: for what comes after a card was posted.
        answers: whether clicks come to this process.
        clock: seconds, never going backwards.
        first: knows when there is time to publish.
    """
    store = service.store
    reader = f"slack:{config.tenant}"
    limits, groups = Limits(clock), GroupReach(reviewers.users)
    moved = MovedChannels(
        partial(
            store.moved_channels.known,
            store.keys_of_tenant(config.tenant),
            config.tenant,
        )
    )

    def warm(approval: Approval) -> None:
        tasks.later(reviewers.warm(approval), name="warm")

    async def read(approval: str) -> Loaded | None:
        loaded = await service.read_as_of_now(approval)
        return await groups.resolved(loaded) if loaded else None

    async def note(keys: Keys, approval: str, place: tuple[str, str]) -> None:
        await store.posted_messages.note(
            keys,
            config.tenant,
            approval,
            place,
            kept=config.messages_kept or MESSAGES_KEPT,
        )

    async def redacted(keys: Keys, approval: str, count: int) -> None:
        event = Event(
            name=EventName.MESSAGES_REDACTED,
            tenant=config.tenant,
            approval=approval,
            data={"messages": str(count)},
        )
        await store.audit(keys).append(event)

    def redactor(
        card_publisher: CardPublisher,
    ) -> Callable[[], Awaitable[None]] | None:
        if config.messages_kept is None:
            return None
        return Redactor(
            card_publisher,
            store.posted_messages,
            store.collected_cards,
            service.read,
            config.tenant,
            config.messages_kept,
            partial(redacted, card_publisher.keys),
        ).look

    def publisher(keys: Keys, report: Callable[[], Awaitable[None]]) -> Publisher:
        card_publisher = CardPublisher(
            slack=slack,
            limits=limits,
            cards=store.cards,
            keys=keys,
            team=me.team,
            seal_key=config.seal_key,
            command=config.command,
            noted=partial(note, keys) if config.messages_kept is not None else None,
            own=OwnPlaces(
                store.cards, store.copies, store.posted_messages, keys, config.tenant
            ).of,
            moved=moved,
        )
        urls = store.response_urls
        updater = CardUpdater(
            card_publisher=card_publisher,
            replacer=CardReplacer(
                card_publisher, urls, store.keys_of_tenant(config.tenant)
            ),
            copies=CopyUpdater(card_publisher, store.copies, keys, me.user),
            outbox=store.outbox(keys, reader=reader),
            keys=keys,
            tenant=config.tenant,
            read=read,
            # A click finds what its own process looked up, and here come none.
            posted=warm if answers else lambda _approval: None,
            clock=clock,
            fallback_channel=config.fallback_channel,
        )
        return Publisher(
            store,
            QueueSender(
                updater,
                Collector(
                    updater,
                    store.collected_cards,
                    service.collected_cards.rule,
                    service.collected_cards.is_used,
                ),
                channel=lambda: service.channel,
            ),
            outdated=partial(
                outdated_cards,
                service,
                store.cards,
                keys,
                config.seal_key,
                groups.resolved,
                quiet=first.quiet,
            ),
            report=report,
            on_events=home.changed.set,
            quiet=first.quiet,
            # Who answers knows of each click before it is in the outbox.
            gather=(lambda _look: first.quiet()) if answers else first.gather,
            clicked=(lambda: None) if answers else first.answered_elsewhere,
            redact=redactor(card_publisher),
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

    async def nothing() -> None:
        """Leave to the publisher of the tenant's own shard what there is once."""

    own, *others = store.parts_of(config.tenant)
    return [publisher(own, report), *(publisher(keys, nothing) for keys in others)]
