"""Web API methods about the workspace: ``users.*``, ``conversations.*``."""

import math
from collections.abc import Callable, Iterable

from keyturn.sandbox import messages
from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.arguments import flag, optional, page, required
from keyturn.sandbox.fake_slack import FakeSlack
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.records import Channel, Message, User, UserGroup


def api_test(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Echo the arguments; an `error` argument comes back as the error."""
    del slack
    if error := optional(arguments, "error"):
        raise ApiError(error, args=arguments)
    return {"args": arguments}


def auth_test(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Return the identity of the token's owner."""
    del arguments
    workspace = slack.workspace
    enterprise, is_org = workspace.enterprise_id, workspace.is_enterprise_install
    identity: JsonObject = {
        "url": f"{slack.base_url}/",
        "team": workspace.team_name,
        "team_id": enterprise if is_org else workspace.team_id,
        "user": workspace.users[workspace.app.bot_user].name,
        "user_id": workspace.app.bot_user,
        "bot_id": workspace.app.bot_id,
        "is_enterprise_install": is_org,
    }
    return identity | ({"enterprise_id": enterprise} if enterprise else {})


def oauth_v2_access(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Exchange a code or a refresh token for a bot token."""
    return slack.installer.exchange(arguments)


def auth_revoke(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Confirm that the caller's token was revoked; `WebApi` does it."""
    del slack, arguments
    return {"revoked": True}


def bots_info(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Describe the bot."""
    app = slack.workspace.app
    if optional(arguments, "bot") not in (None, app.bot_id):
        raise ApiError("bot_not_found")
    return {
        "bot": {
            "id": app.bot_id,
            "app_id": app.id,
            "user_id": app.bot_user,
            "name": app.name,
            "deleted": False,
        }
    }


def users_info(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Describe one person."""
    return {"user": _user(slack.workspace.user(required(arguments, "user")))}


def users_list(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List all users, including deactivated ones."""
    members = [_user(user) for user in slack.workspace.users.values()]
    return {**page(members, arguments, "members"), "cache_ts": int(slack.clock.now())}


def usergroups_list(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List the user groups; `include_users` and `include_disabled` add to that."""
    with_users = flag(arguments, "include_users")
    with_disabled = flag(arguments, "include_disabled")
    known = slack.workspace.groups.values()
    groups = [group for group in known if with_disabled or not group.is_disabled]
    return {"usergroups": [_group(slack, group, with_users) for group in groups]}


def usergroups_users_list(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List the people of one user group."""
    workspace = slack.workspace
    # https://docs.slack.dev/enterprise/developing-for-enterprise-orgs
    is_org = workspace.is_enterprise_install
    if is_org and required(arguments, "team_id") != workspace.team_id:
        raise ApiError("team_not_found")
    group = workspace.groups.get(required(arguments, "usergroup"))
    with_disabled = flag(arguments, "include_disabled")
    if group is None or (group.is_disabled and not with_disabled):
        raise ApiError("no_such_subteam")
    return {"users": _active(slack, group.users)}


def conversations_info(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Describe one conversation."""
    channel = _channel(slack, arguments, "read")
    return {"channel": _conversation(slack, channel)}


def conversations_list(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List the conversations of the requested types that the bot may see."""
    types = (optional(arguments, "types") or "public_channel").split(",")
    for kind in types:
        if kind not in KINDS:
            raise ApiError("invalid_types")
        _need(slack, f"{KINDS[kind]}:read")
    shown = [
        _conversation(slack, channel)
        for channel in slack.workspace.channels.values()
        if _kind(channel) in types
        and not (channel.is_archived and flag(arguments, "exclude_archived"))
        and not (channel.is_private and not _bot_in(slack, channel))
    ]
    return page(shown, arguments, "channels")


def conversations_members(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List the ids of a conversation's members."""
    channel = _channel(slack, arguments, "read")
    rows: list[JsonObject] = [{"id": user} for user in sorted(channel.members)]
    result = page(rows, arguments, "members")
    result["members"] = [row["id"] for row in result["members"]]
    return result


def conversations_open(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """Return the direct message with one person."""
    users = str(arguments.get("users") or "")
    if "," in users:
        raise ApiError("method_not_supported_for_channel_type")
    user = slack.workspace.user(users or required(arguments, "users"))
    if user.deleted:
        raise ApiError("user_disabled")
    if user.is_bot:
        raise ApiError("cannot_dm_bot")
    channel = slack.workspace.direct_message(user.id)
    return {"channel": {"id": channel.id}}


def conversations_history(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List a conversation's messages outside threads, newest first."""
    channel = _channel(slack, arguments, "history")
    stored = slack.workspace.messages[channel.id].values()
    tops = [m for m in stored if m.thread_ts is None and _within(m, arguments)]
    rows = [_listed(slack, message, arguments) for message in reversed(tops)]
    return page(rows, arguments, "messages")


def conversations_replies(slack: FakeSlack, arguments: JsonObject) -> JsonObject:
    """List a message and its thread, oldest first."""
    channel = _channel(slack, arguments, "history")
    ts = required(arguments, "ts")
    stored = slack.workspace.messages[channel.id]
    if ts not in stored:
        raise ApiError("thread_not_found")
    rows = [
        _listed(slack, message, arguments)
        for message in stored.values()
        if ts in (message.ts, message.thread_ts) and _within(message, arguments)
    ]
    return page(rows, arguments, "messages")


def _listed(slack: FakeSlack, message: Message, arguments: JsonObject) -> JsonObject:
    """Return a message as in lists: with metadata only on request."""
    shown = messages.wire(slack, message)
    if not flag(arguments, "include_all_metadata"):
        shown.pop("metadata", None)
    return shown


KINDS = {"public_channel": "channels", "private_channel": "groups", "im": "im"}
"""The kinds of conversation, and the first half of each kind's scope."""


def _kind(channel: Channel) -> str:
    if channel.is_im:
        return "im"
    return "private_channel" if channel.is_private else "public_channel"


def _need(slack: FakeSlack, scope: str) -> None:
    provided = slack.workspace.bot_scopes
    if scope not in provided:
        raise ApiError("missing_scope", needed=scope, provided=",".join(provided))


def _channel(slack: FakeSlack, arguments: JsonObject, what: str) -> Channel:
    wanted = required(arguments, "channel")
    channel = slack.workspace.channels.get(wanted)
    if channel is None or (channel.is_private and not _bot_in(slack, channel)):
        raise ApiError("channel_not_found")
    _need(slack, f"{KINDS[_kind(channel)]}:{what}")
    # A scope is not enough: a bot can read only where it is a member.
    if what == "history" and not _bot_in(slack, channel):
        raise ApiError("not_in_channel")
    return channel


def _bot_in(slack: FakeSlack, channel: Channel) -> bool:
    return slack.workspace.app.bot_user in channel.members


def _within(message: Message, arguments: JsonObject) -> bool:
    ts = float(message.ts)
    oldest = _moment(arguments, "oldest", -math.inf)
    latest = _moment(arguments, "latest", math.inf)
    if flag(arguments, "inclusive"):
        return oldest <= ts <= latest
    return oldest < ts < latest


def _moment(arguments: JsonObject, name: str, otherwise: float) -> float:
    value = optional(arguments, name)
    try:
        return otherwise if value is None else float(value)
    except ValueError:
        raise ApiError(f"invalid_ts_{name}") from None


def _conversation(slack: FakeSlack, channel: Channel) -> JsonObject:
    shown: JsonObject = {
        "id": channel.id,
        "is_channel": not (channel.is_im or channel.is_private),
        "is_group": channel.is_private,
        "is_im": channel.is_im,
        "is_private": channel.is_private or channel.is_im,
        "is_archived": channel.is_archived,
    }
    if channel.peer is not None:
        return shown | {"user": channel.peer}
    return shown | {
        "name": channel.name,
        "is_member": _bot_in(slack, channel),
        "num_members": len(channel.members),
    }


def _active(slack: FakeSlack, users: Iterable[str]) -> list[str]:
    known = slack.workspace.users
    return [user for user in users if user in known and not known[user].deleted]


def _group(slack: FakeSlack, group: UserGroup, with_users: bool) -> JsonObject:  # noqa: FBT001 - one caller
    users = _active(slack, group.users)
    shown: JsonObject = {
        "id": group.id,
        "team_id": slack.workspace.team_id,
        "handle": group.handle,
        "name": group.name,
        "is_usergroup": True,
        "user_count": len(users),
        "date_delete": int(slack.clock.now()) if group.is_disabled else 0,
    }
    return shown | {"users": users} if with_users else shown


def _user(user: User) -> JsonObject:
    return {
        "id": user.id,
        "team_id": user.team_id,
        "name": user.name,
        "real_name": user.real_name,
        "color": user.color,
        "tz": user.tz,
        "deleted": user.deleted,
        "is_bot": user.is_bot,
        "is_restricted": user.is_restricted,
        "is_ultra_restricted": user.is_ultra_restricted,
        "is_stranger": user.is_stranger,
        "profile": {
            "real_name": user.real_name,
            "display_name": user.name,
            "team": user.team_id,
        },
    }


METHODS: dict[str, Callable[[FakeSlack, JsonObject], JsonObject]] = {
    "api.test": api_test,
    "auth.revoke": auth_revoke,
    "auth.test": auth_test,
    "bots.info": bots_info,
    "conversations.history": conversations_history,
    "conversations.info": conversations_info,
    "conversations.list": conversations_list,
    "conversations.members": conversations_members,
    "conversations.open": conversations_open,
    "conversations.replies": conversations_replies,
    "oauth.v2.access": oauth_v2_access,
    "usergroups.list": usergroups_list,
    "usergroups.users.list": usergroups_users_list,
    "users.info": users_info,
    "users.list": users_list,
}
