"""Jobs that changes of approvals queue, and who is offered them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from pydantic_core import to_json

from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.connection import Connection, Reply
from twokey.gateway.store.handover import Handover, Takers
from twokey.gateway.store.jobs import Job, resume_text
from twokey.gateway.store.keys import Keys


class Offer:
    """What a script is told of the worker that would take its job, if one would."""

    def __init__(self, handover: Handover | None, conn: Connection | None) -> None:
        self.is_taken = handover is not None
        self._handover, self._conn = handover, conn
        self._resent = conn.resent if conn else 0
        self.thread = handover.thread if handover else ()
        self.taker = to_json(handover.taker).decode() if handover else ""

    def told(self, reply: list[Reply]) -> None:
        """Take the answer of the script."""
        if self._handover is not None and self._conn is not None:
            # Of a script that was sent twice, this may be the answer to the second.
            is_sure = self._conn.resent == self._resent
            self._handover.told(reply, is_sure=is_sure)


NO_OFFER: Final = Offer(None, None)


def job_of(change: Change) -> Job | None:
    """Return the job that a change queues; None for none."""
    return resume_job(change.approval) if change.resumes else None


def job_text(change: Change) -> str:
    """Return the text of the job that a change queues; "" for none."""
    if not (change.resumes and _has_agent(change.approval)):
        return ""
    return resume_text(*_resumed(change.approval))


def resume_job(approval: Approval) -> Job | None:
    """Return the job that brings the agent of an approval back, if one waits."""
    return Job.to_resume(*_resumed(approval)) if _has_agent(approval) else None


def _has_agent(approval: Approval) -> bool:
    return not (approval.is_standing or approval.resumes_itself)


def _resumed(approval: Approval) -> tuple[str, str, str]:
    """Return tenant, agent and thread of the run that an approval belongs to."""
    run = approval.nested_in or approval
    return approval.tenant, run.agent, run.thread


@asynccontextmanager
async def offered(
    takers: Takers,
    conn: Connection,
    keys: Keys,
    job: Job | None,
    known: Mapping[str, Approval],
) -> AsyncGenerator[Offer]:
    """Offer the job that a change queues to a worker of this process.

    Args:
        takers: the workers of this process.
        conn: the server that the change is written on inside the block.
        keys: of the approval's shard.
        job: that is queued; None for none.
        known: approvals by id as they are once it is queued, as far as it is known;
            the worker looks at them when the change is written.
    """
    handover = await takers.offer(keys, job, known) if job else None
    if handover is None:
        yield NO_OFFER
        return
    offer = Offer(handover, conn)
    try:
        yield offer
    except BaseException:
        # Also when the caller is cancelled: the script may have been sent.
        handover.lost()
        raise
