"""Say the next thing about one topic, and know what to do when Slack refuses it."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bot.blocks import code, section, template
from bot.board import Line, Topic, Urgency
from bot.cards.calling import asked_again, escalation, reminder, told_elsewhere
from bot.cards.history import thread_note
from bot.cards.message import Message
from bot.cards.notice import many_ran, report_line
from bot.cards.outcome import agent_words, run_failed, unreadable
from bot.cards.stops import STOPS, stop_message
from bot.limits import UPDATE
from bot.posting import NotYet, Shown, Wall, judgement_digest
from bot.web import SlackError, SlackRefused
from gateway.approvals.events import Event, EventName
from gateway.approvals.lifecycle import ApprovalState
from gateway.approvals.notice import Notice
from gateway.approvals.record import Approval
from gateway.errors import StoreUnavailable, UnreadableRecord
from gateway.failures import log_failure
from gateway.store.approvals import Loaded
from gateway.store.keys import Keys
from gateway.store.outbox import Outbox

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 8
"""Failures in a row of our own making, after which a topic is put aside."""

_LONGEST_WAIT_S = 30.0
_BROKEN_WAIT_S = 60.0

_NOT_ABOUT_THE_CARD = frozenset(
    {
        "access_denied",
        "account_inactive",
        "invalid_auth",
        "missing_scope",
        "no_permission",
        "not_allowed_token_type",
        "not_authed",
        "org_login_required",
        "team_access_not_granted",
        "token_expired",
        "token_revoked",
    }
)
"""Refusals that concern the bot as a whole: it goes on when an operator has helped."""

_ABOUT_THE_BLOCKS = frozenset(
    {
        "block_mismatch",
        "invalid_blocks",
        "invalid_blocks_format",
        "metadata_too_large",
        "msg_blocks_too_long",
        "msg_too_long",
    }
)


_STILL_THERE = frozenset({"cant_update_message", "edit_window_closed"})
"""Refusals to change a card that can still be answered."""

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class Saying:
    """How topics become messages.

    Attributes:
        wall: where they go.
        read: returns an approval as it is to be shown, and the time; None for an
            unknown id.
        read_notice: returns a notice, None for an unknown id.
        posted: called once for each card that was posted.
        channel: returns where to say what belongs to no card and no thread.
        fallback_channel: takes a card that its own channel refuses; "" for none.
    """

    wall: Wall
    read: Callable[[str], Awaitable[Loaded | None]]
    read_notice: Callable[[str], Awaitable[Notice | None]]
    posted: Callable[[Approval], None]
    channel: Callable[[], str]
    fallback_channel: str = ""

    async def step(self, topic: Topic, outbox: Outbox, keys: Keys) -> float:
        """Make the next call for a topic; return how long it then has to wait.

        Never raises: what fails is tried again after a while, and what can never
        succeed is reported and put aside.
        """
        try:
            try:
                await self._next(topic, outbox, keys)
            except SlackRefused as error:
                return await self._refused(topic, outbox, error)
        except NotYet as error:
            return error.wait_s
        except (SlackError, StoreUnavailable) as error:
            logger.warning("publisher.retrying topic=%s why=%s", topic.key, error)
            topic.failures += 1
            return min(_LONGEST_WAIT_S, 0.5 * 2.0 ** min(topic.failures, 10))
        except Exception as error:  # noqa: BLE001 - one topic must not stop the others
            log_failure(logger, error, "publisher.failed topic=%s", topic.key)
            return await self._failed(topic, outbox)
        topic.failures = 0
        return 0.0

    async def _next(self, topic: Topic, outbox: Outbox, keys: Keys) -> None:
        if topic.rest:
            await self._fold(topic, outbox, keys)
        elif topic.is_card_due:
            await self._show(topic, outbox, keys)
        elif topic.notes:
            await self._note(topic, outbox)
        else:
            await self._speak(topic, outbox)

    async def _show(self, topic: Topic, outbox: Outbox, keys: Keys) -> None:
        wanted = topic.wanted
        self._need_room(topic)
        try:
            found = await self._record(topic)
        except UnreadableRecord as error:
            await self._give_up(topic, outbox, keys, error)
            return
        if found is None:
            topic.shown = wanted
            await _acknowledge(topic, outbox, list(topic.events))
            return
        record, now_ms = found
        if not topic.is_lost:
            await self._hang(topic, keys, record, now_ms)
        topic.shown = wanted
        await self._take_notes(topic, outbox, record)

    async def _record(self, topic: Topic) -> tuple[Shown, int] | None:
        """Return what the topic's card shows, and the time; a notice needs none."""
        if topic.notice:
            notice = await self.read_notice(topic.notice)
            return None if notice is None else (notice, 0)
        loaded = await self.read(topic.approval)
        return None if loaded is None else (loaded.approval, loaded.now_ms)

    async def _give_up(
        self, topic: Topic, outbox: Outbox, keys: Keys, error: UnreadableRecord
    ) -> None:
        """Say under the card that nothing on it counts any more."""
        log_failure(logger, error, "publisher.unreadable_record")
        topic.shown = topic.wanted
        place = await self.wall.cards.place(keys, topic.approval)
        if place is not None:
            told = unreadable(topic.approval)
            for event in list(topic.events):
                if event.name is EventName.RECORD_UNREADABLE:
                    line = Line(told, event.seq, place.channel, place.ts)
                    topic.notes.append(line)
                    topic.events.remove(event)
        await _acknowledge(topic, outbox, list(topic.events))

    def _need_room(self, topic: Topic) -> None:
        """Wait before anything is read or rendered for a change Slack has no room for.

        Raises:
            NotYet: says how long.
        """
        if topic.place is None:
            return
        channel = topic.place[0]
        wait_s = self.wall.limits.wait_s(UPDATE, channel)
        if wait_s > 0:
            raise NotYet(UPDATE, channel, wait_s)

    async def _hang(self, topic: Topic, keys: Keys, record: Shown, now_ms: int) -> None:
        place = await self.wall.cards.place(keys, record.id)
        if place is None:
            place = await self.wall.post_card(
                keys,
                record,
                channel=topic.channel or record.channel,
                now_ms=now_ms,
                is_plain=topic.is_plain,
            )
            if isinstance(record, Approval):
                self.posted(record)
        topic.place = (place.channel, place.ts)
        is_judged_otherwise = place.judged != judgement_digest(record)
        if place.rev < record.rev or (place.rev == record.rev and is_judged_otherwise):
            await self.wall.update_card(
                keys, record, place, now_ms=now_ms, is_plain=topic.is_plain
            )

    async def _take_notes(self, topic: Topic, outbox: Outbox, record: Shown) -> None:
        """Turn events into lines of history; those without one are done."""
        silent: list[Event] = []
        for event in list(topic.events):
            lines = _lines(event, record, topic.place) if topic.place else []
            if lines:
                topic.notes += lines
                topic.events.remove(event)
            else:
                silent.append(event)
        await _acknowledge(topic, outbox, silent)

    async def _note(self, topic: Topic, outbox: Outbox) -> None:
        line = topic.notes[0]
        await self.wall.say(line.channel, line.message, thread_ts=line.thread_ts)
        await _drop_line(topic, outbox)

    async def _speak(self, topic: Topic, outbox: Outbox) -> None:
        event = topic.events[0]
        channel = self._channel(event)
        is_last = len(topic.events) == 1
        message = _words(event, command=self.wall.command, is_last=is_last)
        if message is not None and channel:
            thread_ts = event.data.get("thread_ts") or None
            await self.wall.say(channel, message, thread_ts=thread_ts)
        await _acknowledge(topic, outbox, [event])

    async def _fold(self, topic: Topic, outbox: Outbox, keys: Keys) -> None:
        """Tell of many notices in one message, which is never brought up to date."""
        events = list(topic.events)
        ran = [event for event in events if event.name is EventName.CALL_RAN]
        if ran:
            place = await self.wall.say(
                topic.rest, many_ran(events, command=self.wall.command)
            )
            for notice in dict.fromkeys(event.notice for event in ran):
                await self.wall.cards.folded(keys, notice, *place)
        await _acknowledge(topic, outbox, events)

    def _channel(self, event: Event) -> str:
        if event.name in STOPS:
            return self.channel()
        return event.data.get("channel") or event.channel

    async def _refused(
        self, topic: Topic, outbox: Outbox, error: SlackRefused
    ) -> float:
        topic.failures += 1
        if error.error in _NOT_ABOUT_THE_CARD:
            logger.error("publisher.bot_refused error=%s", error.error)
            return _BROKEN_WAIT_S
        if not topic.is_card_due:
            logger.warning("note.dropped topic=%s why=%s", topic.key, error.error)
            await self._drop_first(topic, outbox)
        elif error.error in _ABOUT_THE_BLOCKS and not topic.is_plain:
            logger.error("card.refused topic=%s why=%s", topic.key, error.error)
            topic.is_plain = True
        elif topic.place is None and self.fallback_channel not in {"", topic.channel}:
            logger.error("card.diverted topic=%s why=%s", topic.key, error.error)
            topic.channel = self.fallback_channel
        else:
            logger.error("card.undeliverable topic=%s why=%s", topic.key, error.error)
            topic.is_lost = True
            await self._report(topic, error.error)
        return 0.0

    async def _failed(self, topic: Topic, outbox: Outbox) -> float:
        topic.failures += 1
        if topic.failures >= GIVE_UP_AFTER:
            logger.error("publisher.gave_up topic=%s", topic.key)
            topic.is_lost = True
            topic.shown = topic.wanted
            await self._drop_first(topic, outbox)
        return min(_LONGEST_WAIT_S, 2.0 ** min(topic.failures, 10))

    async def _drop_first(self, topic: Topic, outbox: Outbox) -> None:
        if topic.notes:
            await _drop_line(topic, outbox)
        else:
            many = len(topic.events) if topic.rest else 1
            await _acknowledge(topic, outbox, topic.events[:many])

    async def _report(self, topic: Topic, why: str) -> None:
        """Tell whoever can be told that the card does not show what is so; once."""
        if topic.notice:
            return  # nobody waits for it, and the audit log has it
        loaded = await self.read(topic.approval)
        if loaded is None:
            return
        channel, thread_ts = _somebody(topic, loaded.approval, why)
        if channel:
            told = _undeliverable(loaded.approval, why)
            topic.notes.append(Line(told, "", channel, thread_ts))


def _lines(event: Event, record: Shown, place: tuple[str, str]) -> list[Line]:
    """Return what is said of an event: in the thread of its card, or elsewhere too."""
    if isinstance(record, Approval):
        return _lines_of_approval(event, record, place)
    if event.name is EventName.NOTICE_REPORTED:
        return [Line(report_line(event), event.seq, *place, Urgency.NEWS)]
    return []


def _lines_of_approval(
    event: Event, approval: Approval, place: tuple[str, str]
) -> list[Line]:
    urgency = Urgency.NEEDS_PEOPLE
    is_open = approval.state is ApprovalState.OPEN
    if event.name is EventName.ITEM_REOPENED and is_open:
        return [Line(asked_again(approval, event.reason), event.seq, *place, urgency)]
    if event.name not in {EventName.APPROVAL_REMINDED, EventName.APPROVAL_ESCALATED}:
        note = thread_note(event, approval)
        return [Line(note, event.seq, *place)] if note else []
    if not is_open:
        return []
    if event.name is EventName.APPROVAL_REMINDED:
        return [Line(reminder(approval), event.seq, *place, urgency)]
    told = told_elsewhere(approval, place[0])
    channels = approval.waiting.channels
    elsewhere = [Line(told, "", channel, None, urgency) for channel in channels]
    return [*elsewhere, Line(escalation(approval), event.seq, *place, urgency)]


def _somebody(topic: Topic, approval: Approval, why: str) -> tuple[str, str | None]:
    """Return where to tell that a card is lost: under it, or to whoever asked."""
    if topic.place is not None and why in _STILL_THERE:
        return topic.place
    if approval.origin is not None:
        return approval.origin.channel, approval.origin.thread_ts
    return (approval.requester.user if approval.requester else ""), None


async def _drop_line(topic: Topic, outbox: Outbox) -> None:
    seq = topic.notes[0].seq
    await outbox.done(*([seq] if seq else []))
    topic.notes.pop(0)


async def _acknowledge(topic: Topic, outbox: Outbox, events: list[Event]) -> None:
    await outbox.done(*(event.seq for event in events))
    for event in events:
        topic.events.remove(event)


def _words(event: Event, *, command: str, is_last: bool) -> Message | None:
    """Return what is said about a run in its thread, or about a stop to everybody."""
    match event.name:
        case EventName.RUN_STARTED if is_last:
            text = "The agent is working on it."
            return Message((section(template("⏳ I am working on it.")),), text)
        case EventName.RUN_FINISHED if event.data.get("text"):
            return agent_words(event.data["text"])
        case EventName.RUN_FAILED:
            return run_failed()
        case name if name in STOPS:
            return stop_message(event, command=command)
        case _:
            return None


def _undeliverable(approval: Approval, why: str) -> Message:
    said = template(
        "⚠️ The card of {id} cannot be shown or changed any more: Slack says {why}. "
        "Nothing is approved by that. It expires in time, and the agent is told; "
        "please invite the bot to the channel, or name another one in the policy.",
        id=code(approval.id),
        why=code(why if _PLAIN_NAME.fullmatch(why) else "unknown"),
    )
    text = "The card of an approval cannot be shown or changed any more."
    return Message((section(said),), text)
