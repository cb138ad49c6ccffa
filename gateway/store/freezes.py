"""Store freezes (kill switches) and pauses of agents."""

from __future__ import annotations

import json
from enum import StrEnum

from pydantic import model_validator

from twokey.gateway.approvals.events import Event
from twokey.gateway.protocol.records import Record
from twokey.gateway.store.audit_seals import event_texts
from twokey.gateway.store.connection import Connection, fields, text
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.script import Script

FREEZE = Script("freeze")


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


class FreezeStore:
    """Freezes of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def set(self, keys: Keys, tenant: str, freeze: Freeze, event: Event) -> bool:
        """Set a freeze; False when it stands already, and then nothing changes."""
        return await self._change(
            keys, tenant, "set", (freeze.name,), freeze.model_dump_json(), event
        )

    async def lift(
        self, keys: Keys, tenant: str, scope: FreezeScope, event: Event
    ) -> bool:
        """Lift a freeze and the pause of an agent; False when there is none."""
        names = [str(scope)]
        if scope.kind is ScopeKind.AGENT:
            names.append(paused(scope.name))
        return await self._change(keys, tenant, "lift", names, "", event)

    async def all(self, keys: Keys, tenant: str) -> tuple[Freeze, ...]:
        """Return everything that is frozen or paused of a tenant, oldest first."""
        found = fields(await self._conn.command("HGETALL", keys.frozen(tenant)))
        freezes = [Freeze.model_validate_json(body) for body in found.values()]
        return tuple(sorted(freezes, key=lambda freeze: freeze.at_ms))

    async def _change(
        self,
        keys: Keys,
        tenant: str,
        verb: str,
        names: tuple[str, ...] | list[str],
        body: str,
        event: Event,
    ) -> bool:
        reply = await FREEZE(
            self._conn,
            frozen=keys.frozen(tenant),
            outbox=keys.outbox,
            audit=keys.audit,
            verb=verb,
            names=json.dumps(names),
            body=body,
            events=event_texts(self._conn, keys, [event]),
        )
        return text(reply[0]) == "done"
