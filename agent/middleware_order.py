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
    """Warn of `ToolRetryMiddleware` that is listed after the approval middleware.

    A grant is for one run: a further try is refused, and the model reads that in place
    of the tool's own error.
    """
    if middleware_behind([handler], ToolRetryMiddleware) is not None:
        warnings.warn(
            "ToolRetryMiddleware is listed after ApprovalMiddleware, where it tries "
            "nothing again and hides a tool's own error: each call was cleared for "
            "one run. List ApprovalMiddleware last.",
            UserWarning,
            stacklevel=2,
        )
