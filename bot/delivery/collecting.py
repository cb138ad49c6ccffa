"""Let calls of separate requests share one card, if the policy has ``batch``.

A card that may be shared waits until the policy's time is over or its group has enough
calls. Then one card is posted for all of them, and events about a call go to that card.
A call that one gesture cannot decide together with the others (it was edited, raised,
asked about, or is in doubt) leaves it, and gets a separate card.

Only the queue has the waiting calls: after a restart the index of missing cards
restores them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass, field

from keyturn.bot.blocks import Message, section
from keyturn.bot.cards.call_rows import decided_alone
from keyturn.bot.cards.mentions import copies_for
from keyturn.bot.cards.queue import decidable_in_row
from keyturn.bot.delivery.card_updater import CardUpdater
from keyturn.bot.delivery.outbox_queue import OutboxQueue, QueueEntry
from keyturn.bot.text import template
from keyturn.bot.web import SlackRefused
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval, collected, is_collected
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.policy.rules import BatchRule
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store import keys as store_keys
from keyturn.gateway.store.reviewers.cards import ALONE, CollectedCardStore

logger = logging.getLogger(__name__)

ALL_LEFT = Message(
    (section(template("Each call of this card has a card of its own now.")),),
    "Each call of this card has a card of its own now.",
)

GROUP_TAG = "keyturn/v1/collected-group"
_ANY = "a card"
"""The id of a card that is only checked."""
_ONCE = frozenset({EventName.APPROVAL_REMINDED, EventName.APPROVAL_ESCALATED})
"""Events that each member of a card has at about the same time."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An approval whose card waits for others of its group, until ``due`` at most."""

    entry: QueueEntry
    group: str
    due: float
    order: tuple[int, str]


@dataclass(slots=True)
class Collector:
    """Finds the cards that are shared, while one publisher leads.

    Attributes:
        updater: posts and updates cards.
        queue: of the publisher that leads.
        service: has the policy's rules by which calls share cards.
    """

    updater: CardUpdater
    queue: OutboxQueue
    service: ReviewService
    _waiting: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])
    # Two members that are due at the same moment would each begin a card.
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def store(self) -> CollectedCardStore:
        """Return the approvals of each shared card."""
        return self.service.store.collected_cards

    async def takes(self, entry: QueueEntry) -> bool:
        """Return whether an approval has no separate card, or none yet.

        Its events were then moved to the shared card.
        """
        if entry.place is not None or entry.is_auto_approved:
            return False
        keys = self.updater.card_publisher.keys
        card = await self.store.card_of(keys, entry.approval)
        if card == ALONE:
            self._waiting.pop(entry.approval, None)
            return False
        async with self._lock:
            card = await self.store.card_of(keys, entry.approval)
            if card is None:
                if await self._waits(entry):
                    return True
                card = await self.store.card_of(keys, entry.approval)
            return await self._is_on(entry, card) if card else False

    async def _waits(self, entry: QueueEntry) -> bool:
        """Return whether an approval waits for others; collect those that are due."""
        approval = await self._read(entry.approval)
        rule = self._rule(approval) if approval else None
        if approval is None or rule is None:
            self._waiting.pop(entry.approval, None)
            return False
        now, group = self.updater.clock(), group_of(approval)
        now_ms = await self.store.now_ms(self.updater.card_publisher.keys)
        age_s = max(0.0, (now_ms - approval.created_at_ms) / 1000)
        self._waiting[approval.id] = _Waiting(
            entry,
            group,
            now + max(0.0, rule.within_s - age_s),
            (approval.created_at_ms, approval.id),
        )
        alike = [one for one in self._waiting.values() if one.group == group]
        due = min(one.due for one in alike)
        if now < due and len(alike) < rule.up_to:
            entry.card_at = due
            return True
        for one in alike:
            del self._waiting[one.entry.approval]
        shared = await self._begin_card(alike, group, rule)
        # Without room on this card, it waits for the next one.
        return bool(shared) and approval.id not in shared

    async def _begin_card(
        self, alike: list[_Waiting], group: str, rule: BatchRule
    ) -> list[str]:
        """Let calls share a card, as many as it shows whole; return which."""
        alike.sort(key=lambda one: one.order)
        members: list[Approval] = []
        for one in alike:
            # A call decided or changed while it waited is excluded.
            found = await self._read(one.entry.approval)
            if found and self._rule(found) and group_of(found) == group:
                members.append(found)
            one.entry.card_at = 0.0
        members = members[: rule.up_to]
        publisher = self.updater.card_publisher
        keys, cards = publisher.keys, publisher.cards
        card = store_keys.approval_id(keys.tenant, secrets.token_hex(16))
        while len(members) > 1 and decided_alone(collected(card, members)):
            members = members[: len(members) // 2]
        if len(members) < 2:  # noqa: PLR2004 - one call has a separate card
            return []
        ids = [one.id for one in members]
        await self.store.collect(keys, card, ids, group=group)
        # Listed before its members are removed from the list: a restart posts it.
        await cards.mark_outdated(keys, card)
        logger.info("card.collected id=%s calls=%d", card, len(members))
        return ids

    async def _is_on(self, entry: QueueEntry, card: str) -> bool:
        """Move a member's events to its card; False if it leaves the card."""
        publisher = self.updater.card_publisher
        keys, cards = publisher.keys, publisher.cards
        approval = await self._read(entry.approval)
        if approval is None:
            self.queue.redraw(card)
            return False
        if not await self._stays(approval, card):
            if (await self.store.members(keys, card))[0] == [approval.id]:
                await self._say_that_all_left(card)
            await self.store.leave(keys, approval.id)
            self.queue.redraw(card)
            return False
        for event in list(entry.events):
            # A member with more time gets its reminder later than the others.
            if (
                event.name in _ONCE
                and approval.expires_at_ms == approval.created_at_ms + approval.ttl_ms
                and not await self.store.tells(keys, card, event.name, event.seq)
            ):
                await self.updater.acknowledge(entry, [event])
        await cards.unmark(keys, approval.id)
        entry.shown = entry.wanted
        self.queue.hand_over(entry, card)
        return True

    async def _say_that_all_left(self, card: str) -> None:
        """Replace a card whose last call leaves it: its buttons would be refused."""
        place = await self.updater.card_publisher.place(card)
        if place is None:
            return
        with suppress(SlackRefused):  # the message is gone, or stays unchanged
            await self.updater.card_publisher.update(place.channel, place.ts, ALL_LEFT)

    async def _stays(self, approval: Approval, card: str) -> bool:
        item = approval.items[0]
        if item.is_pending:
            return can_share(approval) and await self._is_alike(approval, card)
        # People need buttons to reconcile a call, and to answer its spot check.
        return item.state is not ItemState.IN_DOUBT and item.spot_check is None

    async def _is_alike(self, approval: Approval, card: str) -> bool:
        """Return whether a call has the same requirements as the others on its card."""
        keys, group = self.updater.card_publisher.keys, group_of(approval)
        if group == await self.store.group(keys, card):
            return True
        for member in (await self.store.members(keys, card))[0]:
            other = await self._read(member)
            if other is None or not other.items[0].is_pending:
                continue
            # Calls that leave in any case do not count.
            if can_share(other) and group_of(other) != group:
                return False
        # The policy changed for all of them alike, so they still belong together.
        await self.store.regroup(keys, card, group)
        return True

    def _rule(self, approval: Approval) -> BatchRule | None:
        """Return the rule by which a pending approval may share a card now."""
        return self.service.collecting_rule(approval) if can_share(approval) else None

    async def _read(self, approval_id: str) -> Approval | None:
        try:
            loaded = await self.updater.read(approval_id)
        except CorruptRecord:
            return None  # the updater reports it
        return loaded.approval if loaded else None


def can_share(approval: Approval) -> bool:
    """Return whether a pending call can be decided together with others.

    It is one call that a row shows whole and that one gesture approves. Reviewers with
    direct messages get one per card, so their cards are not shared.
    """
    if len(approval.items) > 1 or is_collected(approval) or approval.is_question:
        return False
    if decidable_in_row(approval) is None or copies_for(approval):
        return False
    return not decided_alone(collected(_ANY, [approval]))


def group_of(approval: Approval) -> str:
    """Return a digest of the properties that calls on a shared card share."""
    item = approval.items[0]
    return digest.tagged_hash(
        GROUP_TAG,
        digest.canonical(
            [
                approval.agent,
                approval.task,
                item.tool,
                approval.channel,
                approval.requester.user if approval.requester else "",
                item.tier.value,
                [verb.value for verb in item.allow],
                item.requirement.model_dump(mode="json"),
                approval.waiting.model_dump(mode="json"),
            ]
        ),
    )
