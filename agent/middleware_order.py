"""Warn when middleware after ApprovalMiddleware would clear its edit messages."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from langchain.agents.middleware import ContextEditingMiddleware

from twokey.gateway.gates.reachable import middleware_behind


def warn_about_later(handler: Callable[..., Any]) -> None:
    """Warn when clearing of old results is listed after the approval middleware.

    It would clear the notice of an edit after it was put in front of the model.
    """
    if middleware_behind([handler], ContextEditingMiddleware) is not None:
        warnings.warn(
            "ContextEditingMiddleware is listed after ApprovalMiddleware and can "
            "clear what the model has to know about edits. List ApprovalMiddleware "
            "last.",
            UserWarning,
            stacklevel=2,
        )
