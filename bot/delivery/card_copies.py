"""Post and update personal copies of a card, as direct messages with all of it.

A copy is posted to each person whom the policy asks by direct message, and updated
along with the card, in one step for each call. If Slack refuses a direct
message to a person, the refusal is stored, and the card's thread mentions them instead.
If the answer to a post was lost, the copy is searched for before it is posted again,
even if its call was decided in the meantime.

The members of a user group are looked up in Slack, for direct messages to each.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.mentions import MOST_COPIES, copies_for
from keyturn.bot.cards.reminders import is_over, needs_people, outdated_copy
from keyturn.bot.delivery.card_publisher import (
    RESERVED,
    CardPublisher,
    RateLimitDelay,
    policy_decision_digest,
)
from keyturn.bot.delivery.outbox_queue import (
    CopyCall,
    QueuedMessage,
    QueueEntry,
    Urgency,
)
from keyturn.bot.ids import CARD_EVENT
from keyturn.bot.limits import HISTORY, OPEN_DM, POST, UPDATE, Call
from keyturn.bot.reviewers import NoAnswer, Reviewers
from keyturn.bot.web import (
    ABOUT_THE_BLOCKS,
    TOKEN_ERRORS,
    WORKSPACE_ERRORS,
    RateLimited,
    SlackBody,
    SlackRefused,
    text_at,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Notify, Role
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.reviewers.cards import CardCopy, CardPlace, CopyStore

logger = logging.getLogger(__name__)

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
    except (RateLimitDelay, SlackRefused):
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
    except RateLimited as error:
        publisher.limits.refused(HISTORY, "", error.retry_after_s)
        raise RateLimitDelay(Call(HISTORY), error.retry_after_s) from error
    except SlackRefused as error:
        if error.error in TOKEN_ERRORS | WORKSPACE_ERRORS:
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
        except SlackRefused as error:
            is_plainer = error.error in ABOUT_THE_BLOCKS and not entry.is_plain
            if error.error in TOKEN_ERRORS | WORKSPACE_ERRORS or is_plainer:
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
