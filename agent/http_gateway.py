"""Ask a gateway in another process, over HTTP.

It is the port `Gateway` like the one in this process: the rest of the agent's side does
not know which one it asks. The agent's process holds an API key, and nothing that
could approve a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx
from pydantic import ValidationError

from twokey.gateway.errors import SettingsError, StoreUnavailable
from twokey.gateway.protocol import http_api
from twokey.gateway.protocol.call_progress import CallBegun, CallEnd, CallProgress
from twokey.gateway.protocol.http_api import Operation, Problem, error_of
from twokey.gateway.protocol.records import EditRecord, Result, RunRef
from twokey.gateway.protocol.wire import (
    AgentNote,
    CallOutcome,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_OK = 200
_TIMEOUT_S = 10.0

Q = TypeVar("Q")
A = TypeVar("A")


class HttpGateway:
    """A gateway at a URL.

    Args:
        url: of the gateway, ``https://…``; plain ``http`` only for this machine.
        api_key: as `twokey api-keys create` prints it.

    Raises:
        SettingsError: when the URL cannot be used.
    """

    def __init__(self, url: str, api_key: str) -> None:
        parts = urlsplit(url)
        is_local = parts.scheme == "http" and parts.hostname in _LOOPBACK
        if not parts.hostname or not (parts.scheme == "https" or is_local):
            raise SettingsError(
                f"The gateway {url!r} cannot be used: write https://host, or "
                "http://127.0.0.1:port for one on this machine. Over plain http the "
                "API key could be read on the way."
            )
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"}
        # One for each event loop: a connection belongs to the loop that opened it.
        self._clients: WeakKeyDictionary[
            asyncio.AbstractEventLoop, httpx.AsyncClient
        ] = WeakKeyDictionary()

    def __repr__(self) -> str:
        """Name the gateway without the key."""
        return f"HttpGateway({self._url!r})"

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate the calls of a turn; see `Gateway.submit`."""
        return await self._ask(http_api.SUBMIT, turn)

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Ask to run a call; see `Gateway.claim`."""
        return await self._ask(http_api.CLAIM, request)

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; see `Gateway.heartbeat`."""
        question = http_api.Heartbeat(item_id=item_id, fence=fence)
        return await self._ask(http_api.HEARTBEAT, question)

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """Record a result; see `Gateway.finish`."""
        question = http_api.Finish(item_id=item_id, fence=fence, result=result)
        return await self._ask(http_api.FINISH, question)

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back; see `Gateway.release`."""
        question = http_api.Release(item_id=item_id, fence=fence, has_begun=has_begun)
        await self._ask(http_api.RELEASE, question)

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Ask to run a call without a record; see `Gateway.report_progress`."""
        return await self._ask(http_api.REPORT_PROGRESS, progress)

    async def ended(self, end: CallEnd) -> None:
        """Report how a call ended; see `Gateway.ended`."""
        await self._ask(http_api.ENDED, end)

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return what became of the calls of a message; see `Gateway.outcomes`."""
        return await self._ask(http_api.OUTCOMES, ref)

    async def supersede(self, ref: TurnRef) -> None:
        """End what still waits of a turn; see `Gateway.supersede`."""
        await self._ask(http_api.SUPERSEDE, ref)

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return the edits of a run; see `Gateway.history`."""
        question = http_api.History(run=run, within=within)
        return await self._ask(http_api.HISTORY, question)

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return which edits were made; see `Gateway.edits_known`."""
        question = http_api.EditsQuestion(ref=ref, edits=dict(edits))
        return await self._ask(http_api.EDITS_KNOWN, question)

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return what was reported late; see `Gateway.late_reports`."""
        question = http_api.LateReportsQuestion(ref=ref, item_ids=tuple(item_ids))
        return await self._ask(http_api.LATE_REPORTS, question)

    async def note(self, agent: str) -> AgentNote:
        """Return what the system prompt should say; see `Gateway.note`."""
        return await self._ask(http_api.NOTE, http_api.NoteQuestion(agent=agent))

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def _ask(self, operation: Operation[Q, A], question: Q) -> A:
        body = operation.question.dump_json(question)
        try:
            reply = await self._client().post(
                operation.path,
                content=body,
                headers={"Content-Type": "application/json"},
            )
        except httpx.HTTPError as error:
            raise StoreUnavailable(
                f"The approval gateway {self._url!r} did not answer "
                f"({type(error).__name__}); try again when it is back."
            ) from error
        try:
            if reply.status_code == _OK:
                return operation.answer.validate_json(reply.content)
            found = Problem.model_validate_json(reply.content)
        except ValidationError as error:
            # Of a proxy between the two, or of another program at this address.
            raise StoreUnavailable(
                f"{self._url!r} answered {reply.status_code} with something that is "
                "not of a Twokey gateway; see the address and what stands between."
            ) from error
        raise error_of(found)

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = httpx.AsyncClient(
                base_url=self._url, headers=self._headers, timeout=_TIMEOUT_S
            )
            self._clients[loop] = client
        return client
