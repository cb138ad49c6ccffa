"""Freezes (kill switches) and pauses of agents, and the names they stand under."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from pydantic import model_validator

from keyturn.gateway.protocol.records import Record


class ScopeKind(StrEnum):
    """What can be frozen."""

    TENANT = "tenant"
    AGENT = "agent"
    TOOL = "tool"


class FreezeScope(Record):
    """One agent, one tool, or everything of a tenant (then without a name)."""

    kind: ScopeKind
    name: str = ""

    @model_validator(mode="after")
    def _named(self) -> FreezeScope:
        if bool(self.name) == (self.kind is ScopeKind.TENANT):
            raise ValueError("an agent or a tool needs its name, a tenant has none.")
        return self

    def __str__(self) -> str:
        """Return the words for people and for the store, such as ``tool refund``."""
        return _name_in_store(self.kind, self.name)


class Freeze(Record):
    """Who stopped what, why and when.

    A pause is set by the gateway itself and keeps only new calls from being asked;
    what people authorized before may still run.
    """

    scope: FreezeScope
    by: str
    reason: str
    at_ms: int = 0
    is_pause: bool = False

    @property
    def name(self) -> str:
        """Return the name under which the store keeps it."""
        return paused(self.scope.name) if self.is_pause else str(self.scope)


def paused(agent: str) -> str:
    """Return the name under which an agent's pause stands."""
    return f"paused {agent}"


# Remembered: each click and each call that starts asks for those of its tool.
@lru_cache(maxsize=1024)
def names_of(agent: str, *tools: str) -> tuple[str, ...]:
    """Return the names of every freeze that stops these tools of an agent.

    A call may name anything, also what nobody can freeze.
    """
    return (
        _name_in_store(ScopeKind.TENANT, ""),
        _name_in_store(ScopeKind.AGENT, agent),
        # Plain text and no `FreezeScope`: what a call names need not be a name that
        # people can freeze.
        *(_name_in_store(ScopeKind.TOOL, tool) for tool in dict.fromkeys(tools)),
    )


def _name_in_store(kind: ScopeKind, name: str) -> str:
    return f"{kind} {name}".rstrip()
