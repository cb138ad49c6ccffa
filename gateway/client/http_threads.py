"""Ask a gateway in another process about threads that this process runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from twokey.gateway.client.http_connection import HttpConnection
from twokey.gateway.protocol import thread_api
from twokey.gateway.protocol.records import RunRef
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

    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """Say what a resting thread asks; the rest of what waits in it is ended."""
        question = thread_api.SettleQuestion(
            run=run, asked=frozenset(asked), is_finished=is_finished
        )
        await self._connection.ask(thread_api.SETTLE, question)
