"""Hold the lease on a thread that the gateway keeps, from another process."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from twokey.gateway.client.http_threads import HttpThreads, OfferedLease
from twokey.gateway.clock import now_s
from twokey.gateway.errors import LeaseLost, ThreadUnavailable, TwokeyError
from twokey.gateway.protocol import run_context
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.thread_api import LeaseRef, LeaseReply
from twokey.gateway.store.beating import beating
from twokey.gateway.store.fences import Lease, ending_in_time


@asynccontextmanager
async def thread_lease(
    threads: HttpThreads,
    run: RunRef,
    *,
    token: str = "",
    offered: OfferedLease | None = None,
) -> AsyncGenerator[Lease]:
    """Hold the right to run a thread; it may end inside the block at any time.

    What is asked of the gateway inside the block is fenced by the lease, and so are
    writes to the checkpoints.

    Args:
        threads: the gateway's side of them.
        run: of the thread.
        token: under which the lease may have been taken already; "" for a new one.
        offered: that lease, where it is known.

    Raises:
        ThreadUnavailable: when another process runs this thread.
        StoreUnavailable: when the gateway does not answer.
    """
    holder = _Holder(threads, run, token or new_token())
    lease = await holder.take(offered)
    try:
        with (
            ending_in_time(lease),
            run_context.under_lease(
                lambda: LeaseRef(run, lease.token, lease.fence).text
            ),
        ):
            # Before the lease is freed: keeping it after that would be answered "lost".
            async with beating(holder.lease_s / 3, lambda: holder.keep(lease)):
                yield lease
    finally:
        # Not after its end: cut off from the gateway, nobody should wait for it.
        if lease.left_s:
            with suppress(TwokeyError):
                await threads.lease(run, "free", token=lease.token)
        lease.lost.set()


def new_token() -> str:
    """Return what names a holder of a lease, and nobody can guess."""
    return secrets.token_hex(16)


@dataclass
class _Holder:
    threads: HttpThreads
    run: RunRef
    token: str
    lease_s: float = 0.0

    async def take(self, offered: OfferedLease | None) -> Lease:
        # With less than that left, it could end before it is kept for the first time.
        if offered is not None and offered.ends_s - now_s() > offered.lease_s / 2:
            return self._taken(offered)
        # Read before the question is sent, so that it is over here no later than there.
        asked_s = now_s()
        reply = await self.threads.lease(self.run, "take", token=self.token)
        if reply.state != "held":
            raise ThreadUnavailable("Another process runs this thread right now.")
        ends_s = asked_s + reply.lease_s
        return self._taken(OfferedLease(reply.fence, reply.name, reply.lease_s, ends_s))

    def _taken(self, found: OfferedLease) -> Lease:
        self.lease_s = found.lease_s
        return Lease(
            found.name,
            self.token,
            fence=found.fence,
            ends_s=found.ends_s,
            renumber=self.renumber,
        )

    async def keep(self, lease: Lease) -> None:
        if lease.left_s:
            # Also when the key was revoked: then the lease ends by its time.
            with suppress(TwokeyError):
                await self._again(lease, "keep")

    async def renumber(self, lease: Lease, above: int) -> int:
        reply = await self._again(lease, "renumber", above)
        if reply.state != "held":
            raise LeaseLost
        return reply.fence

    async def _again(self, lease: Lease, verb: str, above: int = 0) -> LeaseReply:
        asked_s = now_s()
        reply = await self.threads.lease(
            self.run,
            "renumber" if verb == "renumber" else "keep",
            token=self.token,
            above=above,
        )
        if reply.state != "held":
            lease.lost.set()
        # After `lost` is set this does nothing: a lease that has ended does not come
        # back.
        lease.keep(asked_s + self.lease_s)
        return reply
