"""Warn about middleware listed after the gate that would undo its work."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

from langchain.agents.middleware import ContextEditingMiddleware

_DEPTH = 16


def warn_about_later(handler: Callable[..., Any]) -> None:
    """Warn when clearing of old results is listed after the approval middleware.

    It would clear the notice of an edit after it was put in front of the model.
    LangChain does not tell a middleware its place, so the chain of handlers that
    come after it is followed through their closures, as far as it can be.
    """
    if _leads_to(handler, ContextEditingMiddleware, _DEPTH):
        warnings.warn(
            "ContextEditingMiddleware is listed after ApprovalMiddleware and can "
            "clear what the model has to know about edits. List ApprovalMiddleware "
            "last.",
            UserWarning,
            stacklevel=2,
        )


def _leads_to(value: object, wanted: type, depth: int) -> bool:
    if isinstance(getattr(value, "__self__", None), wanted):
        return True
    if depth == 0 or not callable(value):
        return False
    wrapped = cast("object", getattr(value, "__wrapped__", None))
    if wrapped is not None and _leads_to(wrapped, wanted, depth - 1):
        return True
    cells = cast("tuple[Any, ...]", getattr(value, "__closure__", None) or ())
    return any(
        _leads_to(cell.cell_contents, wanted, depth - 1)
        for cell in cells
        if _is_filled(cell)
    )


def _is_filled(cell: Any) -> bool:  # noqa: ANN401 - a closure cell has no public type
    try:
        return callable(cell.cell_contents)
    except ValueError:
        return False
