"""Write what a person typed the way Slack sends it to apps."""

import re

from bot.sandbox.workspace import Workspace

USER = re.compile(r"(?<!\w)@([\w.-]+)")
CHANNEL = re.compile(r"(?<!\w)#([\w-]+)")


def escaped(workspace: Workspace, text: str, *, labels: bool = False) -> str:
    """Return text with & < > escaped and @names and #names turned into ids.

    With `labels` the name stays beside the id, as in slash commands that set
    `should_escape`: `<@U0ANA|ana>`.
    Source: https://docs.slack.dev/messaging/formatting-message-text
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
    """Tell whether an escaped text calls the bot."""
    return f"<@{workspace.app.bot_user}>" in text
