"""Parse Slack's message events: app mentions and direct messages to the bot.

Slack sends more than one event for a message. It repeats an event when our response was
late. It sends another ``app_mention``, with another event id, when a message that
mentions the bot is edited; in a direct message an edit comes as ``message_changed``. So
a message is identified by its team, channel and ``ts``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from keyturn.bot.payload import BadPayload, Json, Node, root_of

_USER_SUBTYPES: Final = frozenset({"", "file_share", "me_message", "thread_broadcast"})
"""Subtypes of a message in which a person says something."""

_CHANGED = "message_changed"
_DELETED = "message_deleted"
_TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A person's message that an event is about.

    ``thread_ts`` is the thread to answer in: the message's own thread, else itself.
    ``event_id`` is the same when Slack delivers the event again.
    """

    team: str
    user: str
    channel: str
    ts: str
    thread_ts: str
    event_id: str

    @property
    def message_key(self) -> str:
        """Return the name of the message, whatever Slack repeats and people edit."""
        return f"message:{self.team}:{self.channel}:{self.ts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention(Message):
    """A message for the bot: a mention in a channel, or a line in its own chat.

    ``edited_ts`` is when the text was last edited, "" for a message as it was first
    written. ``parent_user`` wrote the message that it is a reply to, "" where Slack
    does not say.
    """

    user_team: str
    text: str
    edited_ts: str
    parent_user: str = ""

    @property
    def agent_thread(self) -> str:
        """Return the agent's thread; `place_named` reads channel and ts from it."""
        return f"slack:{self.team}:{self.channel}:{self.thread_ts}"


def without_bot(text: str, bot_user: str) -> str:
    """Return a message as Slack sends it, without the mentions of the bot."""
    # Everywhere and not only at the start: people also write "please @keyturn refund".
    # A label behind the bar is what Slack adds for some clients.
    return re.sub(rf"<@{re.escape(bot_user)}(\|[^>]*)?>", " ", text).strip()


def mention(body: Json) -> Mention | None:
    """Read an ``app_mention`` event, or a ``message`` in the bot's own chat.

    Returns:
        None for what no person said to the bot: other bots, joins, and messages of
        channels (their mentions come as events of their own).

    Raises:
        BadPayload: names what is missing.
    """
    root, event, is_direct = _event(body)
    # A mention in a channel comes as `app_mention` as well; taking both would ask
    # twice.
    if event.text("type") == "message" and not is_direct:
        return None
    message = event
    if is_direct and event.optional("subtype") == _CHANGED:
        message = event.child("message")
        # Replies and previews change a message, too: nobody edited it then. One that
        # was edited earlier says so for ever.
        edited_ts = message.maybe("edited").optional("ts")
        before = event.maybe("previous_message").maybe("edited").optional("ts")
        if not message.has("edited") or (before and before == edited_ts):
            return None
    # Two agents that mention each other would never end.
    if event.has("bot_id") or message.has("bot_id"):
        return None
    if message.optional("subtype") not in _USER_SUBTYPES:
        return None
    ts, team = message.text("ts"), _team(root)
    return Mention(
        team=team,
        user=message.text("user"),
        user_team=message.optional("user_team") or message.optional("team") or team,
        channel=event.text("channel"),
        ts=ts,
        thread_ts=message.optional("thread_ts") or ts,
        text=message.optional("text"),
        event_id=root.text("event_id"),
        edited_ts=message.maybe("edited").optional("ts"),
        parent_user=message.optional("parent_user_id"),
    )


def deleted_message(body: Json) -> Message | None:
    """Return the deleted message of the bot's own chat; None for anything else.

    A message that had replies leaves a tombstone: Slack calls that a change.

    Raises:
        BadPayload: names what is missing.
    """
    root, event, is_direct = _event(body)
    subtype = event.optional("subtype")
    is_tombstone = (
        subtype == _CHANGED and event.child("message").optional("subtype") == _TOMBSTONE
    )
    if not is_direct or not (subtype == _DELETED or is_tombstone):
        return None
    before = event.maybe("previous_message")
    # What the bot deletes itself (a surplus copy of a card) is an event, too.
    if before.has("bot_id") or not before.has("user"):
        return None
    ts = before.text("ts")
    return Message(
        team=_team(root),
        user=before.text("user"),
        channel=event.text("channel"),
        ts=ts,
        thread_ts=before.optional("thread_ts") or ts,
        event_id=root.text("event_id"),
    )


def _team(root: Node) -> str:
    """Return the workspace in which the app got an event.

    In a channel that another workspace shares, ``team_id`` is that workspace:
    https://github.com/slackapi/java-slack-sdk/issues/629
    """
    installed = root.nodes("authorizations") if root.has("authorizations") else []
    return installed[0].optional("team_id") if installed else root.text("team_id")


def _event(body: Json) -> tuple[Node, Node, bool]:
    """Return the envelope, the event, and whether it is from the bot's own chat."""
    root = root_of(body, "event_callback")
    event = root.child("event")
    kind = event.text("type")
    if kind not in {"app_mention", "message"}:
        raise BadPayload("event.type", f"is {kind!r}, not a message")
    return root, event, event.optional("channel_type") == "im"
