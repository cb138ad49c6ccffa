"""Delegate a reviewer's queue to a colleague for a while.

Who stands in has the roles of the other, not their person: they vote once, as
themselves, and the other one's word is used up by it. What somebody holds only for
another cannot be handed on.
"""

from __future__ import annotations

from datetime import timedelta

from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.delegations import MOST_DELEGATIONS, Delegation

LONGEST = timedelta(days=30)
"""How long a queue can be delegated without being delegated again."""


class DelegationService(TenantService):
    """Who stands in for whom in one tenant."""

    async def delegate(
        self,
        owner: Person,
        to: str,
        lasting: timedelta,
        *,
        gesture: Gesture = Gesture.API,
    ) -> int:
        """Hand a queue over; return until when, in Unix milliseconds.

        Args:
            owner: whose queue it is; the front end knows them from a signed request.
            to: Slack user id of a member whom the front end has looked up.
            lasting: at most `LONGEST`.
            gesture: how they said it; for the audit log.

        Raises:
            ValueError: for oneself, for a time that is none or too long, and when too
                many people have done so.
            StoreUnavailable: when it is not known to be written.
        """
        # It would do no harm, but look like a delegation that is in force.
        if to == owner.user:
            raise ValueError("you cannot delegate to yourself; name a colleague.")
        if not timedelta(0) < lasting <= LONGEST:
            raise ValueError(
                f"{lasting} cannot be used; choose a time of up to {LONGEST.days} days."
            )
        event = self._event(EventName.DELEGATION_SET, owner, gesture)
        event = event.with_(data={**event.data, "to": to})
        for_ms = int(lasting.total_seconds() * 1000)
        until_ms = await self._store.delegations.set(
            self._keys, owner.user, to, for_ms=for_ms, event=event
        )
        if until_ms is None:
            raise ValueError(
                f"{MOST_DELEGATIONS:,} people have delegated their queue, which is as "
                "many as can at once; try again when one of them has ended."
            )
        return until_ms

    async def take_back(self, owner: Person, *, gesture: Gesture = Gesture.API) -> bool:
        """Take one's queue back; False when nobody had it."""
        event = self._event(EventName.DELEGATION_LIFTED, owner, gesture)
        return await self._store.delegations.lift(self._keys, owner.user, event)

    async def given_to(self, user: str) -> tuple[Delegation, ...]:
        """Return whose queues somebody has now."""
        found = await self._store.delegations.all(self._keys)
        # One step only: what somebody holds for another is not handed on.
        return tuple(one for one in found if one.to == user)

    def _event(self, name: EventName, owner: Person, gesture: Gesture) -> Event:
        return Event(
            name=name,
            tenant=self._tenant,
            actor=f"{owner.team}/{owner.user}",
            data={"gesture": gesture.value},
        )
