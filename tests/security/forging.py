"""An attacker who can write to the store, without a secret."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    ClaimRequest,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.service.harness import ServiceHarness

TENANT, OTHER = "default", "other"
REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
LOOK_UP: tuple[str, JsonObject] = ("look_up_order", {"id": "1"})
REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 1})
EVE = Person(team="T0", user="U0EVE", name="Eve")
PLACE = ("support", "t1")


@dataclass
class Attack:
    """A store, and what a writer of it does."""

    harness: ServiceHarness
    keys: Keys

    @property
    def store(self) -> Store:
        return self.harness.store

    async def do(self, *words: str | bytes | int) -> object:
        return await self.store.conn.command(*words)

    async def found(self, tenant: str = TENANT) -> list[tuple[str, str]]:
        """Return kind and subject of each security event."""
        events = security_events(self.store, tenant)
        return [(one.reason, one.data.get("about", "")) async for one in events]

    async def turn(self, *, message: str = "") -> tuple[TurnRef, str, bytes]:
        """Submit a turn with a call that runs and one that waits."""
        ref, _ = await self.harness.submit(LOOK_UP, REFUND, message_id=message or None)
        key = self.keys.turn(turn_key(ref))
        return ref, key, cast("bytes", await self.do("GET", key))

    async def again(self, ref: TurnRef) -> tuple[Verdict, ...]:
        _, verdicts = await self.harness.submit(
            LOOK_UP, REFUND, message_id=ref.message_id
        )
        return verdicts


def turn_key(ref: TurnRef) -> str:
    return digest.turn_key(tenant=TENANT, **ref.names)


async def authorized(attack: Attack, thread: str = "t1") -> ClaimRequest:
    return await attack.harness.approved(thread=thread)


async def freeze(attack: Attack) -> None:
    assert await attack.harness.reviews.freezes.freeze(REFUNDS, "T0/U0ANA", "why")
