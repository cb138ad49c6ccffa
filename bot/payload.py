"""Parse verified Slack payloads into typed records, strictly and completely.

Slack signed the payloads, but they may be of an unknown kind or from an unknown kind of
installation. Every parser here either returns a record or raises `BadPayload` with the
path that is missing.

Two ids name a person's workspace. ``team`` is the workspace in which they acted.
``user_team`` is the home of their account: with Slack Connect it is another company's.
Only an app that is installed on a whole organization gets ``team: null``; the bot
refuses to start with such a token.

Slack sends more than one event for a message. It repeats an event when our response was
late. It sends another ``app_mention``, with another event id, when a message that
mentions the bot is edited; in a direct message an edit arrives as ``message_changed``.
So a message is identified by its team, channel and ``ts``.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, cast

from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.errors import KeyturnError

Json = Mapping[str, object]


class BadPayload(KeyturnError):
    """A payload from Slack does not have the expected shape.

    Attributes:
        place: dotted path of the missing or wrong member, such as ``actions.0.value``.
    """

    def __init__(self, place: str, problem: str = "is missing or not a text") -> None:
        self.place = place
        super().__init__(
            f"Slack sent a payload in which {place!r} {problem}; nothing was done."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clicked:
    """A click on a button, or a choice in a menu.

    ``channel`` and ``message_ts`` identify the card; they are "" inside a modal or the
    Home tab. ``view_id`` and ``view_hash`` identify the modal or tab; they are "" on a
    card. ``is_home``: the click was on the Home tab, where nothing can be updated.
    ``digest`` identifies the signed request, and ``token`` this delivery of it: a retry
    of the click has the same token.
    """

    team: str
    user: str
    user_team: str
    channel: str = ""
    message_ts: str = ""
    action_id: str
    block_id: str
    value: str = ""
    trigger_id: str
    response_url: str = ""
    view_id: str = ""
    view_hash: str = ""
    is_home: bool = False
    digest: str = ""
    token: str = field(default_factory=partial(secrets.token_hex, 8), compare=False)

    @property
    def who(self) -> tuple[str, str]:
        """Return user id and home team of the person who clicked."""
        return self.user, self.user_team

    @property
    def gesture(self) -> Gesture:
        """Return the place of the button, for the audit log."""
        if self.is_home:
            return Gesture.APP_HOME
        return Gesture.MODAL if self.view_id else Gesture.BUTTON


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A submitted modal; ``values`` is block id, action id, the input's state.

    ``digest`` identifies the signed request.
    """

    team: str
    user: str
    user_team: str
    callback_id: str
    view_id: str
    private_metadata: str
    values: Mapping[str, Mapping[str, Json]]
    digest: str = ""
    gesture: ClassVar[Gesture] = Gesture.MODAL

    @property
    def who(self) -> tuple[str, str]:
        """Return user id and home team of the person who submitted."""
        return self.user, self.user_team


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A slash command; Slack does not name the home team of its author.

    ``digest`` identifies the signed request.
    """

    team: str
    user: str
    channel: str
    text: str
    digest: str = ""

    @property
    def who(self) -> tuple[str, str]:
        """Return user id and the workspace, as Slack names no home team here."""
        return self.user, self.team


_USER_SUBTYPES: Final = frozenset({"", "file_share", "me_message", "thread_broadcast"})
"""Subtypes of messages that a person wrote."""

_CHANGED = "message_changed"
_DELETED = "message_deleted"
_TOMBSTONE = "tombstone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A person's message that an event is about.

    ``thread_ts`` is the thread to answer in: the message's thread, else itself.
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
        """Return the message's id; it survives edits and repeated events."""
        return f"message:{self.team}:{self.channel}:{self.ts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention(Message):
    """A message for the bot: a mention in a channel, or a line in the bot's own chat.

    ``edited_ts`` is the time of the last edit, "" for an unedited message.
    ``parent_user`` wrote the message that it replies to, "" if Slack does not name one.
    """

    user_team: str
    text: str
    edited_ts: str
    parent_user: str = ""

    @property
    def agent_thread(self) -> str:
        """Return the agent's thread; `place_named` reads channel and ts from it."""
        return f"slack:{self.team}:{self.channel}:{self.thread_ts}"


def block_action(payload: Json, digest: str = "") -> Clicked:
    """Read a ``block_actions`` payload with exactly one action.

    Raises:
        BadPayload: names the missing member.
    """
    root = root_of(payload, "block_actions")
    actions = root.nodes("actions")
    # Slack sends one for a button. The first of several might not be the one that the
    # person meant.
    if len(actions) != 1:
        raise BadPayload("actions", f"holds {len(actions)} actions instead of one")
    action = actions[0]
    container, view = root.maybe("container"), root.maybe("view")
    team, user, user_team = _person(root)
    return Clicked(
        team=team,
        user=user,
        user_team=user_team,
        channel=root.maybe("channel").optional("id")
        or container.optional("channel_id"),
        message_ts=container.optional("message_ts"),
        action_id=action.text("action_id"),
        block_id=action.text("block_id"),
        # The value of a button, or of the option chosen in a menu.
        value=action.optional("value")
        or action.maybe("selected_option").optional("value"),
        trigger_id=root.text("trigger_id"),
        response_url=root.optional("response_url"),
        view_id=view.optional("id"),
        view_hash=view.optional("hash"),
        is_home=view.optional("type") == "home",
        digest=digest,
    )


def view_submission(payload: Json, digest: str = "") -> Submitted:
    """Read a ``view_submission`` payload.

    Raises:
        BadPayload: names the missing member.
    """
    root = root_of(payload, "view_submission")
    view, (team, user, user_team) = root.child("view"), _person(root)
    return Submitted(
        team=team,
        user=user,
        user_team=user_team,
        callback_id=view.text("callback_id"),
        view_id=view.text("id"),
        private_metadata=view.optional("private_metadata"),
        values=_values(view.child("state").child("values")),
        digest=digest,
    )


def command(form: Json, digest: str = "") -> Command:
    """Read the form of a slash command.

    Raises:
        BadPayload: names the missing member.
    """
    root = Node(form)
    return Command(
        team=root.text("team_id"),
        user=root.text("user_id"),
        channel=root.text("channel_id"),
        text=root.optional("text"),
        digest=digest,
    )


def without_bot(text: str, bot_user: str) -> str:
    """Return a message's text in Slack's markup, without the mentions of the bot."""
    # Everywhere and not only at the start: people also write "please @keyturn refund".
    # Some clients add a label after the bar.
    return re.sub(rf"<@{re.escape(bot_user)}(\|[^>]*)?>", " ", text).strip()


def mention(body: Json) -> Mention | None:
    """Read an ``app_mention`` event, or a ``message`` in the bot's own chat.

    Returns:
        None for messages that people did not write to the bot: other bots, joins, and
            messages in channels (their mentions arrive as separate events).

    Raises:
        BadPayload: names the missing member.
    """
    root, event, is_direct = _event(body)
    # A mention in a channel also arrives as `app_mention`; taking both would ask twice.
    if event.text("type") == "message" and not is_direct:
        return None
    message = event
    if is_direct and event.optional("subtype") == _CHANGED:
        message = event.child("message")
        # Replies and previews change a message, too, without an edit. A message that
        # was edited earlier keeps its `edited` member.
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

    A message that had replies leaves a tombstone, which Slack reports as a change.

    Raises:
        BadPayload: names the missing member.
    """
    root, event, is_direct = _event(body)
    subtype = event.optional("subtype")
    is_tombstone = (
        subtype == _CHANGED and event.child("message").optional("subtype") == _TOMBSTONE
    )
    if not is_direct or not (subtype == _DELETED or is_tombstone):
        return None
    before = event.maybe("previous_message")
    # The bot's own deletions (surplus copies of a card) are events, too.
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


class Node:
    """One object of a payload, and its path."""

    __slots__ = ("_members", "_place")

    def __init__(self, value: object, place: str = "") -> None:
        if not isinstance(value, Mapping):
            raise BadPayload(place or "payload", "is missing or not an object")
        self._members = cast("Mapping[object, object]", value)
        self._place = place

    def text(self, key: str) -> str:
        """Return a string that must be present and not empty."""
        value = self._members.get(key)
        # Empty counts as missing: two empty ids would be equal.
        if not isinstance(value, str) or not value:
            raise BadPayload(self.at(key))
        return value

    def optional(self, key: str) -> str:
        """Return a string; "" when it is absent or null."""
        value = self._members.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadPayload(self.at(key), "is not a text")
        return value

    def has(self, key: str) -> bool:
        """Return whether the member is present and not null."""
        return self._members.get(key) is not None

    def child(self, key: str) -> Node:
        """Return a required object."""
        return Node(self._members.get(key), self.at(key))

    def maybe(self, key: str) -> Node:
        """Return an object, an empty one when it is absent or null."""
        value = self._members.get(key)
        return Node({} if value is None else value, self.at(key))

    def nodes(self, key: str) -> list[Node]:
        """Return the objects of a required array."""
        value = self._members.get(key)
        # A str is a Sequence, too, and would be split into letters.
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadPayload(self.at(key), "is missing or not an array")
        elements = cast("Sequence[object]", value)
        return [Node(node, self.at(f"{key}.{i}")) for i, node in enumerate(elements)]

    def children(self) -> list[tuple[str, Node]]:
        """Return every member; each must be an object."""
        return [
            (str(key), Node(node, self.at(str(key))))
            for key, node in self._members.items()
        ]

    def as_json(self) -> Json:
        """Return the object itself."""
        return {str(key): value for key, value in self._members.items()}

    def at(self, key: str) -> str:
        """Return the dotted path of a member."""
        return f"{self._place}.{key}" if self._place else key


def root_of(payload: Json, kind: str) -> Node:
    """Return a payload of type ``kind``; raises `BadPayload` for any other."""
    root = Node(payload)
    found = root.text("type")
    if found != kind:
        raise BadPayload("type", f"is {found!r}, not {kind!r}")
    return root


def _person(root: Node) -> tuple[str, str, str]:
    """Return the workspace of the action, the user id and the home team."""
    user, team = root.child("user"), root.child("team").text("id")
    # Without a home team the workspace is used. `users.info` is always called, and
    # identifies strangers.
    return team, user.text("id"), user.optional("team_id") or team


def _values(node: Node) -> Mapping[str, Mapping[str, Json]]:
    return {
        block: {action: state.as_json() for action, state in inputs.children()}
        for block, inputs in node.children()
    }


def _team(root: Node) -> str:
    """Return the workspace in which the app got an event.

    In a channel shared by another workspace, ``team_id`` is that workspace:
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
