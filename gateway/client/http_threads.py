"""Ask a gateway in another process about threads that this process runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from twokey.gateway.client.http_connection import HttpConnection
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
from twokey.gateway.protocol.thread_api import LeaseQuestion, LeaseReply


class HttpThreads:
    """The threads of one process, as the gateway knows them.

    Args:
        connection: to the gateway.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

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

    async def pending(self, run: RunRef) -> tuple[PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        return await self._connection.ask(http_api.PENDING, RunQuestion(run=run))

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End calls of a run that still wait; return which were ended."""
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
