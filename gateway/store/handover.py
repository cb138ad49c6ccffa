"""Hand a job to the worker of this process in the step that queues it.

Theory of operation. A decision queues a job; a worker reads it, takes the lease of the
thread, and looks where the thread stands. Where the worker is in the process that
decides, and no other job waits, the script that writes the decision delivers the job to
the worker, as XREADGROUP does, and gives it the lease. So the worker begins with the
answer to the decision. Its job is one of the stream, as any other: a worker that dies
loses it to another one, and a job that was not handed over is read from the stream.

The answer may get lost on its way. Then it is asked who has the lease: until it ends,
nobody else would be given the job.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from twokey.gateway.approvals.record import Approval
from twokey.gateway.clock import now_s
from twokey.gateway.store.connection import Reply, number, text
from twokey.gateway.store.fences import current
from twokey.gateway.store.jobs import GROUP, Job
from twokey.gateway.store.keys import Keys


@dataclass(frozen=True)
class Unknown:
    """It is not known whether the job was handed over."""


@dataclass(frozen=True)
class Delivered:
    """The job was handed over: its id, and the fence of the lease."""

    job: str
    fence: int


Answer = Delivered | Unknown | None
UNKNOWN: Final = Unknown()


class Handover:
    """One job that a worker of this process would begin at once.

    Args:
        keys: of the shard that the job is in.
        job: what is to be done.
        consumer: name of the worker among the readers of jobs.
        lease_ms: life of the lease of the thread.
        known: approvals by id as they are once the job is queued, as far as it is
            known.

    Attributes:
        token: names the holder of the lease.
        ends_s: when the lease ends by `now_s`, unless it is kept.
        answer: what came of it; None: somebody reads the job from the stream.
    """

    def __init__(
        self,
        keys: Keys,
        job: Job,
        *,
        consumer: str,
        lease_ms: int,
        known: Mapping[str, Approval],
    ) -> None:
        self.keys, self.job, self.known = keys, job, known
        self.token = secrets.token_hex(16)
        # Now, before anything is sent, so that it is over here no later than there.
        self.ends_s = now_s() + lease_ms / 1000
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._consumer = consumer
        self._lease_ms = lease_ms

    @property
    def lease(self) -> str:
        """Return the name of the lease of the thread."""
        job = self.job
        return self.keys.lease(job.tenant, job.agent, job.thread)

    @property
    def thread(self) -> tuple[str, str, str, str]:
        """Return the keys that `hand_over.lua` is given."""
        keys, place = self.keys, (self.job.tenant, self.job.agent, self.job.thread)
        dropped = keys.dropped(keys.stalled_run(*place))
        return self.lease, keys.fences, dropped, keys.thread_facts(*place)

    @property
    def taker(self) -> dict[str, str | int]:
        """Return the taker that `hand_over.lua` is given."""
        return {
            "group": GROUP,
            "consumer": self._consumer,
            "token": self.token,
            "ttl_ms": self._lease_ms,
        }

    def told(self, reply: list[Reply], *, is_sure: bool) -> None:
        """Take the answer of the script; not ``is_sure`` when it may be the second."""
        match reply:
            case [_, _, fence, job]:
                self._answered(Delivered(text(job), number(fence)))
            case _:
                self._answered(None if is_sure else UNKNOWN)

    def lost(self) -> None:
        """Take it that the answer of the script is not known."""
        self._answered(UNKNOWN)

    def _answered(self, answer: Answer) -> None:
        # The worker may have been stopped meanwhile.
        if not self.answer.done():
            self.answer.set_result(answer)


Taker = Callable[[Keys, Job, Mapping[str, Approval]], Awaitable[Handover | None]]
"""Returns what would take a job now, and begins to wait for its answer; or None."""


class Takers:
    """The workers of this process that take jobs of its decisions."""

    def __init__(self) -> None:
        self._takers: list[Taker] = []

    def __bool__(self) -> bool:
        """Return whether any worker is offered jobs."""
        return bool(self._takers)

    @contextmanager
    def offering(self, taker: Taker) -> Generator[None]:
        """Offer jobs to a worker while the block runs."""
        self._takers.append(taker)
        try:
            yield
        finally:
            self._takers.remove(taker)

    async def offer(
        self, keys: Keys, job: Job, known: Mapping[str, Approval]
    ) -> Handover | None:
        """Return the handover of a job that is about to be queued, if one takes it."""
        # Under a lease somebody runs a thread, maybe this one, and decides inside.
        if not self._takers or current() is not None:
            return None
        for taker in tuple(self._takers):
            if (found := await taker(keys, job, known)) is not None:
                return found
        return None


NOBODY: Final = Takers()
