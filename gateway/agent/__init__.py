"""What runs in the agent's own process: the middleware and its friends."""

from gateway.agent.grants import Grant, grant, guarded
from gateway.agent.messages import EditMessage, edit_messages
from gateway.agent.middleware import ApprovalMiddleware
from gateway.agent.port import Gateway, connected

__all__ = [
    "ApprovalMiddleware",
    "EditMessage",
    "Gateway",
    "Grant",
    "connected",
    "edit_messages",
    "grant",
    "guarded",
]
