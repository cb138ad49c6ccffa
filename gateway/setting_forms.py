"""Texts of settings that have a form: agents, graphs, channels, workspaces, tenants.

The description of a pattern is what an error says after "write".
"""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from pydantic import AfterValidator, Field

_REF = re.compile(r"[^:\s][^:]*:[A-Za-z_][A-Za-z0-9_]*")


def is_name(text: str) -> bool:
    """Return whether an agent or a tool can have this name in code, policy and keys."""
    return text.strip() == text != "" and text.isprintable()


def _agent_name(name: str) -> str:
    if not is_name(name):
        raise ValueError(
            f"{name!r} is no name of an agent; write one such as 'support', without "
            "blanks around it or characters that nobody sees."
        )
    return name


def _named(what: str, text: str) -> str:
    if _REF.fullmatch(text) is None:
        raise ValueError(f"{text!r} names no {what}; write 'folder/file.py:name'.")
    return text


AgentName = Annotated[str, AfterValidator(_agent_name)]
"""The name of an agent, as its code says it; see `gateway.client.choice.agent_name`."""

GraphRef = Annotated[str, AfterValidator(partial(_named, "graph"))]
"""Where a graph is, as ``file.py:name``."""

TriageRef = Annotated[str, AfterValidator(partial(_named, "triage"))]
"""Where a triage is, likewise."""

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
