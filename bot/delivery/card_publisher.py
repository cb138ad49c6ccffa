"""Post and update one Slack message: a card, or a reply in its thread.

Each function makes one call, for which the scheduler has taken a rate limit token. The
first card of a conversation asks for its permalink as well, a call of its own limit.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from twokey.bot.blocks import (
    BadBlocks,
    Message,
    actions,
    button,
    ensure_valid_message,
    header,
    section,
)
from twokey.bot.cards.approval import card
from twokey.bot.cards.fallbacks import card_fallback
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.notification import notification, plain_notification
from twokey.bot.cards.question_card import question_card
from twokey.bot.cards.refs import short_ref
from twokey.bot.cards.standing_card import standing_card
from twokey.bot.delivery.conversation_links import ConversationLinks
from twokey.bot.delivery.decision_digest import policy_decision_digest
from twokey.bot.delivery.moved_channels import MovedChannels
from twokey.bot.ids import COMMAND, Action
from twokey.bot.limits import OPEN_DM, POST, UPDATE, Limits
from twokey.bot.objects import Block
from twokey.bot.text_types import label, template
from twokey.bot.web import (
    RateLimited,
    Slack,
    SlackBody,
    SlackError,
    SlackNoResponse,
    text_at,
)
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.store.cards import CardPlace, CardStore
from twokey.gateway.store.fences import current
from twokey.gateway.store.keys import Keys, shard_of_approval

logger = logging.getLogger(__name__)

AS_WRITTEN: dict[str, object] = {"parse": "none", "link_names": False}
"""Else Slack would turn untrusted plain text into mentions and channel links."""


class RateLimitDelay(Exception):
    """Slack answered 429: the call was not made.

    Attributes:
        wait_s: Retry-After in seconds.
    """

    def __init__(self, method: str, channel: str, wait_s: float) -> None:
        self.wait_s = wait_s
        super().__init__(f"{method} to {channel!r} has to wait {wait_s:.1f} s")


@dataclass(frozen=True, slots=True)
class CardPublisher:
    """Client for the messages of one workspace: posts, updates and registers them.

    Attributes:
        keys: of the tenant's shard.
        unregistered: channel and ts of posted messages that are not in the store yet,
            because it failed meanwhile; by the approval or outage they show.
        links: permalinks of the messages with which agents were asked.
        noted: notes that a message about an approval was posted; None: nobody does.
        own: returns of a place what a bot registered, see `OwnPlaces`; None: all of it.
        moved: finds channels that have another id now.
    """

    slack: Slack
    limits: Limits
    cards: CardStore
    keys: Keys
    team: str
    seal_key: bytes
    command: str = COMMAND
    unregistered: dict[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )
    links: ConversationLinks = field(default_factory=ConversationLinks)
    noted: Callable[[str, tuple[str, str]], Awaitable[None]] | None = None
    own: Callable[[str, CardPlace], Awaitable[CardPlace | None]] | None = None
    moved: MovedChannels = field(default_factory=MovedChannels)

    async def find_place(self, shown: str) -> CardPlace | None:
        """Return the message that shows an approval or outage; None before the post.

        Registers a message that could not be registered after its post. A second post
        would leave the first one outdated for ever.
        """
        # Registering again is safe: `CardStore.posted` never replaces a copy that is
        # registered already, so another publisher's copy wins and ours is deleted.
        if shown in self.unregistered:
            await self.register(shown, *self.unregistered[shown])
        return await self.own_place(shown)

    async def own_place(self, shown: str) -> CardPlace | None:
        """Return the message that shows something, if a bot registered it.

        Whoever writes to the store could name any message of the bot as a card. What no
        bot registered is forgotten, so that the card is posted again: it is neither
        changed nor answered.
        """
        place = await self.cards.place(self.keys, shown)
        if place is None or self.own is None:
            return place
        return await self.own(place.collected or shown, place)

    async def register(self, shown: str, channel: str, ts: str) -> CardPlace:
        """Register a message that was just posted; return the registered copy.

        Deletes the message if another copy is registered: a response was lost and the
        message was posted again.
        """
        # Before the store is written: if it fails now, this is the only record of the
        # message. After a restart it is gone and a second copy is posted; `posted` then
        # keeps the one that was registered first.
        self.unregistered[shown] = channel, ts
        await self.note(shown, channel, ts)
        place = await self.cards.posted(self.keys, shown, channel=channel, ts=ts)
        if not place.is_sealed:
            # Another publisher's, or forged; then it is forgotten, and ours counts.
            place = await self.own_place(shown) or await self.cards.posted(
                self.keys, shown, channel=channel, ts=ts
            )
        self.unregistered.pop(shown, None)
        if (place.channel, place.ts) != (channel, ts):
            # Its buttons would be refused: clicks count only on the registered copy.
            logger.warning("card.surplus id=%s", shown)
            await self.delete(channel, ts)
        return place

    async def post_card(
        self,
        record: Approval,
        *,
        channel: str,
        now_ms: int,
        is_plain: bool = False,
    ) -> CardPlace:
        """Post a card that is not posted yet; return its registered copy.

        Args:
            record: the approval.
            channel: id, or ``#name``.
            now_ms: the time.
            is_plain: post the plain card, which Slack accepts in any case.

        Raises:
            RateLimitDelay: nothing was sent.
            SlackError: a silent one may have posted it.
        """
        # `is_update` matters: chat.update counts `text` in bytes (4,000), and posting
        # in characters (40,000). A card that fits one call may not fit the other.
        frame = self.frame(record, now_ms)
        message = await self.render(frame, is_update=False, is_plain=is_plain)
        response = await self._send(POST, channel, message)
        # The policy may name "#refunds"; Slack answers with the id. Only ids are kept:
        # a channel can be renamed, and clicks name the id.
        channel, ts = text_at(response, "channel"), text_at(response, "ts")
        place = await self.register(record.id, channel, ts)
        if (place.channel, place.ts) != (channel, ts):
            return place
        shown = await self.record_shown(record, place, message)
        logger.info("card.posted id=%s rev=%d", record.id, record.rev)
        return shown

    async def note(self, shown: str, channel: str, ts: str) -> None:
        """Note a message that was posted, so that it can be redacted later.

        Args:
            shown: what it is about; only messages about approvals are noted.
            channel: where it is.
            ts: of the message.
        """
        if self.noted is not None and shard_of_approval(shown):
            await self.noted(shown, (channel, ts))

    async def delete(self, channel: str, ts: str) -> None:
        """Delete a surplus copy, if Slack lets it."""
        try:
            await self.slack.call("chat.delete", channel=channel, ts=ts)
        except SlackError as error:
            # It stays visible, but its buttons are refused.
            logger.warning("card.surplus_stays why=%s", error)

    async def update_card(
        self,
        record: Approval,
        place: CardPlace,
        *,
        now_ms: int,
        is_plain: bool = False,
    ) -> CardPlace:
        """Show the newest state on the card; raises as `post_card` does."""
        # A mention in a changed message notifies nobody, so the card can name whom a
        # message has reached; a posted one must not.
        frame = self.frame(record, now_ms, sent=place.sent)
        message = await self.render(frame, is_update=True, is_plain=is_plain)
        await self._send(UPDATE, place.channel, message, ts=place.ts)
        shown = await self.record_shown(record, place, message, sent=place.sent)
        logger.info("card.updated id=%s rev=%d", record.id, record.rev)
        return shown

    async def record_shown(
        self,
        record: Approval,
        place: CardPlace,
        message: Message,
        *,
        sent: Sequence[str] = (),
    ) -> CardPlace:
        """Store what the card shows; return its place with that."""
        # Written after the call, never before: a crash in between repeats an update,
        # while the other order would leave an outdated card for ever.
        shown = digest.tagged_hash(
            digest.DISPLAY_TAG, digest.canonical([*message.blocks])
        )
        decided = policy_decision_digest(record, self.seal_key, sent=sent)
        await self.cards.shown(
            self.keys,
            record.id,
            tenant=record.tenant,
            rev=record.rev,
            display_digest=shown,
            decision_digest=decided,
            has_copies=bool(place.copies),
        )
        return place.with_(
            rev=record.rev, display_digest=shown, decision_digest=decided
        )

    async def open_dm(self, user: str) -> str:
        """Return the channel of the direct message with a person; raises likewise."""
        response = await self._call(OPEN_DM, "", users=user)
        channel = text_at(response, "channel", "id")
        if not channel:
            raise SlackNoResponse(OPEN_DM, "an answer without a channel")
        return channel

    async def post_copy(
        self, frame: Frame, channel: str, *, is_plain: bool
    ) -> tuple[str, str]:
        """Post a card as a direct message; return its channel and ts."""
        message = await self.render(frame, is_update=False, is_plain=is_plain)
        response = await self._send(POST, channel, message)
        return text_at(response, "channel"), text_at(response, "ts")

    async def update_copy(
        self, frame: Frame, channel: str, ts: str, *, is_plain: bool
    ) -> None:
        """Show the newest state in a direct message; raises as `post_card` does."""
        message = await self.render(frame, is_update=True, is_plain=is_plain)
        await self._send(UPDATE, channel, message, ts=ts)

    async def post(
        self, channel: str, message: Message, *, thread_ts: str | None = None
    ) -> tuple[str, str]:
        """Post a message, in a thread if one is given; return its channel's id and ts.

        Raises as `post_card` does.
        """
        try:
            # A message that our own validator refuses must not block those behind it,
            # so it is replaced by a sentence that always fits.
            ensure_valid_message(message.blocks, message.text)
        except BadBlocks:
            logger.exception("message.invalid")
            plain = section(template("This note cannot be displayed."))
            message = Message((plain,), message.text)
        response = await self._send(POST, channel, message, thread_ts=thread_ts)
        return text_at(response, "channel"), text_at(response, "ts")

    async def update(self, channel: str, ts: str, message: Message) -> None:
        """Update a posted message; raises as `post_card` does."""
        await self._send(UPDATE, channel, message, ts=ts)

    def frame(
        self,
        record: Approval,
        now_ms: int,
        *,
        sent: Sequence[str] = (),
        card_in: str = "",
    ) -> Frame:
        """Return what a card, or a copy of the card in a channel, is made of."""
        return Frame(record, self.seal_key, self.team, now_ms, tuple(sent), card_in)

    async def render(self, frame: Frame, *, is_update: bool, is_plain: bool) -> Message:
        """Return a card with a link to its conversation, if Slack tells it."""
        where = await self.links.find(self.slack, frame.approval.origin)
        linked = replace(frame, conversation=where)
        return _rendered(linked, is_update=is_update, is_plain=is_plain)

    async def _send(
        self, method: str, channel: str, message: Message, **more: object
    ) -> SlackBody:
        safety = dict(AS_WRITTEN)
        if method == POST:
            # A link preview would fetch a URL that an agent wrote (CVE-2025-34072).
            safety |= {"unfurl_links": False, "unfurl_media": False}
        response = await self._call(
            method,
            channel,
            channel=channel,
            blocks=message.blocks,
            text=message.text,
            metadata=message.metadata,
            **safety,
            **more,
        )
        # Without a ts the message cannot be updated. It counts as a lost response: the
        # message is posted again, and a surplus copy is deleted.
        if not text_at(response, "ts"):
            raise SlackNoResponse(method, "an answer without a message")
        # Slack counts posts by channel. Without this, "#refunds" and its id would have
        # a bucket each, and together twice the allowed rate.
        self.limits.alias_channel(channel, text_at(response, "channel") or channel)
        return response

    async def _call(self, method: str, limited: str, **arguments: object) -> SlackBody:
        """Call Slack; ``limited`` is the channel that its rate limit is about."""
        if (lease := current()) is not None:
            # A publisher that lost the lease could overwrite a newer card.
            lease.check()
        try:
            return await self.moved.call(self.slack, method, arguments)
        except RateLimited as error:
            # Recorded before anything else runs: a second task must not get the same
            # 429.
            self.limits.refused(method, limited, error.retry_after_s)
            raise RateLimitDelay(method, limited, error.retry_after_s) from error


def _rendered(frame: Frame, *, is_update: bool, is_plain: bool) -> Message:
    record = frame.approval
    plain = plain_notification if record.is_auto_approved else plain_card
    if is_plain:
        return plain(frame)
    message = _card_of(frame)
    try:
        ensure_valid_message(message.blocks, message.text, update=is_update)
    except BadBlocks:
        logger.exception("card.invalid id=%s", record.id)
        return plain(frame)
    return message


def _card_of(frame: Frame) -> Message:
    if frame.approval.is_question:
        return question_card(frame)
    if frame.approval.is_standing:
        return standing_card(frame)
    return notification(frame) if frame.approval.is_auto_approved else card(frame)


def plain_card(frame: Frame) -> Message:
    """Return the fallback card: ids only, and each call can only be rejected."""
    approval = frame.approval
    text = template(
        "This request cannot be displayed, so it cannot be approved here. Reject it, "
        "or let it expire: {id}.",
        id=short_ref(approval.id),
    )
    blocks: list[Block] = [
        header(label("A request that cannot be displayed")),
        section(text, block_id=frame.block_id("plain")),
    ]
    # Nothing to approve with: nobody may approve what the card does not show.
    rejected = [
        item for item in approval.items if item.is_pending and Verb.REJECT in item.allow
    ]
    if rejected:
        one, *others = rejected
        words = label(f"Reject call {one.index + 1}")
        value = frame.value(one.index, Action.REJECT)
        reject = button(Action.REJECT, words, value=value, style="danger")
        if others:
            # Slack takes no two buttons of one action in a block, and fifty blocks.
            reject = frame.menu(
                rejected,
                Action.REJECT,
                prefix="Call ",
                placeholder=label("Reject a call…"),
            )
        blocks.append(actions(reject, block_id=frame.block_id("plain.reject")))
    return Message(blocks=tuple(blocks), text=card_fallback(approval))
