"""Post and update one Slack message: a card, or a reply in its thread.

A call takes a token of Slack's rate limit before anything is prepared or stored for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pydantic import JsonValue

from keyturn.bot.blocks import (
    AS_WRITTEN,
    BadBlocks,
    Message,
    ensure_valid_message,
    section,
)
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.mentions import mentions_for, notified
from keyturn.bot.cards.reminders import replaced
from keyturn.bot.cards.special_cards import plain_card
from keyturn.bot.config import BotConfig
from keyturn.bot.identity import Identity
from keyturn.bot.ids import key_id
from keyturn.bot.limits import OPEN_DM, POST, UPDATE, Call, Limits
from keyturn.bot.text import template
from keyturn.bot.web import (
    MovedChannels,
    RateLimited,
    Slack,
    SlackBody,
    SlackError,
    SlackNoResponse,
    text_at,
)
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.repeating import other_calls
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.keys import tenant_of_approval
from keyturn.gateway.store.reviewers.cards import CardPlace
from keyturn.gateway.store.scripts.fences import current
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

POLICY_DECISION_TAG = "keyturn/v1/policy-decision"


def policy_decision_digest(
    record: Approval, key: bytes, *, sent: Sequence[str] = ()
) -> str:
    """Return a digest of the requirements and precedents of a card's pending calls.

    It includes the key that seals the buttons, because cards need a redraw after a key
    change. While calls are pending it includes the recipients of copies, if the card
    names them.
    """
    rows: list[JsonValue] = [key_id(key)]
    for item in record.items:
        if item.is_pending:
            requirement = item.requirement.model_dump(mode="json")
            # Only pending calls: a decided one keeps its decision, so a policy change
            # must not make its card outdated.
            rows.append([item.index, item.tier.value, [*item.reasons], requirement])
            # Only if there are any: otherwise the first version that shows them would
            # redraw every card.
            if done := other_calls(record, item.past):
                rows.append([f"{one.call} {one.state}" for one in done])
            if item.is_frozen:
                rows.append("frozen")
    if sent and len(rows) > 1:
        rows.append(["sent", *sent])
    return digest.tagged_hash(POLICY_DECISION_TAG, digest.canonical(rows))


RESERVED = 1
"""Posts of a channel's rate limit that are reserved for new cards."""


class RateLimitDelay(Exception):
    """The call was not made: it has to wait for Slack's rate limit.

    Attributes:
        call: the call.
        wait_s: for how many seconds.
    """

    def __init__(self, call: Call, wait_s: float) -> None:
        self.call, self.wait_s = call, wait_s
        super().__init__(f"{call.method} to {call.channel!r} waits {wait_s:.1f} s")


class CardPublisher:
    """Client for the messages of one workspace: posts, updates and registers them.

    Args:
        slack: Slack's Web API.
        limits: its rate limits.
        store: registers messages.
        config: the bot's settings.
        me: the bot's identity in the workspace.
        is_usual: returns whether people always approve calls like a card's.
    """

    def __init__(
        self,
        slack: Slack,
        limits: Limits,
        store: Store,
        config: BotConfig,
        me: Identity,
        is_usual: Callable[[Approval], Awaitable[bool]] | None = None,
    ) -> None:
        self.slack, self.limits, self.store = slack, limits, store
        self.config, self.me, self._is_usual = config, me, is_usual
        self.tenant, self.seal_key = config.tenant, config.seal_key
        self.keys, self.cards = store.keys_of_tenant(config.tenant), store.cards
        self.moved = MovedChannels(partial(store.moved_channels.known, self.keys))

    def take(self, method: str, channel: str = "", keep: int = 0) -> None:
        """Take a token of the rate limit for the next call.

        Raises:
            RateLimitDelay: there is none.
        """
        call = Call(method, channel, keep)
        if wait_s := self.limits.take(*call):
            raise RateLimitDelay(call, wait_s)

    async def place(self, shown: str) -> CardPlace | None:
        """Return the registered message of an approval or outage, or None."""
        return await self.cards.place(self.keys, shown)

    async def register(self, shown: str, channel: str, ts: str) -> CardPlace:
        """Register a message that was just posted; return the registered one.

        If the store fails now, Slack is searched for the card before it is posted
        again.
        """
        await self.note(shown, channel, ts)
        place = await self.cards.posted(self.keys, shown, channel=channel, ts=ts)
        if url := self.slack.message_url(place.channel, place.ts):
            await self.cards.put_url(self.keys, shown, url)
        await self.delete_surplus(shown, (channel, ts), (place.channel, place.ts))
        return place

    async def post_card(
        self, record: Approval, *, channel: str, now_ms: int, is_plain: bool = False
    ) -> CardPlace:
        """Post a card that is not posted yet; return its registered copy.

        Args:
            record: the approval.
            channel: id, or ``#name``.
            now_ms: the time.
            is_plain: post the plain card, which Slack always accepts.

        Raises:
            RateLimitDelay: nothing was sent.
            SlackError: without a response, Slack may have posted it.
        """
        self.take(POST, channel, RESERVED if record.is_auto_approved else 0)
        # `is_update` matters: chat.update counts `text` in bytes (4,000), and posting
        # in characters (40,000). A card that fits one call may not fit the other.
        frame = self.frame(record, now_ms)
        message = await self.render(frame, is_update=False, is_plain=is_plain)
        # Stored before the post: if its answer is lost, or this process ends, the card
        # is searched for there before it is posted again.
        begun_in = self.limits.channel_id(channel)
        await self.cards.begin_post(self.keys, record.id, begun_in)
        response = await self._send(POST, channel, message)
        # The policy may name "#refunds"; Slack answers with the id. Only ids are kept:
        # a channel can be renamed, and clicks name the id.
        named, channel = channel, text_at(response, "channel")
        ts = text_at(response, "ts")
        place = await self.register(record.id, channel, ts)
        if named != channel:
            # Sealed: readers of that channel may read the approval
            # (`listeners.reading`).
            moved = self.store.moved_channels
            await moved.note(self.keys, named, channel)
        if (place.channel, place.ts) != (channel, ts):
            return place
        shown = await self.record_shown(record, place, message)
        logger.info("card.posted id=%s rev=%d", record.id, record.rev)
        return shown

    async def record_mentions(self, place: CardPlace, approval: Approval) -> CardPlace:
        """Store which roles a posted card mentions."""
        # Stored after the post: a crash in between mentions people twice, while the
        # other order could mention none.
        roles = mentions_for(approval).roles
        whom, at_ms = notified(approval), approval.created_at_ms
        await self.cards.note_notified(self.keys, approval.id, whom, at_ms)
        await self.cards.mark_mentioned(self.keys, approval.id, roles)
        return place.with_(mentioned_roles=place.mentioned_roles.union(roles))

    async def note(self, shown: str, channel: str, ts: str) -> None:
        """Store a posted message, so that it can be redacted later.

        Args:
            shown: its subject; only messages about approvals are stored.
            channel: of the message.
            ts: of the message.
        """
        kept = self.config.messages_kept
        if kept is not None and tenant_of_approval(shown):
            await self.store.posted_messages.note(
                self.keys, shown, (channel, ts), kept=kept
            )

    async def delete_surplus(
        self, shown: str, posted: tuple[str, str], registered: tuple[str, str]
    ) -> None:
        """Delete a message that is not the registered one, or replace it.

        A response was lost and the message was posted again. The buttons of the second
        one would be refused: clicks count only on the registered message.
        """
        if posted == registered:
            return
        logger.warning("card.surplus id=%s", shown)
        channel, ts = posted
        try:
            await self.slack.call("chat.delete", channel=channel, ts=ts)
        except SlackError as error:
            logger.warning("card.surplus_stays why=%s", error)
            with suppress(SlackError, RateLimitDelay):
                await self.update(channel, ts, replaced())

    async def update_card(
        self, record: Approval, place: CardPlace, *, now_ms: int, is_plain: bool = False
    ) -> CardPlace:
        """Show the newest state on the card; raises as `post_card` does."""
        self.take(UPDATE)
        # A mention in an edited message does not notify people, so an updated card can
        # name the recipients of copies; a new one must not.
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
        """Store the displayed content; return the card's place with it."""
        # Written after the call, never before: a crash in between repeats an update,
        # while the other order would leave an outdated card for ever.
        shown = digest.tagged_hash(
            digest.DISPLAY_TAG, digest.canonical([*message.blocks])
        )
        decided = policy_decision_digest(record, self.seal_key, sent=sent)
        await self.cards.shown(
            self.keys,
            record.id,
            rev=record.rev,
            display_digest=shown,
            decision_digest=decided,
            has_copies=bool(place.copies),
        )
        return place.with_(
            rev=record.rev, display_digest=shown, decision_digest=decided
        )

    async def open_dm(self, user: str) -> str:
        """Return the channel of a person's direct messages; raises likewise."""
        self.take(OPEN_DM)
        response = await self._call(OPEN_DM, "", users=user)
        channel = text_at(response, "channel", "id")
        if not channel:
            raise SlackNoResponse(OPEN_DM, "an answer without a channel")
        return channel

    async def post(
        self, channel: str, message: Message, *, thread_ts: str | None = None
    ) -> tuple[str, str]:
        """Post a message, in a thread if one is given; return its channel's id and ts.

        The caller has taken a token. Raises as `post_card` does.
        """
        try:
            # A message that the local validator refuses must not block later ones, so
            # it is replaced by a sentence that always fits.
            ensure_valid_message(message.blocks, message.text)
        except BadBlocks:
            logger.exception("message.invalid")
            plain = section(template("This note cannot be displayed."))
            message = Message((plain,), message.text)
        response = await self._send(POST, channel, message, thread_ts=thread_ts)
        return text_at(response, "channel"), text_at(response, "ts")

    async def update(self, channel: str, ts: str, message: Message) -> None:
        """Update a posted message; raises as `post_card` does.

        The caller has taken a token, or does without.
        """
        await self._send(UPDATE, channel, message, ts=ts)

    def frame(
        self,
        record: Approval,
        now_ms: int,
        *,
        sent: Sequence[str] = (),
        card_in: str = "",
    ) -> Frame:
        """Return the frame of a card, or of a copy of the card in a channel."""
        origin, conversation = record.origin, ""
        # Only its author can open a direct message.
        if origin is not None and not origin.channel.startswith("D"):
            conversation = self.slack.message_url(origin.channel, origin.thread_ts)
        return Frame(
            record,
            self.seal_key,
            self.me.team,
            now_ms,
            tuple(sent),
            card_in,
            conversation,
        )

    async def render(self, frame: Frame, *, is_update: bool, is_plain: bool) -> Message:
        """Return a card, rendered in a thread if it is large."""
        if self._is_usual is not None:
            frame = replace(frame, is_usual=await self._is_usual(frame.approval))
        render = partial(_rendered, frame, is_update=is_update, is_plain=is_plain)
        return await aside(render, [item.action for item in frame.approval.items])

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
            call = Call(method, limited)
            raise RateLimitDelay(call, error.retry_after_s) from error


def _rendered(frame: Frame, *, is_update: bool, is_plain: bool) -> Message:
    record = frame.approval
    if is_plain:
        return plain_card(frame)
    message = card(frame)
    try:
        ensure_valid_message(message.blocks, message.text, update=is_update)
    except BadBlocks:
        logger.exception("card.invalid id=%s", record.id)
        return plain_card(frame)
    return message
