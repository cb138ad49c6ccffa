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
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.errors import KeyturnError

Json = Mapping[str, object]


class BadPayload(KeyturnError):
    """A payload from Slack does not have the expected shape.

    Attributes:
        place: dotted path of the missing or wrong member, such as ``actions.0.value``.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(
            f"Slack sent a payload in which {place!r} is missing or of another type; "
            "nothing was done."
        )


# Empty counts as missing: two empty ids would be equal.
_Text = Annotated[str, Field(min_length=1)]
_Optional = Annotated[
    str, BeforeValidator(lambda given: "" if given is None else given)
]


def _maybe(*places: AliasPath) -> str:
    """Return the field of the member at the first of these places; "" without one."""
    return Field("", validation_alias=AliasChoices(*places))


class _Payload(BaseModel):
    """The members of a payload that the bot reads.

    Attributes:
        team: the workspace of the action.
        user: id of the person.
        home: workspace of their account; "" if Slack does not name it.
        digest: identifies the signed request.
    """

    model_config = ConfigDict(frozen=True, strict=True, hide_input_in_errors=True)

    team: _Text = Field(validation_alias=AliasPath("team", "id"))
    user: _Text = Field(validation_alias=AliasPath("user", "id"))
    home: _Optional = _maybe(AliasPath("user", "team_id"))
    digest: str

    @classmethod
    def read(cls, payload: Json, digest: str = "") -> Self:
        """Read a payload; raises `BadPayload`, which names the wrong member."""
        try:
            return cls.model_validate({**payload, "digest": digest})
        except ValidationError as error:
            place = ".".join(map(str, error.errors()[0]["loc"]))
            raise BadPayload(place) from None

    @property
    def user_team(self) -> str:
        """Return the home team; without one `users.info` identifies strangers."""
        return self.home or self.team

    @property
    def who(self) -> tuple[str, str]:
        """Return user id and home team of the person."""
        return self.user, self.user_team


class Clicked(_Payload):
    """A click on a button, or a choice in a menu.

    ``channel`` and ``message_ts`` identify the card; they are "" inside a modal or the
    Home tab. ``view_id`` and ``view_hash`` identify the modal or tab; they are "" on a
    card.
    """

    type: Literal["block_actions"]
    # Slack sends one for a button. The first of several might not be the one that the
    # person meant.
    actions: Annotated[list[object], Field(min_length=1, max_length=1)]
    action_id: _Text = Field(validation_alias=AliasPath("actions", 0, "action_id"))
    block_id: _Text = Field(validation_alias=AliasPath("actions", 0, "block_id"))
    # The value of a button, or of the option chosen in a menu.
    value: _Optional = _maybe(
        AliasPath("actions", 0, "value"),
        AliasPath("actions", 0, "selected_option", "value"),
    )
    channel: _Optional = _maybe(
        AliasPath("channel", "id"), AliasPath("container", "channel_id")
    )
    message_ts: _Optional = _maybe(AliasPath("container", "message_ts"))
    trigger_id: _Text
    response_url: _Optional = ""
    view_id: _Optional = _maybe(AliasPath("view", "id"))
    view_hash: _Optional = _maybe(AliasPath("view", "hash"))
    view_type: _Optional = _maybe(AliasPath("view", "type"))
    # The inputs of the modal so far.
    values: dict[str, dict[str, dict[str, object]]] = Field(
        {}, validation_alias=AliasPath("view", "state", "values")
    )

    @property
    def is_home(self) -> bool:
        """Return whether the click was on the Home tab, which Slack cannot update."""
        return self.view_type == "home"

    @property
    def gesture(self) -> Gesture:
        """Return the place of the button, for the audit log."""
        if self.is_home:
            return Gesture.APP_HOME
        return Gesture.MODAL if self.view_id else Gesture.BUTTON


class Submitted(_Payload):
    """A submitted modal; ``values`` is block id, action id, the input's state."""

    type: Literal["view_submission"]
    callback_id: _Text = Field(validation_alias=AliasPath("view", "callback_id"))
    view_id: _Text = Field(validation_alias=AliasPath("view", "id"))
    private_metadata: _Optional = _maybe(AliasPath("view", "private_metadata"))
    values: dict[str, dict[str, dict[str, object]]] = Field(
        validation_alias=AliasPath("view", "state", "values")
    )
    gesture: ClassVar[Gesture] = Gesture.MODAL


class Command(_Payload):
    """A slash command; Slack does not name the home team of its author."""

    team: _Text = Field(validation_alias="team_id")
    user: _Text = Field(validation_alias="user_id")
    channel: _Text = Field(validation_alias="channel_id")
    text: _Optional = ""


_USER_SUBTYPES: Final = frozenset({"", "file_share", "me_message", "thread_broadcast"})
"""Subtypes of messages that a person wrote."""


def _in_event(*path: str) -> tuple[AliasPath, AliasPath]:
    """Return the places of a message's member: of a changed message, or another one."""
    return AliasPath("event", "message", *path), AliasPath("event", *path)


class Mention(_Payload):
    """A message for the bot: a mention in a channel, or a line in the bot's own chat.

    ``edited_ts`` is the time of the last edit, "" for an unedited message.
    ``parent_user`` wrote the message that it replies to, "" if Slack does not name one.
    ``event_id`` is the same when Slack delivers the event again.
    """

    type: Literal["event_callback"]
    # In a channel shared by another workspace, ``team_id`` is that workspace:
    # https://github.com/slackapi/java-slack-sdk/issues/629
    team: _Text = Field(
        validation_alias=AliasChoices(
            AliasPath("authorizations", 0, "team_id"), AliasPath("team_id")
        )
    )
    user: _Optional = _maybe(*_in_event("user"))
    home: _Optional = _maybe(*_in_event("user_team"), *_in_event("team"))
    event_id: _Text
    event: Literal["app_mention", "message"] = Field(
        validation_alias=AliasPath("event", "type")
    )
    channel: _Text = Field(validation_alias=AliasPath("event", "channel"))
    channel_type: _Optional = _maybe(AliasPath("event", "channel_type"))
    change: _Optional = _maybe(AliasPath("event", "subtype"))
    subtype: _Optional = _maybe(AliasPath("event", "message", "subtype"))
    bot_id: object = Field(None, validation_alias=AliasChoices(*_in_event("bot_id")))
    ts: _Text = Field(validation_alias=AliasChoices(*_in_event("ts")))
    thread: _Optional = _maybe(*_in_event("thread_ts"))
    text: _Optional = _maybe(*_in_event("text"))
    edited_ts: _Optional = _maybe(*_in_event("edited", "ts"))
    edited_before: _Optional = _maybe(
        AliasPath("event", "previous_message", "edited", "ts")
    )
    parent_user: _Optional = _maybe(*_in_event("parent_user_id"))

    @property
    def thread_ts(self) -> str:
        """Return the thread to answer in: the message's thread, else itself."""
        return self.thread or self.ts

    @property
    def message_key(self) -> str:
        """Return the message's id; it survives edits and repeated events."""
        return f"message:{self.team}:{self.channel}:{self.ts}"

    @property
    def agent_thread(self) -> str:
        """Return the name of the agent's thread."""
        return f"slack:{self.team}:{self.channel}:{self.thread_ts}"

    @property
    def is_by_person(self) -> bool:
        """Return whether a person wrote this to the bot, or changed its words."""
        is_direct = self.channel_type == "im"
        # A mention in a channel also arrives as `app_mention`; taking both would ask
        # twice. Two agents that mention each other would never end.
        if self.bot_id is not None or (self.event == "message" and not is_direct):
            return False
        if self.change != "message_changed":
            return self.change in _USER_SUBTYPES
        # Replies and previews change a message, too, without an edit. A message that
        # was edited earlier keeps its `edited` member.
        is_edit = bool(self.edited_ts) and self.edited_ts != self.edited_before
        return is_direct and is_edit and self.subtype in _USER_SUBTYPES


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
    found = Mention.read(body)
    if not found.is_by_person:
        return None
    if not found.user:
        raise BadPayload("event.user")
    return found
