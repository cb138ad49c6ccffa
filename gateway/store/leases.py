"""Acquire leases on threads, and renew them while their holders work."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial

from twokey.gateway.clock import now_s
from twokey.gateway.errors import (
    LeaseLost,
    NotAllowed,
    StoreUnavailable,
    ThreadUnavailable,
)
from twokey.gateway.store.beating import beating
from twokey.gateway.store.connection import Connection, Reply, number, text
from twokey.gateway.store.fences import Lease, ending_in_time
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.script import Script

TAKE_LEASE = Script("lease")

REACH = 1_000_000
"""How far above the newest fence of its shard a holder in another process may rise: one
that rises at will uses up the fences of all agents and tenants there."""


class LeaseStore:
    """Leases on names of one shard; one holder at a time for each name.

    Args:
        conn: the store.
        lease_ms: how long a lease lives without a heartbeat.
    """

    def __init__(self, conn: Connection, *, lease_ms: int) -> None:
        self._conn = conn
        self._lease_ms = lease_ms

    @asynccontextmanager
    async def held(self, keys: Keys, name: str) -> AsyncGenerator[Lease]:
        """Hold a lease; it may end inside the block at any time.

        Raises:
            ThreadUnavailable: when another holds it.
        """
        async with self.kept(keys, await self.take(keys, name)) as taken:
            yield taken

    @asynccontextmanager
    async def kept(self, keys: Keys, taken: Lease) -> AsyncGenerator[Lease]:
        """Hold a lease that was taken, as `held` does."""
        try:
            with ending_in_time(taken):
                # Before the lease is freed: a heartbeat after it would be answered
                # "lost".
                async with beating(
                    self._lease_ms / 3000, lambda: self._keep(keys, taken)
                ):
                    yield taken
        finally:
            await self.free(keys, taken)

    async def step(
        self, keys: Keys, name: str, *, verb: str, token: str, above: int = 0
    ) -> tuple[str, int]:
        """Take, keep, renumber or give back a lease for a holder in another process.

        ``take_free`` takes it where nobody has it, the same holder included.

        Returns:
            ``held`` with the holder's fence, ``busy`` with the milliseconds that
            another has it for at most, ``lost`` or ``free``.

        Raises:
            NotAllowed: ``above`` is out of reach; nothing changed.
        """
        reply = await self._run(keys, name, token, verb, above, reach=REACH)
        if text(reply[0]) == "too_high":
            raise NotAllowed(
                f"'above' is more than {REACH} above the newest fence of this gateway; "
                "run the thread in the gateway's own process once."
            )
        return text(reply[0]), number(reply[1]) if len(reply) > 1 else 0

    async def take(self, keys: Keys, name: str) -> Lease:
        """Take a lease; whoever takes it hands it to `kept`.

        Raises:
            ThreadUnavailable: when another holds it.
        """
        # A token for each taking, not for the process: one that lost the lease and took
        # it again must not pass for the holder that it was before.
        token, ends_s = secrets.token_hex(16), self._ends_s()
        reply = await self._run(keys, name, token, "take")
        if text(reply[0]) != "held":
            raise ThreadUnavailable("Another process runs this thread right now.")
        return self.taken(keys, name, token, fence=number(reply[1]), ends_s=ends_s)

    def taken(
        self, keys: Keys, name: str, token: str, *, fence: int, ends_s: float
    ) -> Lease:
        """Return a lease that a script gave to the holder with this token."""
        renumber = partial(self._renumbered, keys)
        return Lease(name, token, fence=fence, ends_s=ends_s, renumber=renumber)

    async def free(self, keys: Keys, taken: Lease) -> None:
        """Give a lease back, unless it has ended.

        Not after its end: cut off from the store, nobody should wait for it.
        """
        if taken.left_s:
            with suppress(StoreUnavailable):
                await self._run(keys, taken.key, taken.token, "free")
        # Also after a normal end: another task may still wait for it and has to stop.
        taken.lost.set()

    async def _renumbered(self, keys: Keys, taken: Lease, above: int) -> int:
        ends_s = self._ends_s()
        reply = await self._run(keys, taken.key, taken.token, "renumber", above)
        if text(reply[0]) != "held":
            taken.lost.set()
            raise LeaseLost
        taken.keep(ends_s)
        return number(reply[1])

    async def _keep(self, keys: Keys, taken: Lease) -> None:
        if not taken.left_s:
            return
        ends_s = self._ends_s()
        with suppress(StoreUnavailable):
            reply = await self._run(keys, taken.key, taken.token, "keep")
            if text(reply[0]) != "held":
                taken.lost.set()
            # After `lost` is set this does nothing: a lease that has ended does not
            # come back.
            taken.keep(ends_s)

    def _ends_s(self) -> float:
        """Return when a lease ends that the store is asked for from now on.

        Read before the question is sent, so that it is over here no later than there.
        """
        return now_s() + self._lease_ms / 1000

    async def _run(
        self,
        keys: Keys,
        name: str,
        token: str,
        verb: str,
        above: int = 0,
        *,
        reach: int = 0,
    ) -> list[Reply]:
        return await TAKE_LEASE(
            self._conn,
            lease=name,
            fences=keys.fences,
            verb=verb,
            token=token,
            ttl_ms=self._lease_ms,
            above=above,
            reach=reach,
        )
