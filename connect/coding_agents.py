"""Replies to coding agents' hooks, in the format of each program.

Codex starts a command for each call, so this module has only cheap imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from keyturn.gateway.protocol import BASE

if TYPE_CHECKING:
    from pydantic import JsonValue

WAIT_HEADER = "Keyturn-Hook-Wait"
"""The timeout of the hook in the coding agent's settings, in seconds."""

REQUESTER_HEADER = "Keyturn-Requester"
"""Slack user id of the person at the coding agent, who cannot approve its calls."""

ANSWER_HEADER = "Keyturn-Hook"
"""A header of each reply of the gateway, which another server does not send."""

TIMEOUT_S = 60.0
MARGIN_S = 5.0
"""A hook's default timeout, and the part of it that is reserved for the reply."""

STILL_WAITS = (
    "This call has not run: people still decide about it. Make exactly the same call "
    "again to go on waiting."
)
AGAIN_LATER = "Make exactly the same call again later, or tell the user."
NOT_CHANGEABLE = (
    "This call did not run: a reviewer changed it, and this program cannot run a "
    "changed call. Tell the user."
)
HANDED_BEFORE = (
    "This call may have run: its approval was handed over before. Do not repeat it. "
    "Ask the user to check whether it ran."
)

EDIT_ADVICE = (
    "If the call ran, it ran with the changed arguments. Tell the user about the "
    "change."
)

Reply: TypeAlias = "dict[str, JsonValue]"
NO_OPINION: Reply = {}
"""Leaves the call to the coding agent's rules; an approval would disable them."""


@dataclass(frozen=True)
class CodingAgent:
    """A coding agent whose hooks Keyturn answers.

    Attributes:
        path: name in the URL and in threads.
        name: name for people.
        takes_edits: the program runs changed arguments and informs its model.
        defers: the program can end its run while people decide.
    """

    path: str
    name: str
    takes_edits: bool
    defers: bool

    @property
    def url_path(self) -> str:
        """Return the path of the program's hooks at a gateway."""
        return f"{BASE}/hooks/{self.path}"


CLAUDE_CODE = CodingAgent("claude-code", "Claude Code", takes_edits=True, defers=True)
# Older versions ignore changed arguments, and would run the original ones.
CODEX = CodingAgent("codex", "Codex", takes_edits=False, defers=False)


def reply(decision: str, reason: str, **more: JsonValue) -> Reply:
    """Return a reply to a hook.

    ``reason`` must not be empty: Codex would ignore the reply and run the call.
    """
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": decision,
            "permissionDecisionReason": reason,
            **more,
        }
    }


def denied(reason: str) -> Reply:
    """Return the reply for a call that must not run."""
    return reply("deny", reason)
