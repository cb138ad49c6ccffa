"""Ask a gateway in another process about threads that this process runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from twokey.gateway.arguments import check_item_ids
from twokey.gateway.client.http_connection import HttpConnection
from twokey.gateway.clock import now_s
from twokey.gateway.protocol import http_api, thread_api
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.remote_runs import (
    Answered,
    AnswersQuestion,
    OpenQuestion,
    PendingCall,
    RunFacts,
    RunQuestion,
    Withdrawal,
)
from twokey.gateway.protocol.thread_api import LeaseQuestion, LeaseReply, TakenLease


@dataclass(frozen=True)
class OfferedLease:
    """A lease that the gateway took for this process.

    Attributes:
        fence: number of its holder.
        name: under which checkpoint databases know it.
        lease_s: how long it lives unless it is kept.
        ends_s: when it ends by `now_s`, no later than at the gateway.
    """

    fence: int
    name: str
    lease_s: float
    ends_s: float


class HttpThreads:
    """The threads of one process, as the gateway knows them.

    Args:
        connection: to the gateway.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    @property
    def url(self) -> str:
        """Return the address of the gateway."""
        return self._connection.url

    async def lease(
        self,
        run: RunRef,
        verb: Literal["take", "keep", "renumber", "free"],
        *,
        token: str,
        above: int = 0,
    ) -> LeaseReply:
        """Take, keep, renumber or give back the right to run a thread."""
        question = LeaseQuestion(run=run, verb=verb, token=token, above=above)
        return await self._connection.ask(thread_api.LEASE, question)

    async def answers(
        self, run: RunRef, questions: Sequence[OpenQuestion], *, wait_s: float = 0.0
    ) -> tuple[Answered, ...]:
        """Return the answers to open questions of a thread; wait for the first one.

        The wait may end early without any: ask again.
        """
        question = AnswersQuestion(run=run, questions=tuple(questions), wait_s=wait_s)
        return await self._connection.ask(http_api.ANSWERS, question, wait_s=wait_s)

    async def answers_and_lease(
        self,
        run: RunRef,
        questions: Sequence[OpenQuestion],
        *,
        wait_s: float,
        token: str,
    ) -> tuple[tuple[Answered, ...], OfferedLease | None]:
        """Wait for the first answer as `answers` does, and take the lease with it.

        Args:
            run: of the thread.
            questions: that it asks.
            wait_s: how long to wait.
            token: names the holder. The lease may have been taken under it although
                nothing is returned: take it under the same one.
        """
        question = AnswersQuestion(run=run, questions=tuple(questions), wait_s=wait_s)
        asked_s = now_s()
        answers, taken = await self._connection.ask_offering(
            http_api.ANSWERS, question, wait_s=wait_s, token=token
        )
        return answers, offered(taken, asked_s)

    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        return await self._connection.ask(http_api.PENDING, RunQuestion(run=run))

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End calls of a run that still wait; return which were ended.

        Raises:
            SettingsError: when ``item_ids`` are none; and as `HttpConnection.ask`.
        """
        check_item_ids(item_ids)
        ids = None if item_ids is None else tuple(item_ids)
        question = Withdrawal(run=run, item_ids=ids)
        return await self._connection.ask(http_api.WITHDRAW, question)

    async def supersede(self, run: RunRef) -> None:
        """End everything that waits in a run: its thread is deleted."""
        await self._connection.ask(http_api.SUPERSEDE_RUN, RunQuestion(run=run))

    async def remember(self, facts: RunFacts) -> None:
        """Say who asked in a thread, and where: they cannot approve what it asks."""
        await self._connection.ask(http_api.REMEMBER, facts)

    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """Say what a resting thread asks; the rest of what waits in it is ended."""
        question = thread_api.SettleQuestion(
            run=run, asked=frozenset(asked), is_finished=is_finished
        )
        await self._connection.ask(thread_api.SETTLE, question)


def offered(text: str, asked_s: float) -> OfferedLease | None:
    """Return the lease that a header says was taken; None for none, or an unknown one.

    ``asked_s`` is when it was asked for, by `now_s`.
    """
    if not text:
        return None
    try:
        taken = TakenLease.model_validate_json(text)
    except ValidationError:
        # Of a version that is not known; it is asked for.
        return None
    # It was taken no sooner than it was asked for, and the gateway had waited.
    since_s = asked_s + min(max(0.0, taken.waited_s), now_s() - asked_s)
    return OfferedLease(
        taken.fence, taken.name, taken.lease_s, ends_s=since_s + taken.lease_s
    )
