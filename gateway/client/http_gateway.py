"""Ask a gateway in another process, over HTTP.

It is the port `Gateway` like the one in this process: the rest of the agent's side does
not know which one it asks. The agent's process holds an API key, and nothing that
could approve a call.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from twokey.gateway.client.claim_receipts import OUT_OF_TIME, ClaimReceipts
from twokey.gateway.client.http_connection import HttpConnection
from twokey.gateway.errors import (
    BadJson,
    ClockWrong,
    KeyRefused,
    NotAllowed,
    TwokeyError,
)
from twokey.gateway.protocol import http_api, strict_json
from twokey.gateway.protocol.call_progress import CallBegun, CallEnd, CallProgress
from twokey.gateway.protocol.idempotency import one_write
from twokey.gateway.protocol.records import EditRecord, Result, RunRef
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.turn_texts import check_texts
from twokey.gateway.protocol.wire import (
    AgentNote,
    CallOutcome,
    Claimed,
    ClaimReply,
    ClaimRequest,
    EditsKnown,
    LateReport,
    Refused,
    Turn,
    TurnRef,
    Verdict,
)
from twokey.gateway.uncancelled import begun, waited_for

_UNUSABLE: JsonObject = {"$ref": "urn:twokey:not-json"}


class HttpGateway:
    """A gateway at a URL.

    Args:
        url: of the gateway, ``https://…``; plain ``http`` only for this machine.
        api_key: as `twokey api-keys create` prints it.
        receipt_keys: public keys of the gateway, as `twokey keys list` prints them. A
            claim then counts only with a receipt that one of them signed, by a clock
            that is right within half a minute. A call of tier ``auto`` has no claim.

    Raises:
        SettingsError: when the URL or a key cannot be used.
    """

    def __init__(
        self, url: str, api_key: str, *, receipt_keys: Iterable[str] = ()
    ) -> None:
        self.connection = HttpConnection(url, api_key)
        self._receipts = ClaimReceipts(receipt_keys)

    def __repr__(self) -> str:
        """Name the gateway without the key."""
        return f"HttpGateway({self.connection.url!r})"

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate the calls of a turn; see `Gateway.submit`."""
        check_texts(turn)
        return await self.connection.ask(http_api.SUBMIT, _with_schemas_of_json(turn))

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Ask to run a call; see `Gateway.claim`.

        Raises:
            ClockWrong: when it was granted, and its receipt is out of its time by the
                clock of this machine, which is not the gateway's.
        """
        try:
            reply = await self.connection.ask(http_api.CLAIM, request)
        except KeyRefused:
            raise
        except NotAllowed as error:
            # Such as an item that is not there, which in one process is a reply too.
            return Refused(reason=str(error))
        # A receipt has the time of the gateway's clock; there is no store here to ask.
        now_s = time.time()  # noqa: TID251 - the same
        verified = self._receipts.verified(reply, request, now_s)
        if isinstance(reply, Claimed) and verified == Refused(reason=OUT_OF_TIME):
            await self._wait_for_clock(request.item_id, reply.fence)
        return verified

    async def _wait_for_clock(self, item_id: str, fence: int) -> None:
        """Give back what only a wrong clock keeps from running.

        Raises:
            ClockWrong: where the gateway's answers say so. Who else answers there can
                let calls wait by this, and run none.
        """
        problem = self.connection.clock.problem
        if not problem:
            return
        # Else it would end as a doubt that people have to clear up.
        with suppress(TwokeyError), one_write():
            await self.release(item_id, fence, has_begun=False)
        raise ClockWrong(
            f"{problem} The receipt of an approved call is out of its time, so the "
            "call did not run; it runs once the clock is right."
        )

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; see `Gateway.heartbeat`."""
        question = http_api.Heartbeat(item_id=item_id, fence=fence)
        return await self.connection.ask(http_api.HEARTBEAT, question)

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """Record a result; see `Gateway.finish`.

        Also when who asks is cancelled: the call has run, and without its end people
        would be asked whether it did.
        """
        question = http_api.Finish(item_id=item_id, fence=fence, result=result)
        return await waited_for(begun(self.connection.ask(http_api.FINISH, question)))

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back; see `Gateway.release`."""
        question = http_api.Release(item_id=item_id, fence=fence, has_begun=has_begun)
        await self.connection.ask(http_api.RELEASE, question)

    def keeps_calls(self) -> bool:
        """Return True: the gateway itself knows under which lease it is asked."""
        return True

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Ask to run a call without a record; see `Gateway.report_progress`."""
        return await self.connection.ask(http_api.REPORT_PROGRESS, progress)

    async def ended(self, end: CallEnd) -> None:
        """Report how a call ended; see `Gateway.ended`."""
        await self.connection.ask(http_api.ENDED, end)

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return what became of the calls of a message; see `Gateway.outcomes`."""
        return await self.connection.ask(http_api.OUTCOMES, ref)

    async def supersede(self, ref: TurnRef) -> None:
        """End what still waits of a turn; see `Gateway.supersede`."""
        await self.connection.ask(http_api.SUPERSEDE, ref)

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return the edits of a run; see `Gateway.history`."""
        question = http_api.History(run=run, within=within)
        return await self.connection.ask(http_api.HISTORY, question)

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return which edits were made; see `Gateway.edits_known`."""
        question = http_api.EditsQuestion(ref=ref, edits=dict(edits))
        return await self.connection.ask(http_api.EDITS_KNOWN, question)

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return what was reported late; see `Gateway.late_reports`."""
        question = http_api.LateReportsQuestion(ref=ref, item_ids=tuple(item_ids))
        return await self.connection.ask(http_api.LATE_REPORTS, question)

    async def note(self, agent: str) -> AgentNote:
        """Return what the system prompt should say; see `Gateway.note`."""
        return await self.connection.ask(
            http_api.NOTE, http_api.NoteQuestion(agent=agent)
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self.connection.aclose()


def _with_schemas_of_json(turn: Turn) -> Turn:
    """Return a turn with a schema that nobody can use in place of one that is no JSON.

    The gateway then takes edits away, as it does in its own process.
    """
    schemas = {tool: _of_json(schema) for tool, schema in turn.schemas.items()}
    return turn if schemas == turn.schemas else turn.with_(schemas=schemas)


def _of_json(schema: JsonObject) -> JsonObject:
    try:
        strict_json.accept(schema)
    except BadJson:
        return dict(_UNUSABLE)
    return schema
