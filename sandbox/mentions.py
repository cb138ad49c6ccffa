"""Encode mentions as Slack sends them, and find which users they notify."""

import re
from collections.abc import Iterator, Sequence

from keyturn.sandbox.json_types import JsonObject, as_object, is_list
from keyturn.sandbox.records import Channel
from keyturn.sandbox.workspace import Workspace

USER = re.compile(r"(?<!\w)@([\w.-]+)")
CHANNEL = re.compile(r"(?<!\w)#([\w-]+)")
_MENTION = re.compile(r"<(?:@|!subteam\^)([A-Z0-9]+)(?:\|[^<>]*)?>")


def escaped(workspace: Workspace, text: str, *, labels: bool = False) -> str:
    """Return text with & < > escaped and @names and #names replaced by ids.

    With `labels` the name follows the id, as in slash commands that set
    `should_escape`: `<@U0ANA|ana>`. Source:
    https://docs.slack.dev/messaging/formatting-message-text
    """
    users = {user.name.lower(): user.id for user in workspace.users.values()}
    users[workspace.app.name.lower()] = workspace.app.bot_user
    channels = {
        channel.name: channel.id
        for channel in workspace.channels.values()
        if not (channel.is_im or channel.is_private)
    }

    def linked(mark: str, name: str, found: str | None, typed: str) -> str:
        if found is None:
            return typed
        return f"<{mark}{found}|{name}>" if labels else f"<{mark}{found}>"

    plain = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    with_users = USER.sub(
        lambda m: linked("@", m[1].lower(), users.get(m[1].lower()), m[0]), plain
    )
    return CHANNEL.sub(
        lambda m: linked("#", m[1], channels.get(m[1]), m[0]), with_users
    )


def mentions_bot(workspace: Workspace, text: str) -> bool:
    """Return True if an escaped text mentions the bot."""
    return f"<@{workspace.app.bot_user}>" in text


def notified(
    workspace: Workspace,
    channel: Channel,
    text: str,
    blocks: Sequence[JsonObject] | None,
) -> frozenset[str]:
    """Return the users that a new message notifies by mentions; a change notifies none.

    If there are blocks, only they count; the text is shown only in the notification.
    Markup and rich text mention; plain and preformatted text does not.
    """
    named = {*_MENTION.findall(text)} if not blocks else {*_mentioned(list(blocks))}
    for group in workspace.groups.values():
        if group.id in named and not group.is_disabled:
            named.update(group.users)
    people = (workspace.users[one] for one in named if one in workspace.users)
    return frozenset(one.id for one in people if workspace.can_see(one, channel))


def _mentioned(node: object) -> Iterator[str]:
    document = as_object(node)
    inside = node if is_list(node) else [*document.values()]
    kind = document.get("type")
    if kind == "mrkdwn":
        yield from _MENTION.findall(str(document.get("text")))
    elif kind in {"user", "usergroup"}:
        yield str(document.get(f"{kind}_id"))
    else:
        for each in inside:
            yield from _mentioned(each)
