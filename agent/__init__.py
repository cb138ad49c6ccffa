"""Middleware, guard and client that run in the agent's own process."""

from twokey.agent.deep_agents import gated_subagents
from twokey.agent.edited_view import edited_view
from twokey.agent.grants import (
    Grant,
    current_receipt,
    grant,
    guarded,
    receipt_meta,
)
from twokey.agent.human_in_the_loop import HumanInTheLoopMiddleware
from twokey.agent.messages import EditMessage, edit_messages
from twokey.agent.middleware import ApprovalMiddleware
from twokey.agent.model_answers import is_cut_off
from twokey.agent.node_questions import Answers, aask_questions, ask_questions
from twokey.agent.question_tool import ask_user
from twokey.agent.require_approval import (
    Approved,
    NotApproved,
    Unsure,
    arequire_approval,
    require_approval,
)
from twokey.gateway.protocol.port import Gateway, connected

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
