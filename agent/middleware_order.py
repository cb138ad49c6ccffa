"""Warn of middleware that does not work when it is listed after ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from langchain.agents.middleware import ContextEditingMiddleware, ToolRetryMiddleware

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


def warn_about_retries(handler: Callable[..., Any]) -> None:
    """Warn when a failed tool was to be tried again under its one grant.

    What was told is then that it may not, in place of the tool's own error.
    """
    if middleware_behind([handler], ToolRetryMiddleware) is not None:
        warnings.warn(
            "ToolRetryMiddleware is listed after ApprovalMiddleware, where it tries "
            "nothing again and hides a tool's own error: each call was cleared for "
            "one run. List ApprovalMiddleware last.",
            UserWarning,
            stacklevel=2,
        )
