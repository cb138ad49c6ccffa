"""Leases on threads and outboxes, which the store keeps."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import cast

from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol.http_api import LeaseReply, LeaseState, LeaseVerb
from keyturn.gateway.store.connection import Connection, number, text
from keyturn.gateway.store.fences import Lease
from keyturn.gateway.store.held_leases import held
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script

TAKE_LEASE = Script("lease")

REACH = 1_000_000
"""How far above the newest fence a holder in another process may rise: one that rises
at will uses up the fences of all agents of the tenant."""


class LeaseStore:
    """Leases on names of one tenant; one holder at a time for each name.

    Args:
        conn: the store.
        lease_ms: how long a lease lives without a heartbeat.
    """

    def __init__(self, conn: Connection, *, lease_ms: int) -> None:
        self._conn = conn
        self._lease_ms = lease_ms

    def held(
        self, keys: Keys, name: str, *, ends_blocked: bool = False
    ) -> AbstractAsyncContextManager[Lease]:
        """Hold a lease; see `held_leases.held`."""

        async def ask(verb: LeaseVerb, token: str, above: int) -> LeaseReply:
            return await self.step(keys, name, verb, token, above)

        return held(ask, ends_blocked=ends_blocked)

    async def step(
        self,
        keys: Keys,
        name: str,
        verb: LeaseVerb,
        token: str,
        above: int = 0,
        *,
        reach: int = 0,
    ) -> LeaseReply:
        """Take, keep, renumber or give back a lease; see `LeaseQuestion`.

        ``reach`` is how far ``above`` may be above the newest fence; 0 for any.

        Raises:
            NotAllowed: ``above`` is out of reach; nothing changed.
        """
        reply = await TAKE_LEASE(
            self._conn,
            lease=name,
            fences=keys.fences,
            verb=verb,
            token=token,
            ttl_ms=self._lease_ms,
            above=above,
            reach=reach,
        )
        state = text(reply[0])
        if state == "too_high":
            raise NotAllowed(
                f"'above' is more than {reach} above the newest fence of this gateway; "
                "run the thread in the gateway's own process once."
            )
        return LeaseReply(
            state=cast("LeaseState", state),
            fence=number(reply[1]) if state == "held" else 0,
            name=name,
            lease_s=self._lease_ms / 1000,
        )
