"""Post and update one Slack message: a card, a copy of it, or a reply in its thread.

A call takes a token of Slack's rate limit before anything is prepared or stored for it.

A personal copy is a direct message with all of a card, to each person whom the policy
asks by direct message. It is updated along with the card, in one step for each call. If
Slack refuses a direct message to a person, the refusal is stored, and the card's thread
mentions them instead. If the answer to a post was lost, the copy is searched for before
it is posted again, even if its call was decided in the meantime. The members of a user
group are looked up in Slack, for direct messages to each.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from pydantic import JsonValue

from keyturn.bot import web
from keyturn.bot.blocks import (
    AS_WRITTEN,
    BadBlocks,
    Message,
    ensure_valid_message,
    section,
)
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.mentions import MOST_COPIES, copies_for, mentions_for, notified
from keyturn.bot.cards.reminders import is_over, needs_people, outdated_copy, replaced
from keyturn.bot.cards.special_cards import plain_card
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.outbox_queue import (
    CopyCall,
    QueuedMessage,
    QueueEntry,
    Urgency,
)
from keyturn.bot.ids import CARD_EVENT, key_id
from keyturn.bot.limits import HISTORY, OPEN_DM, POST, UPDATE, Call, Limits
from keyturn.bot.reviewers import NoAnswer, Reviewers
from keyturn.bot.text import template
from keyturn.bot.web import SlackBody, text_at
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.repeating import other_calls
from keyturn.gateway.approvals.requirement import Notify, Role
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.reviewers.cards import CardCopy, CardPlace, CopyStore
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
            # Only pending calls: a decided one keeps its decision, so a policy change
            # must not make its card outdated.
            requirement = item.requirement.model_dump(mode="json")
            done = other_calls(record, item.past)
            rows.append([item.index, item.tier.value, [*item.reasons], requirement])
            rows.append([f"{one.call} {one.state}" for one in done])
            rows.append(item.is_frozen)
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
        slack: web.Slack,
        limits: Limits,
        store: Store,
        config: BotConfig,
        me: web.Identity,
        is_usual: Callable[[Approval], Awaitable[bool]] | None = None,
    ) -> None:
        self.slack, self.limits, self.store = slack, limits, store
        self.config, self.me, self._is_usual = config, me, is_usual
        self.tenant, self.seal_key = config.tenant, config.seal_key
        self.keys, self.cards = store.keys_of_tenant(config.tenant), store.cards
        self.moved = web.MovedChannels(partial(store.moved_channels.known, self.keys))

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
        """Store a posted message about an approval, so that it can be redacted."""
        kept, posted = self.config.messages_kept, self.store.posted_messages
        await posted.note(self.keys, shown, (channel, ts), kept=kept)

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
        except web.SlackError as error:
            logger.warning("card.surplus_stays why=%s", error)
            with suppress(web.SlackError, RateLimitDelay):
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
            raise web.SlackNoResponse(OPEN_DM, "an answer without a channel")
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
            raise web.SlackNoResponse(method, "an answer without a message")
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
        except web.RateLimited as error:
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


_PAGE = "200"
"""Messages to search through, in Slack's recommended page size."""


@contextmanager
def posting(entry: QueueEntry, user: str = "") -> Generator[None]:
    """Note on the entry that Slack refused a post, so no search for it is needed.

    ``user`` is the recipient of the copy; "" for the card in a channel.
    """
    entry.unsent.discard(user)
    try:
        yield
    except (RateLimitDelay, web.SlackRefused):
        entry.unsent.add(user)
        raise


async def find_card(
    publisher: CardPublisher, entry: QueueEntry, record: Approval
) -> CardPlace | None:
    """Register a card whose post was begun; None if it has to be posted.

    It shows an older state, and is updated next. Other copies of it are deleted.

    Raises:
        RateLimitDelay: Slack was not asked.
        SlackError: Slack did not answer, or refused the bot's token.
    """
    place: CardPlace | None = None
    for one in await find_copies(publisher, record, entry.lost_in):
        logger.info("card.found id=%s", record.id)
        place = await publisher.register(record.id, entry.lost_in, text_at(one, "ts"))
        # It mentions the same people as a card of this version; a plain card names
        # none.
        if _payload(one).get("version") == record.version:
            place = await publisher.record_mentions(place, record)
    entry.unsent.add("")
    return place


async def find_copies(
    publisher: CardPublisher, record: Approval, channel: str
) -> list[SlackBody]:
    """Return an approval's cards in a channel, the newest first.

    Without the right to search there are none, and the card is posted again.

    Args:
        publisher: makes the call.
        record: the approval.
        channel: id of the channel or direct message.

    Raises:
        RateLimitDelay: Slack was not asked.
        SlackError: Slack did not answer, or refused the bot's token.
    """
    publisher.take(HISTORY)
    try:
        # Only the newest messages, because it was posted a moment ago.
        response = await publisher.slack.ask(
            HISTORY, channel=channel, limit=_PAGE, include_all_metadata="true"
        )
    except web.RateLimited as error:
        publisher.limits.refused(HISTORY, "", error.retry_after_s)
        raise RateLimitDelay(Call(HISTORY), error.retry_after_s) from error
    except web.SlackRefused as error:
        if error.error in web.TOKEN_ERRORS | web.WORKSPACE_ERRORS:
            raise
        logger.warning("card.not_looked_for why=%s", error.error)
        return []
    messages = response.get("messages")
    listed = cast("list[SlackBody]", messages) if isinstance(messages, list) else []
    # The author is checked: another app can write such metadata in the person's name.
    found = (one for one in listed if text_at(one, "user") == publisher.me.user)
    return [one for one in found if _payload(one).get("approval") == record.id]


def _payload(message: SlackBody) -> SlackBody:
    """Return the payload of a card's metadata; empty for another message."""
    found = message.get("metadata")
    metadata: SlackBody = cast("SlackBody", found) if isinstance(found, dict) else {}
    payload = metadata.get("event_payload")
    is_card = metadata.get("event_type") == CARD_EVENT and isinstance(payload, dict)
    return cast("SlackBody", payload) if is_card else {}


@dataclass(frozen=True, slots=True)
class CopyUpdater:
    """Brings the copies of one tenant's cards up to date.

    Attributes:
        card_publisher: makes the calls.
        channels: direct message channel of each person, as returned by Slack.
    """

    card_publisher: CardPublisher
    channels: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def _store(self) -> CopyStore:
        return self.card_publisher.store.copies

    def next_call(
        self, entry: QueueEntry, record: Approval, place: CardPlace
    ) -> CopyCall | None:
        """Return the call that brings a card's copies up to date, or None."""
        # If no one has to act, cards in channels go first: Slack accepts about one
        # update a second, and a card has up to `MOST_COPIES` copies.
        is_urgent = needs_people(record)
        urgency = Urgency.NEEDS_PEOPLE if is_urgent else Urgency.COPY_UPDATE
        lost = [
            user
            for user, copy in place.copies.items()
            if user not in entry.unsent and not (copy.ts or copy.refused)
        ]
        for user in copies_for(record):
            copy = place.copies.get(user, CardCopy())
            if user in lost:
                return CopyCall(HISTORY, "", user, urgency)
            if not (copy.ts or copy.refused):
                # Never the channel in the store, which an intruder may have written.
                channel = self.channels.get(user, "")
                return CopyCall(POST if channel else OPEN_DM, channel, user, urgency)
        for user in place.sent:
            if self._is_outdated(record, place.copies[user]):
                return CopyCall(UPDATE, "", user, urgency)
        # Copies of people who are not asked any more may still show buttons.
        for user in lost:
            return CopyCall(HISTORY, "", user, urgency)
        return None

    def _is_outdated(self, record: Approval, copy: CardCopy) -> bool:
        decided = policy_decision_digest(record, self.card_publisher.seal_key)
        if copy.decision_digest != decided:
            return copy.rev <= record.rev
        # While calls run, a copy waits for their end: the card shows the progress. A
        # standing approval does not run: its remainder changes with each use.
        is_settled = needs_people(record) or is_over(record) or record.is_standing
        return copy.rev < record.rev and is_settled

    async def make(
        self,
        entry: QueueEntry,
        due: CopyCall,
        record: Approval,
        place: CardPlace,
        *,
        now_ms: int,
    ) -> None:
        """Make a call that `next_call` returned.

        Raises:
            RateLimitDelay: nothing was sent.
            SlackError: the bot's token or the card is refused; or there was no
                response, and the copy may have been posted.
        """
        user, copy = due.user, place.copies.get(due.user, CardCopy())
        frame = self.card_publisher.frame(record, now_ms, card_in=place.channel)
        try:
            if due.method == OPEN_DM:
                self.channels[user] = await self.card_publisher.open_dm(user)
            elif due.method == HISTORY:
                await self._find(entry, user, copy, record)
            elif due.method == POST:
                await self._post(entry, due, frame)
            else:
                publisher = self.card_publisher
                publisher.take(UPDATE)
                message = await publisher.render(
                    frame, is_update=True, is_plain=entry.is_plain
                )
                await publisher.update(copy.channel, copy.ts, message)
                await self._shown(user, record)
        except web.SlackRefused as error:
            is_plainer = error.error in web.ABOUT_THE_BLOCKS and not entry.is_plain
            if error.error in web.TOKEN_ERRORS | web.WORKSPACE_ERRORS or is_plainer:
                raise
            logger.warning("copy.refused user=%s why=%s", user, error.error)
            self.channels.pop(user, None)
            keys = self.card_publisher.keys
            await self._store.refused(keys, record.id, user, error.error)
            if copy.ts:
                note = outdated_copy(record, channel=place.channel, why=error.error)
                entry.messages.append(QueuedMessage(note, "", copy.channel, copy.ts))

    async def _find(
        self, entry: QueueEntry, user: str, copy: CardCopy, record: Approval
    ) -> None:
        """Register a person's copy whose post got no answer, if it exists.

        It shows an older state, and is updated next.
        """
        found = await find_copies(self.card_publisher, record, copy.channel)
        if not found:
            entry.unsent.add(user)
            return
        await self._register(record, user, (copy.channel, text_at(found[0], "ts")))
        entry.just_sent.add(user)
        logger.info("copy.found id=%s", record.id)

    async def _post(self, entry: QueueEntry, due: CopyCall, frame: Frame) -> None:
        user, channel, record = due.user, due.channel, frame.approval
        publisher, is_plain = self.card_publisher, entry.is_plain
        with posting(entry, user):
            publisher.take(POST, channel, RESERVED)
            # Stored before the post: if its answer is lost, the copy is searched for
            # there, and a click on it identifies the message (`listeners.usable_copy`).
            await self._store.opened(publisher.keys, record.id, user, channel=channel)
            message = await publisher.render(frame, is_update=False, is_plain=is_plain)
            at = await publisher.post(channel, message)
        entry.just_sent.add(user)
        if await self._register(record, user, at):
            await self._shown(user, record)

    async def _register(self, record: Approval, user: str, at: tuple[str, str]) -> bool:
        """Register a copy; False if another one was, and this one is deleted."""
        await self.card_publisher.note(record.id, *at)
        kept = await self._store.posted(
            self.card_publisher.keys, record.id, user, channel=at[0], ts=at[1]
        )
        registered = kept.channel, kept.ts
        await self.card_publisher.delete_surplus(record.id, at, registered)
        return at == registered  # another one may be older, and is updated next

    async def _shown(self, user: str, record: Approval) -> None:
        publisher = self.card_publisher
        decided = policy_decision_digest(record, publisher.seal_key)
        is_newest = await self._store.shown(
            publisher.keys, record.id, user, rev=record.rev, decision_digest=decided
        )
        logger.info("copy.shown id=%s rev=%d", record.id, record.rev)
        if not is_newest:
            await publisher.cards.mark_outdated(publisher.keys, record.id)


async def with_members(users: Reviewers, loaded: Loaded) -> Loaded:
    """Return an approval with the people of its groups, if they are asked one by one.

    A group that is too large for direct messages, or whose members Slack does not
    return, is mentioned as a group.
    """
    approval = loaded.approval
    taken = approval.acknowledged
    roles = [role for item in approval.items for role in item.requirement.roles]
    groups = {
        group
        for role in [*roles, *approval.waiting.roles]
        if role.notify is Notify.DM or taken is not None
        for group in role.asked.usergroups
    }
    if not groups:
        return loaded
    members: dict[str, frozenset[str] | None] = {}
    for group in groups:
        found = await users.group(group)
        members[group] = None if isinstance(found, NoAnswer) else found.value

    def asked(_: Item, role: Role) -> Role:
        asking = role.asked
        if role.notify is Notify.DM:
            few = {
                group: found
                for group in asking.usergroups
                if (found := members[group]) and len(found) <= MOST_COPIES
            }
            people = [one for found in few.values() for one in sorted(found)]
            asking = asking.with_(
                users=tuple(dict.fromkeys((*asking.users, *people))),
                usergroups=tuple(one for one in asking.usergroups if one not in few),
            )
        if taken is not None:
            holding = tuple(
                group
                for group in asking.usergroups
                if (found := members[group]) is None or taken.by.user in found
            )
            asking = asking.with_(taken_by=holding)
        return role.with_(asking=asking)

    return Loaded(approval.with_roles(asked), loaded.now_ms)


def with_unreachable(approval: Approval, copies: Mapping[str, CardCopy]) -> Approval:
    """Return an approval with the people who could not get a direct message."""
    refused = {user: one.refused for user, one in copies.items() if one.refused}
    if not refused:
        return approval
    return approval.with_roles(
        lambda _, role: role.with_(asking=role.asked.with_(unreachable=refused))
    )
