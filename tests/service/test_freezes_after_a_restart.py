"""A process that starts reads the freezes from the audit log."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.protocol.wire import VerdictKind
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.running import running
from keyturn.gateway.service.people.freezing import FreezeService
from keyturn.gateway.service.report.audit_reading import security_events
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.service.audit_harness import AuditHarness
from tests.service.harness import RULES, ServiceHarness
from tests.store_secrets import SECRETS

TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
OTHER = FreezeScope(kind=ScopeKind.TOOL, name="send_email")
EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)
ANA = "T0/U0ANA"


@dataclass
class House:
    """A store whose processes have one folder of the audit log."""

    first: Store
    folder: Path

    def started(self) -> Store:
        """Return the store as a process sees it that has just started."""
        store = Store(self.first.conn.url, secrets=SECRETS)
        store.keyring, store.tree_folder = self.first.keyring, self.first.tree_folder
        return store

    async def copied(self) -> dict[str, bytes]:
        """Return all that is stored of freezes."""
        command = self.first.conn.command
        names = cast("list[bytes]", await command("KEYS", "*frozen*"))
        return {
            key.decode(): cast("bytes", await command("DUMP", key)) for key in names
        }

    async def put_back(self, copy: dict[str, bytes]) -> None:
        """Write a copy over all that is stored of freezes."""
        for key in await self.copied():
            await self.first.conn.command("DEL", key)
        for key, stored in copy.items():
            await self.first.conn.command("RESTORE", key, 0, stored)


@pytest.fixture
async def house(store: Store, tmp_path: Path) -> AsyncGenerator[House]:
    first = Store(store.conn.url, secrets=SECRETS)
    AuditHarness(first, tmp_path)
    yield House(first, tmp_path)
    await first.close()


def freezes_of(store: Store) -> FreezeService:
    return FreezeService(store)


@pytest.mark.parametrize("is_read", [True, False], ids=["log read", "log not read yet"])
@pytest.mark.parametrize("how", ["gone", "older", "from before a lift"])
async def test_a_list_that_is_older_than_the_log_freezes_everything(
    house: House, how: str, *, is_read: bool
) -> None:
    """Until a person confirms: freezes what must stay frozen, and ends this freeze."""
    freezes = freezes_of(house.first)
    await freezes.freeze(OTHER, ANA, "why")
    older = {} if how == "gone" else await house.copied()
    await freezes.freeze(TOOL, ANA, "an incident")
    if how == "from before a lift":
        older = await house.copied()
        await freezes.unfreeze(TOOL, ANA)
    if is_read:
        async with running(house.first, lambda: RULES, Runners({}, InMemorySaver())):
            pass
    await house.put_back(older)
    fresh = house.started()

    async with running(fresh, lambda: RULES, Runners({}, InMemorySaver())):
        _, (verdict,) = await ServiceHarness(fresh).submit(("look_up_order", {}))
        frozen = await freezes_of(fresh).frozen()
        another = house.started()
        seen_elsewhere = await freezes_of(another).frozen()
        found = [one async for one in security_events(fresh, "default")]

    assert verdict.kind is VerdictKind.DENY
    assert EVERYTHING in [one.scope for one in frozen]
    assert [one.scope for one in seen_elsewhere] == [one.scope for one in frozen]
    assert any("unfreeze everything" in one.reason for one in seen_elsewhere)
    assert ("replayed", "freezes") in [(e.reason, e.data.get("about")) for e in found]

    assert await freezes_of(another).unfreeze(EVERYTHING, ANA)
    again = house.started()
    async with running(again, lambda: RULES, Runners({}, InMemorySaver())):
        _, (verdict,) = await ServiceHarness(again).submit(
            ("look_up_order", {}), thread="t2"
        )
    assert verdict.kind is VerdictKind.RUN
    for one in (fresh, another, again):
        await one.close()


async def test_a_list_that_the_log_confirms_freezes_nothing_else(house: House) -> None:
    freezes = freezes_of(house.first)
    await freezes.freeze(TOOL, ANA, "an incident")
    await freezes.freeze(OTHER, ANA, "why")
    await freezes.unfreeze(OTHER, ANA)
    fresh = house.started()

    async with running(fresh, lambda: RULES, Runners({}, InMemorySaver())):
        frozen = await freezes_of(fresh).frozen()
    await fresh.close()

    assert [one.scope for one in frozen] == [TOOL]
