"""What runs in the agent's own process: the middleware and its friends."""

from gateway.agent.deep_agents import gated_subagents
from gateway.agent.edited_view import edited_view
from gateway.agent.grants import Grant, grant, guarded
from gateway.agent.human_in_the_loop import HumanInTheLoopMiddleware
from gateway.agent.messages import EditMessage, edit_messages
from gateway.agent.middleware import ApprovalMiddleware
from gateway.agent.require_approval import (
    Approved,
    NotApproved,
    Unsure,
    arequire_approval,
    require_approval,
)
from gateway.protocol.port import Gateway, connected

__all__ = [
    "ApprovalMiddleware",
    "Approved",
    "EditMessage",
    "Gateway",
    "Grant",
    "HumanInTheLoopMiddleware",
    "NotApproved",
    "Unsure",
    "arequire_approval",
    "connected",
    "edit_messages",
    "edited_view",
    "gated_subagents",
    "grant",
    "guarded",
    "require_approval",
]
