"""Freeze an agent, a tool or a whole tenant (kill switch), and lift the freeze.

A freeze is one key that the script of a claim reads itself: what people authorized
before does not start any more either. What runs already is not interrupted.
"""

from __future__ import annotations

from twokey.gateway.approvals.decisions import Gesture
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.standing import FROZEN, bounds_of
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.service.split_freezes import FreezesSeen, SplitFreezes
from twokey.gateway.service.standing_ends import end_those
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.freezes import (
    Freeze,
    FreezeScope,
    ScopeKind,
    names_of,
)
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store


class FreezeService(TenantService):
    """What people may stop.

    Args:
        store: where freezes are kept.
        tenant: whose they are.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        super().__init__(store, tenant=tenant)
        is_split = store.is_split(tenant)
        self._split = SplitFreezes(store, tenant=tenant) if is_split else None

    async def freeze(
        self,
        scope: FreezeScope,
        by: str,
        reason: str,
        *,
        on_behalf_of: str = "",
        gesture: Gesture = Gesture.API,
    ) -> bool:
        """Stop something; False when it is frozen already, and then nothing changes.

        Args:
            scope: what to stop.
            by: who does it, for the audit log and for everybody who is refused.
            reason: why; read by agents and people.
            on_behalf_of: for whom they do it, when they stand in; for the audit log.
            gesture: how they said it; for the audit log.

        Raises:
            FreezeIncomplete: some shards of a tenant that is split have it.
            StoreUnavailable: when it is not known to be stopped.
        """
        # A tenant that is split asks its shards, of which any may be away.
        now_ms = 0
        if self._split is None:
            now_ms = await self._store.conn.now_ms(self._own.outbox)
        freeze = Freeze(scope=scope, by=by, reason=reason, at_ms=now_ms)
        event = self._event(EventName.FREEZE_SET, scope, by, on_behalf_of, gesture)
        event = event.with_(reason=reason)
        if self._split is not None:
            return await self._split.set(freeze, event)
        is_new = await self._store.freezes.set(self._own, self._tenant, freeze, event)
        # While it stands, no standing approval covers a call; see `unfreeze`.
        await self._end_standing(scope)
        return is_new

    async def unfreeze(
        self,
        scope: FreezeScope,
        by: str,
        reason: str = "",
        *,
        on_behalf_of: str = "",
        gesture: Gesture = Gesture.API,
    ) -> bool:
        """Let something run again, and end an agent's pause; False when neither was.

        Raises:
            FreezeIncomplete: some shards of a tenant that is split have it lifted.
            StoreUnavailable: when it is not known to be lifted.
        """
        event = self._event(EventName.FREEZE_LIFTED, scope, by, on_behalf_of, gesture)
        event = event.with_(reason=reason)
        if self._split is not None:
            return await self._split.lift(scope, event)
        # Before it is lifted, in case the freeze was cut off before it ended them: what
        # people allowed before a freeze is never in force again.
        await self._end_standing(scope)
        return await self._store.freezes.lift(self._own, self._tenant, scope, event)

    async def frozen(self) -> tuple[Freeze, ...]:
        """Return everything that is frozen or paused, oldest first.

        Raises:
            StoreUnavailable: when a shard of the tenant does not answer.
        """
        seen = await self.look()
        if seen.away:
            raise StoreUnavailable(
                f"{', '.join(seen.away)} of {seen.parts} shards did not answer, so "
                "something may be frozen that is not known here; try again."
            )
        return seen.freezes

    async def look(self) -> FreezesSeen:
        """Return what is frozen or paused, and what of it is incomplete.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        if self._split is not None:
            return await self._split.look()
        return FreezesSeen(await self._store.freezes.all(self._own, self._tenant))

    async def names_in(self, part: Keys) -> str:
        """Return the names of what is frozen in one part of the tenant, a line each.

        A pause is none: it keeps nobody from approving.
        """
        freezes = await self._store.freezes.all(part, self._tenant)
        return "\n".join(sorted(one.name for one in freezes if not one.is_pause))

    async def _end_standing(self, scope: FreezeScope) -> None:
        def is_stopped(standing: Approval) -> bool:
            bounds = bounds_of(standing)
            return str(scope) in names_of(bounds.agent, bounds.tool)

        await end_those(self._store, self._own, self._tenant, is_stopped, FROZEN)

    def _event(
        self,
        name: EventName,
        scope: FreezeScope,
        by: str,
        behalf: str,
        gesture: Gesture,
    ) -> Event:
        data = {"scope": str(scope), "gesture": gesture.value}
        return Event(
            name=name,
            tenant=self._tenant,
            agent=scope.name if scope.kind is ScopeKind.AGENT else "",
            tool=scope.name if scope.kind is ScopeKind.TOOL else "",
            actor=by,
            data={**data, "on_behalf_of": behalf} if behalf else data,
        )
