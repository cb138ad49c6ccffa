"""Take a lease, keep it while work is done under it, and stop the work when it is lost.

Who keeps the lease is asked by a function: the store (`LeaseStore`), or a gateway in
another process. A repeated question has the same token, and is the same question.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeVar, cast

from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import (
    KeyturnError,
    LeaseLost,
    NotAllowed,
    ThreadUnavailable,
)
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.http_api import LeaseReply, LeaseState, LeaseVerb
from keyturn.gateway.store.beating import beating
from keyturn.gateway.store.connection import Connection, number, text
from keyturn.gateway.store.fences import Lease, ending_in_time, holding
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script

T = TypeVar("T")

Ask = Callable[[LeaseVerb, str, int], Awaitable[LeaseReply]]
"""Does a step of one lease, given the verb, the holder's token and a fence to rise
above; see `LeaseQuestion`."""

TAKE_LEASE = Script("lease")

REACH = 1_000_000
"""How far above the newest fence a holder in another process may rise: one that rises
at will uses up the fences of all agents of the tenant."""


@asynccontextmanager
async def held(ask: Ask, *, ends_blocked: bool = False) -> AsyncGenerator[Lease]:
    """Hold a lease; it may end inside the block at any time.

    ``ends_blocked`` lets it end while the event loop is blocked.

    Raises:
        ThreadUnavailable: when another holds it.
        StoreUnavailable: when who keeps it does not answer.
    """
    # A token for each taking, not for the process: one that lost the lease and took it
    # again must not pass for the holder that it was before.
    token = secrets.token_hex(16)
    # Read before the question is sent, so that it is over here no later than there.
    asked_s = now_s()
    taken = await ask("take", token, 0)
    if taken.state != "held":
        raise ThreadUnavailable("Another process runs this thread right now.")

    async def renew(verb: LeaseVerb, above: int = 0) -> LeaseReply:
        asked_s = now_s()
        reply = await ask(verb, token, above)
        if reply.state != "held":
            lease.end()
        # After `end` this does nothing: a lease that has ended does not come back.
        lease.keep(asked_s + taken.lease_s)
        return reply

    async def renumber(_: Lease, above: int) -> int:
        reply = await renew("renumber", above)
        if reply.state != "held":
            raise LeaseLost
        return reply.fence

    async def keep() -> None:
        if lease.left_s:
            # Also when an API key was revoked: then the lease ends by its time.
            with suppress(KeyturnError):
                await renew("keep")

    lease = Lease(
        taken.name,
        token,
        fence=taken.fence,
        ends_s=asked_s + taken.lease_s,
        renumber=renumber,
    )
    try:
        with ending_in_time(lease):
            # Before the lease is freed: a heartbeat after it would be answered "lost".
            async with beating(taken.lease_s / 3, keep, ends_blocked=ends_blocked):
                yield lease
    finally:
        # Not after its end: cut off from who keeps it, nobody should wait for it.
        if lease.left_s:
            with suppress(KeyturnError):
                await ask("free", token, 0)
        # Also after a normal end: another task may still wait for it and has to stop.
        lease.end()


async def while_held(
    lease_of: AbstractAsyncContextManager[Lease], work: Callable[[], Awaitable[T]]
) -> T:
    """Take a lease and run ``work`` as its only holder.

    What ``work`` writes is fenced (`keyturn.gateway.store.fences`): stopping it is not
    enough, since a process that was paused may be in the middle of a write when it goes
    on.

    Raises:
        LeaseLost: when the lease was lost and the work was stopped. Nothing is lost:
            read the thread and go on later.
    """
    async with lease_of as lease:
        # A task keeps the context it was made in, so only the work is fenced, and not
        # what waits for it.
        with holding(lease), run_context.lasting(lambda: lease.left_s):
            running = asyncio.ensure_future(work())
        watching = asyncio.create_task(lease.lost.wait())
        try:
            await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
            # Also when the lease was lost at the same moment: what the work wrote was
            # fenced.
            if running.done():
                return running.result()
            raise LeaseLost
        finally:
            watching.cancel()
            running.cancel()
            # The lease is given back after this block; nothing may run under it then.
            await asyncio.gather(running, watching, return_exceptions=True)


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
        """Hold a lease; see `held`."""

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
