"""Marker base classes to detect gates and guarded tools without importing `agent`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from langchain_core.tools import BaseTool


class Gate(ABC):
    """Middleware that blocks every tool call that the gateway has not cleared.

    Attributes:
        agent: the agent's name in policy and cards.
    """

    agent: str

    @abstractmethod
    def guard(self, tool: BaseTool) -> BaseTool:
        """Return a tool that shares everything with this one and needs a grant."""


class GuardedTool:
    """A tool that refuses to run without a grant."""


def is_guarded(tool: object) -> bool:
    """Return True if a tool refuses to run without a grant."""
    return isinstance(tool, GuardedTool)
