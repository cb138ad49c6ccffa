"""Hooks of coding agents: their requests and answers, as these programs write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from keyturn.gateway.protocol.http_api import BASE

WAIT_HEADER = "Keyturn-Hook-Wait"
"""The timeout of the hook in the coding agent's settings, in seconds."""

REQUESTER_HEADER = "Keyturn-Requester"
"""Slack user id of the person at the coding agent, who cannot approve its calls."""

TIMEOUT_S = 60.0
MARGIN_S = 5.0
"""A hook's usual timeout, and how long before its end a request is answered."""

STILL_WAITS = (
    "People still decide about this call, so it has not run. Make exactly the same "
    "call again to go on waiting for them."
)
AGAIN_LATER = "Make exactly the same call again later, or tell the user."
NOT_CHANGEABLE = (
    "A reviewer changed this call, and this program cannot run a changed call, so it "
    "did not run. Tell the user."
)
HANDED_BEFORE = (
    "The decision about this call was handed over before, so the call may have run. "
    "Do not repeat it; tell the user that it has to be checked."
)

EDIT_ADVICE = (
    "If the call ran, it ran with the changed arguments, and its result is theirs. "
    "Tell the user about the change."
)

Reply = dict[str, JsonValue]
NO_OPINION: Reply = {}
"""The coding agent goes on by its own rules; an approval would switch them off."""


@dataclass(frozen=True)
class CodingAgent:
    """A program whose hooks are answered.

    Attributes:
        path: its name in the URL and in threads.
        name: its name for people.
        takes_edits: it runs changed arguments and informs its model.
        defers: it can end its run until people have decided.
    """

    path: str
    name: str
    takes_edits: bool
    defers: bool

    @property
    def url_path(self) -> str:
        """Return the path of its hooks at a gateway."""
        return f"{BASE}/hooks/{self.path}"


CLAUDE_CODE = CodingAgent("claude-code", "Claude Code", takes_edits=True, defers=True)
# Older versions ignore changed arguments, and would run the original ones.
CODEX = CodingAgent("codex", "Codex", takes_edits=False, defers=False)


class HookCall(BaseModel):
    """The body of a hook's request; other members are ignored."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    hook_event_name: Literal["PreToolUse", "PostToolUse", "PostToolUseFailure"]
    session_id: str = Field(min_length=1, max_length=200)
    tool_use_id: str = Field(min_length=1, max_length=200)
    tool_name: str = Field(min_length=1)
    tool_input: dict[str, JsonValue]
    cwd: str = ""
    permission_mode: str = ""
    error: str = ""


def reply(decision: str, reason: str, **more: JsonValue) -> Reply:
    """Return an answer; a reason is never empty, because Codex would run the call."""
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": decision,
            "permissionDecisionReason": reason,
            **more,
        }
    }


def denied(reason: str) -> Reply:
    """Return the answer for a call that must not run."""
    return reply("deny", reason)
