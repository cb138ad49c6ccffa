"""Middleware, guard and client that run in the agent's own process."""

from keyturn.agent.drop_in import HumanInTheLoopMiddleware, gated_subagents
from keyturn.agent.grants import Grant, current_receipt, grant, guarded, receipt_meta
from keyturn.agent.messages import EditMessage, edit_messages, edited_view
from keyturn.agent.middleware import ApprovalMiddleware
from keyturn.agent.prepared_calls import ask_user, is_cut_off
from keyturn.agent.require_approval import (
    Answers,
    Approved,
    NotApproved,
    Unsure,
    aask_questions,
    arequire_approval,
    ask_questions,
    require_approval,
)
from keyturn.gateway.protocol.http_api import Gateway, connected

__all__ = [
    "Answers",
    "ApprovalMiddleware",
    "Approved",
    "EditMessage",
    "Gateway",
    "Grant",
    "HumanInTheLoopMiddleware",
    "NotApproved",
    "Unsure",
    "aask_questions",
    "arequire_approval",
    "ask_questions",
    "ask_user",
    "connected",
    "current_receipt",
    "edit_messages",
    "edited_view",
    "gated_subagents",
    "grant",
    "guarded",
    "is_cut_off",
    "receipt_meta",
    "require_approval",
]
