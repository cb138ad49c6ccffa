"""Texts of settings that have a form: channels, commands, workspaces, tenants.

The description of each is what an error says after "write".
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

ChannelName = Annotated[
    str,
    Field(
        pattern=r"^(#[^\s#]{1,80}|[CG][A-Z0-9]+)?$",
        description="#name in quotes, or an id such as C0123456789",
    ),
]
"""A channel of Slack, by name or id; "" is none."""

CommandName = Annotated[
    str,
    Field(
        pattern=r"^/[a-z0-9_-]{1,31}$",
        description="a command such as /approvals, in lower case",
    ),
]
"""A slash command of Slack."""

TeamId = Annotated[
    str,
    Field(
        pattern=r"^(T[A-Z0-9]+)?$",
        description="the id of a workspace, such as T0123456789",
    ),
]
"""A workspace of Slack; "" is that of the bot token."""

TenantName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$",
        description="lower-case letters, digits, '-' and '_', 64 at most",
    ),
]
"""The name of a tenant; it is a part of keys in the store."""
