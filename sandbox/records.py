"""Records of the fake workspace: people, channels, messages, views."""

from dataclasses import dataclass, field

from keyturn.sandbox.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class User:
    """A person or bot in the workspace."""

    id: str
    name: str
    real_name: str
    team_id: str
    color: str = "4a7a8c"
    tz: str = "Europe/London"
    is_bot: bool = False
    deleted: bool = False
    is_restricted: bool = False
    is_ultra_restricted: bool = False
    is_stranger: bool = False

    @property
    def is_full_member(self) -> bool:
        """Return True for an ordinary person of this workspace."""
        return not (
            self.is_bot
            or self.deleted
            or self.is_restricted
            or self.is_ultra_restricted
            or self.is_stranger
        )


@dataclass(frozen=True, slots=True)
class Channel:
    """A place for messages; a direct message is a channel with a peer.

    `host` is the workspace that shared it with this one, "" if it is local.
    """

    id: str
    name: str
    members: frozenset[str]
    is_private: bool = False
    is_archived: bool = False
    peer: str | None = None
    host: str = ""

    @property
    def is_im(self) -> bool:
        """Return True for the direct message between a person and the bot."""
        return self.peer is not None


@dataclass(frozen=True, slots=True)
class UserGroup:
    """A named set of people, such as @support."""

    id: str
    handle: str
    name: str
    users: tuple[str, ...]
    is_disabled: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A message as stored; `ephemeral_to` is the only person who sees it.

    `notified` are the users that Slack notified of mentions in the original post. A
    tombstone replaces a deleted message with replies.
    """

    channel: str
    ts: str
    user: str
    text: str
    is_bot: bool = False
    blocks: tuple[JsonObject, ...] | None = None
    thread_ts: str | None = None
    edited: bool = False
    edited_ts: str = ""
    ephemeral_to: str | None = None
    metadata: JsonObject | None = None
    is_tombstone: bool = False
    notified: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class View:
    """A modal or Home view of one person, with the current input.

    `document` is the app's view with every block_id and action_id filled in; `values`
    is Slack's `state.values`; `errors` are shown at the inputs.
    """

    id: str
    user: str
    document: JsonObject
    values: JsonObject
    hash: str
    root_view_id: str
    previous_view_id: str | None = None
    errors: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def blocks(self) -> list[JsonObject]:
        """Return the view's blocks."""
        blocks: list[JsonObject] = self.document["blocks"]
        return blocks


@dataclass(frozen=True, slots=True)
class Notice:
    """A system message of Slack to one person."""

    id: str
    text: str
    level: str
    at: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A button on the page that posts `text` in `channel`, a message for each line.

    `user` is the author; "" means the person who uses the page.
    """

    label: str
    text: str
    channel: str
    user: str = ""


@dataclass(frozen=True, slots=True)
class AppIdentity:
    """The app that is installed in the workspace, and its bot user."""

    id: str = "A0KEYTURN"
    name: str = "Keyturn"
    bot_user: str = "U0KEYTURN"
    bot_id: str = "B0KEYTURN"
