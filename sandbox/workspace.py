"""In-memory state of one Slack workspace; notifies watchers of changes."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.records import (
    AppIdentity,
    Channel,
    Message,
    Notice,
    User,
    UserGroup,
    View,
)

Blocks: TypeAlias = tuple[JsonObject, ...]
Watcher: TypeAlias = Callable[[frozenset[str]], None]
"""Called after a change with the ids of all users who can see it."""

DEFAULT_BOT_SCOPES = (
    "app_mentions:read",
    "channels:history",
    "chat:write",
    "commands",
    "groups:history",
    "im:history",
    "im:write",
    "users:read",
    "usergroups:read",
)
EVENTS = (
    "app_home_opened",
    "app_mention",
    "app_uninstalled",
    "message.im",
    "tokens_revoked",
)
MAX_NOTICES = 20
MAX_FORMER = 20


@dataclass(slots=True)
class Workspace:
    """The data of a workspace, without time or I/O.

    Change it through its methods, so that watchers are notified and `seq` grows.

    Attributes:
        enterprise_id: id of its organization (Enterprise Grid); "" for none.
        is_enterprise_install: the app is installed for the whole organization.
    """

    team_id: str
    team_name: str
    users: dict[str, User]
    channels: dict[str, Channel]
    groups: dict[str, UserGroup]
    app: AppIdentity = field(default_factory=AppIdentity)
    bot_scopes: tuple[str, ...] = DEFAULT_BOT_SCOPES
    commands: tuple[str, ...] = ("/approvals",)
    events: tuple[str, ...] = EVENTS
    enterprise_id: str = ""
    is_enterprise_install: bool = False
    home_enabled: bool = True
    edit_window_s: float | None = None
    seq: int = 0
    messages: dict[str, dict[str, Message]] = field(
        default_factory=lambda: defaultdict[str, dict[str, Message]](dict)
    )
    ephemerals: dict[str, Message] = field(default_factory=dict[str, Message])
    modals: dict[str, list[View]] = field(
        default_factory=lambda: defaultdict[str, list[View]](list)
    )
    homes: dict[str, View] = field(default_factory=dict[str, View])
    notices: dict[str, list[Notice]] = field(
        default_factory=lambda: defaultdict[str, list[Notice]](list)
    )
    message_values: dict[tuple[str, str, str], JsonObject] = field(
        default_factory=dict[tuple[str, str, str], JsonObject]
    )
    deleted: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    former_blocks: dict[tuple[str, str], list[Blocks]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], list[Blocks]](list)
    )
    former_homes: dict[str, list[Blocks]] = field(
        default_factory=lambda: defaultdict[str, list[Blocks]](list)
    )
    watchers: list[Watcher] = field(default_factory=list[Watcher])

    # Looking

    def user(self, user_id: object) -> User:
        """Return a user, or raise `user_not_found`."""
        found = self.users.get(str(user_id))
        if found is None:
            raise ApiError("user_not_found")
        return found

    def channel(self, channel_id: object) -> Channel:
        """Return a channel, or raise `channel_not_found`."""
        found = self.channels.get(str(channel_id))
        if found is None:
            raise ApiError("channel_not_found")
        return found

    def people(self) -> list[User]:
        """Return all people, including deactivated ones, but no bots."""
        return [user for user in self.users.values() if not user.is_bot]

    def direct_message(self, user_id: str) -> Channel:
        """Return the channel between a person and the bot; it is made on first use."""
        bot = self.app.bot_user
        for channel in self.channels.values():
            # A channel with the bot of an earlier installation is another conversation.
            if channel.peer == user_id and bot in channel.members:
                return channel
        channel_id = f"D{user_id[1:]}"
        while channel_id in self.channels:  # W0ANA, if U0ANA has one
            channel_id += "0"
        channel = Channel(
            id=channel_id,
            name="directmessage",
            members=frozenset({user_id, bot}),
            peer=user_id,
        )
        self.channels[channel.id] = channel
        self.changed({user_id})
        return channel

    def can_see(self, user: User, channel: Channel) -> bool:
        """Return True if a person may read a channel: members, or all if public."""
        if user.id in channel.members:
            return True
        return user.is_full_member and not (channel.is_private or channel.is_im)

    def audience(self, channel: Channel) -> frozenset[str]:
        """Return the ids of all users who may read a channel."""
        seeing = (u for u in self.users.values() if self.can_see(u, channel))
        return frozenset(user.id for user in seeing)

    def message(self, channel_id: str, ts: str, user_id: str) -> Message:
        """Return a message that a person can see, or raise `message_not_found`."""
        found = self.messages[channel_id].get(ts) or self.ephemerals.get(ts)
        if (
            found is None
            or found.channel != channel_id
            or found.ephemeral_to not in (None, user_id)
        ):
            raise ApiError("message_not_found")
        return found

    def visible_messages(self, channel: Channel, user_id: str) -> list[Message]:
        """Return all messages of a channel that a person sees, oldest first."""
        own = [
            message
            for message in self.ephemerals.values()
            if message.channel == channel.id and message.ephemeral_to == user_id
        ]
        shown = [*self.messages[channel.id].values(), *own]
        return sorted(shown, key=lambda message: message.ts)

    def shown_blocks(self, message: Message) -> list[Blocks]:
        """Return the current and earlier content of a message, newest first."""
        former = self.former_blocks.get((message.channel, message.ts), [])
        return [message.blocks or (), *reversed(former)]

    def shown_in(self, view: View) -> list[Blocks]:
        """Return the current content of a view, and a Home tab's former ones.

        The newest comes first.
        """
        home = self.homes.get(view.user)
        is_home = home is not None and home.id == view.id
        former = self.former_homes.get(view.user, []) if is_home else []
        return [tuple(view.blocks), *reversed(former)]

    # Changing

    def changed(self, seen_by: Iterable[str]) -> None:
        """Count a change and notify all watchers."""
        self.seq += 1
        audience = frozenset(seen_by)
        for watcher in tuple(self.watchers):
            watcher(audience)

    def put_message(self, message: Message) -> None:
        """Store a new or changed message; its earlier content is kept."""
        place = (message.channel, message.ts)
        before = self.messages[message.channel].get(message.ts)
        before = before or self.ephemerals.get(message.ts)
        if before is not None and before.blocks and before.blocks != message.blocks:
            self.former_blocks[place].append(before.blocks)
            del self.former_blocks[place][:-MAX_FORMER]
        if message.ephemeral_to is not None:
            self.ephemerals[message.ts] = message
            self.changed({message.ephemeral_to})
            return
        self.messages[message.channel][message.ts] = message
        self.changed(self.audience(self.channels[message.channel]))

    def put_home(self, view: View) -> None:
        """Replace a person's Home view; its earlier content is kept."""
        before = self.homes.get(view.user)
        if before is not None:
            self.former_homes[view.user].append(tuple(before.blocks))
            del self.former_homes[view.user][:-MAX_FORMER]
        self.homes[view.user] = view
        self.changed({view.user})

    def drop_message(self, message: Message) -> None:
        """Remove a message permanently."""
        if message.ephemeral_to is not None:
            self.ephemerals.pop(message.ts, None)
            self.changed({message.ephemeral_to})
            return
        self.messages[message.channel].pop(message.ts, None)
        self.deleted.add((message.channel, message.ts))
        self.changed(self.audience(self.channels[message.channel]))

    def put_user(self, user: User) -> None:
        """Add or change a user."""
        self.users[user.id] = user
        self.changed(self.users)

    def put_channel(self, channel: Channel) -> None:
        """Add or change a channel."""
        self.channels[channel.id] = channel
        self.changed(self.users)

    def put_group(self, group: UserGroup) -> None:
        """Add or change a user group."""
        self.groups[group.id] = group
        self.changed(self.users)

    def set_group(self, group_id: str, users: Iterable[str]) -> None:
        """Replace the people of a user group, or raise `no_such_subteam`."""
        if group_id not in self.groups:
            raise ApiError("no_such_subteam")
        self.put_group(replace(self.groups[group_id], users=tuple(users)))

    def set_deleted(self, user_id: str, *, deleted: bool) -> None:
        """Deactivate a person, or reactivate them."""
        self.put_user(replace(self.user(user_id), deleted=deleted))

    def set_archived(self, channel_id: str, *, archived: bool) -> None:
        """Archive or unarchive a channel."""
        self.put_channel(replace(self.channel(channel_id), is_archived=archived))

    def set_channel_id(self, channel_id: str, new_id: str) -> None:
        """Give a channel another id; its messages keep their ts."""
        channel = self.channel(channel_id)
        del self.channels[channel_id]
        held = self.messages.pop(channel_id, {})
        self.messages[new_id] = {
            ts: replace(message, channel=new_id) for ts, message in held.items()
        }
        self.put_channel(replace(channel, id=new_id))

    def join(self, channel_id: str, user_id: str) -> None:
        """Add a person or the bot to a channel."""
        channel = self.channel(channel_id)
        self.put_channel(replace(channel, members=channel.members | {user_id}))

    def leave(self, channel_id: str, user_id: str) -> None:
        """Remove a person or the bot from a channel."""
        channel = self.channel(channel_id)
        self.put_channel(replace(channel, members=channel.members - {user_id}))

    def notify(self, user_id: str, notice: Notice) -> None:
        """Show a system message of Slack to one person; only the newest are kept."""
        kept = self.notices[user_id]
        kept.append(notice)
        del kept[:-MAX_NOTICES]
        self.changed({user_id})
