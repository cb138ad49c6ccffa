"""Gateway client over HTTP, for a gateway in another process.

It implements the port `Gateway` like the in-process gateway, so agents use both alike.
The agent's process has an API key, but nothing that could approve a call.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import cache

from keyturn.gateway.arguments import is_a, is_texts, require, require_secret
from keyturn.gateway.background import begun, waited_for
from keyturn.gateway.client.http_connection import HttpConnection
from keyturn.gateway.errors import (
    BadJson,
    ClockWrong,
    KeyRefused,
    KeyturnError,
    NotAllowed,
    NotVerified,
    SettingsError,
)
from keyturn.gateway.protocol import http_api, strict_json, wire
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.public_keys import parse_public_key
from keyturn.gateway.protocol.receipts import SKEW_S, Receipt, check_time, read_receipt
from keyturn.gateway.protocol.records import EditRecord, Result, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.secret_variables import secret
from keyturn.gateway.setting_forms import is_name

logger = logging.getLogger(__name__)

NOT_PROVEN = "The gateway's permission could not be verified, so this did not run."
OUT_OF_TIME = (
    "The gateway's permission is out of its time, by the clock of this machine, so "
    "this did not run."
)


def key_lines(texts: Iterable[str]) -> tuple[str, ...]:
    """Check lines of public keys and return them.

    Raises:
        SettingsError: when they are not a list of lines.
    """
    needed = "give lines of `keyturn keys list`, the gateway's public keys, as a list"
    is_one = isinstance(texts, str | bytes)
    require(is_a(texts, Iterable) and not is_one, "receipt_keys", texts, needed)
    lines = tuple(texts)
    require(is_texts(lines), "receipt_keys", lines, needed)
    return lines


class ClaimReceipts:
    """Verifies the claims granted to one process.

    Args:
        keys: the gateway's public keys; without any, nothing is verified.

    Raises:
        SettingsError: when one of them is not a complete key.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = tuple(map(parse_public_key, key_lines(keys)))
        self._used = dict[tuple[str, int], tuple[str, float]]()
        # Event loops of several threads share one gateway.
        self._lock = threading.Lock()

    def verified(
        self, reply: wire.ClaimReply, request: wire.ClaimRequest, now_s: float
    ) -> wire.ClaimReply:
        """Return the answer to a claim, or a refusal if its receipt does not prove it.

        The audience is not compared: it names the service that runs the effect, which
        may be a server behind the tool.

        Args:
            reply: the answer.
            request: the claim.
            now_s: seconds since 1970.
        """
        if not self._keys or not isinstance(reply, wire.Claimed):
            return reply
        try:
            receipt, digest = read_receipt(reply.receipt, self._keys)
            check_time(receipt, now_s)
        except NotVerified as error:
            is_late = error.reason in {"not_yet", "expired"}
            return _refused(
                request, error.reason, OUT_OF_TIME if is_late else NOT_PROVEN
            )
        proven = receipt.item, digest, receipt.idempotency_key, receipt.attempt
        call = request.item_id, reply.action_hash
        claimed = *call, reply.idempotency_key, reply.fence
        if proven != claimed:
            return _refused(request, "call_differs")
        if not self._is_first_use(receipt, request.owner, now_s):
            return _refused(request, "used")
        return reply

    def _is_first_use(self, receipt: Receipt, attempt: str, now_s: float) -> bool:
        """Record a use of a receipt; return whether no other attempt used it before."""
        with self._lock:
            # Roughly in the order of expiry, because receipts have a fixed lifetime.
            while self._used:
                oldest, (_, ends_s) = next(iter(self._used.items()))
                if now_s < ends_s:
                    break
                del self._used[oldest]
            # The same attempt may retry after a lost answer. A claim that was given
            # back has the same id at the next attempt.
            claim = (receipt.jti, receipt.attempt)
            user, _ = self._used.setdefault(claim, (attempt, receipt.exp + SKEW_S))
        return user == attempt


def _refused(
    request: wire.ClaimRequest, reason: str, told: str = NOT_PROVEN
) -> wire.Refused:
    logger.error("claim.unproven reason=%s item=%s", reason, request.item_id)
    return wire.Refused(reason=told)


_UNUSABLE: JsonObject = {"$ref": "urn:keyturn:not-json"}


class HttpGateway:
    """A gateway at a URL.

    Args:
        url: URL of the gateway, ``https://…``; plain ``http`` only for this machine.
        api_key: the key printed by `keyturn api-keys create`.
        receipt_keys: public keys of the gateway, as printed by `keyturn keys list`. A
            claim then needs a receipt signed by one of them, and a local clock that is
            right within half a minute. Calls of tier ``auto`` have no claim.

    Raises:
        SettingsError: when the URL or a key cannot be used.
    """

    def __init__(
        self, url: str, api_key: str, *, receipt_keys: Iterable[str] = ()
    ) -> None:
        self.connection = HttpConnection(url, api_key)
        self._receipts = ClaimReceipts(receipt_keys)

    def __repr__(self) -> str:
        """Show the URL without the key."""
        return f"HttpGateway({self.connection.url!r})"

    async def submit(self, turn: wire.Turn) -> tuple[wire.Verdict, ...]:
        """Evaluate the calls of a turn; see `Gateway.submit`."""
        wire.check_texts(turn)
        return await self.connection.ask(http_api.SUBMIT, _with_schemas_of_json(turn))

    async def claim(self, request: wire.ClaimRequest) -> wire.ClaimReply:
        """Ask to run a call; see `Gateway.claim`.

        Raises:
            ClockWrong: when the claim was granted, but its receipt is not valid now by
                this machine's clock, which differs from the gateway's.
        """
        try:
            reply = await self.connection.ask(http_api.CLAIM, request)
        except KeyRefused:
            raise
        except NotAllowed as error:
            # Such as a missing item, which the in-process gateway also answers with a
            # reply.
            return wire.Refused(reason=str(error))
        # A receipt has a time of the gateway's clock; this process has no store.
        now_s = time.time()  # noqa: TID251 - the same
        verified = self._receipts.verified(reply, request, now_s)
        is_late = verified == wire.Refused(reason=OUT_OF_TIME)
        if isinstance(reply, wire.Claimed) and is_late:
            await self._wait_for_clock(request.item_id, reply.fence)
        return verified

    async def _wait_for_clock(self, item_id: str, fence: int) -> None:
        """Give back a claim if only a wrong clock stops the call.

        Raises:
            ClockWrong: when the gateway's answers show that the clock is wrong. A false
                gateway could delay calls with this, but run none.
        """
        problem = self.connection.clock.problem
        if not problem:
            return
        # Otherwise people would have to reconcile the call as in doubt.
        with suppress(KeyturnError):
            await self.release(item_id, fence, has_begun=False)
        raise ClockWrong(
            f"{problem} The receipt of an approved call is out of its time, so the "
            "call did not run; it runs once the clock is right."
        )

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Keep a claim; see `Gateway.heartbeat`."""
        question = http_api.ClaimedCall(item_id=item_id, fence=fence)
        return await self.connection.ask(http_api.HEARTBEAT, question)

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        """Record a result; see `Gateway.finish`.

        It continues after a cancellation: the call has run, and without its result
        people would have to reconcile it.
        """
        question = http_api.Finish(item_id=item_id, fence=fence, result=result)
        return await waited_for(begun(self.connection.ask(http_api.FINISH, question)))

    async def hand_over(self, end: wire.HandOverEnd) -> bool:
        """Record how a hand-over ended; return False when the claim is lost."""
        asked = self.connection.ask(http_api.HAND_OVER, end)
        return await waited_for(begun(asked))

    async def report_outcome(self, report: wire.ReportedOutcome) -> bool:
        """Record a program's first report of a call that it took; else return False."""
        return await self.connection.ask(http_api.REPORT_OUTCOME, report)

    async def report_asked_again(self, report: wire.AskedAgain) -> bool:
        """Record that an agent asked again; return False if nobody wanted that."""
        return await self.connection.ask(http_api.REPORT_ASKED_AGAIN, report)

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Give a claim back; see `Gateway.release`."""
        question = http_api.Release(item_id=item_id, fence=fence, has_begun=has_begun)
        await self.connection.ask(http_api.RELEASE, question)

    def keeps_calls(self) -> bool:
        """Return True: the gateway reads the lease from each request."""
        return True

    async def report_progress(self, progress: wire.CallProgress) -> wire.CallBegun:
        """Ask to run a call without a record; see `Gateway.report_progress`."""
        return await self.connection.ask(http_api.REPORT_PROGRESS, progress)

    async def ended(self, end: wire.CallEnd) -> None:
        """Report how a call ended; see `Gateway.ended`."""
        await self.connection.ask(http_api.ENDED, end)

    async def outcomes(self, ref: wire.TurnRef) -> tuple[wire.CallOutcome, ...]:
        """Return the outcomes of the calls of a message; see `Gateway.outcomes`."""
        return await self.connection.ask(http_api.OUTCOMES, ref)

    async def supersede(self, ref: wire.TurnRef) -> None:
        """Supersede waiting calls of a turn; see `Gateway.supersede`."""
        await self.connection.ask(http_api.SUPERSEDE, ref)

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return the edits of a run; see `Gateway.history`."""
        question = http_api.History(run=run, within=within)
        return await self.connection.ask(http_api.HISTORY, question)

    async def edits_known(
        self, ref: wire.TurnRef, edits: Mapping[str, str]
    ) -> wire.EditsKnown:
        """Return the edits that were really made; see `Gateway.edits_known`."""
        question = http_api.EditsQuestion(ref=ref, edits=dict(edits))
        return await self.connection.ask(http_api.EDITS_KNOWN, question)

    async def late_reports(
        self, ref: wire.TurnRef, item_ids: Collection[str]
    ) -> tuple[wire.LateReport, ...]:
        """Return the late reports of executors; see `Gateway.late_reports`."""
        question = http_api.LateReportsQuestion(ref=ref, item_ids=tuple(item_ids))
        return await self.connection.ask(http_api.LATE_REPORTS, question)

    async def note(self, agent: str) -> wire.AgentNote:
        """Return the tools for the system prompt; see `Gateway.note`."""
        return await self.connection.ask(
            http_api.NOTE, http_api.NoteQuestion(agent=agent)
        )

    async def answers(
        self, question: http_api.AnswersQuestion
    ) -> tuple[http_api.Answered, ...]:
        """Return the decisions; wait up to ``wait_s`` seconds for the first one."""
        ask = self.connection.ask
        return await ask(http_api.ANSWERS, question, wait_s=question.wait_s)

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """Withdraw calls of a run that have not started, or all; return their ids."""
        ids = None if item_ids is None else tuple(item_ids)
        question = http_api.Withdrawal(run=run, item_ids=ids)
        return await self.connection.ask(http_api.WITHDRAW, question)

    async def remember(self, facts: http_api.RunFacts) -> None:
        """Record the requester of a run, who cannot approve its calls."""
        await self.connection.ask(http_api.REMEMBER, facts)

    async def aclose(self) -> None:
        """Close the connections to the gateway."""
        await self.connection.aclose()


def _with_schemas_of_json(turn: wire.Turn) -> wire.Turn:
    """Replace schemas that are not JSON with an unusable schema.

    The gateway then disables edits, as it does in its process.
    """
    schemas = dict(turn.schemas)
    for tool, schema in turn.schemas.items():
        try:
            strict_json.accept(schema)
        except BadJson:
            schemas[tool] = dict(_UNUSABLE)
    return turn.with_(schemas=schemas)


URL_VARIABLE = "KEYTURN_GATEWAY"
KEY_VARIABLE = "KEYTURN_API_KEY"


def agent_name(name: str) -> str:
    """Check the name of an agent and return it.

    Raises:
        SettingsError: when it is empty, or has surrounding blanks or invisible
        characters: no policy and no API key could name it.
    """
    require(
        is_a(name, str) and is_name(name),
        "agent",
        name,
        "an agent needs a name, by which policy and cards know it, such as 'support', "
        "without blanks around it; leave it out for 'agent'",
    )
    return name


def given_gateway(
    gateway: Gateway | str | None,
    api_key: str | None = None,
    receipt_keys: Iterable[str] = (),
) -> Gateway | None:
    """Return the gateway of a program's arguments; None if they name none.

    A URL uses the key in ``api_key``, or else in the environment. Keys without a URL
    are for the gateway of the environment.

    Raises:
        SettingsError: when the URL or a key cannot be used.
    """
    known = key_lines(receipt_keys)
    if not isinstance(gateway, str):
        http_api.check_gateway(gateway)
        if not known and api_key is None:
            return gateway
        if gateway is not None:
            raise SettingsError(
                "api_key= and receipt_keys= are for a gateway at a URL; write "
                "gateway='https://…' as well."
            )
    return _at(*address_of(gateway, api_key), known)


def current_gateway() -> Gateway:
    """Return the gateway of this context, or else the one named by the environment.

    Raises:
        NotAllowed: when there is none; gated tools then do not run.
        SettingsError: when the environment names one that cannot be used.
    """
    found = http_api.connected_gateway()
    if found is not None:
        return found
    if os.environ.get(URL_VARIABLE):
        return _at(*address_of(None, None), ())
    raise NotAllowed(
        "No approval gateway is connected, so this call cannot run. Start the agent "
        "with `keyturn run`, inside `Keyturn(...)`, pass `gateway=`, or set "
        f"{URL_VARIABLE} and {KEY_VARIABLE}."
    )


def address_of(
    url: str | None, api_key: str | None, env: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Return the given URL and API key, or else those of the environment.

    Raises:
        SettingsError: when there is no URL, or the key is not a text.
    """
    require_secret(
        api_key is None or is_a(api_key, str),
        "api_key",
        api_key,
        f"give what `keyturn api-keys create` printed (tk_…), or set {KEY_VARIABLE}",
    )
    found = env.get(URL_VARIABLE, "") if url is None else url
    if not found and url is None:
        raise SettingsError(
            f"No gateway is named: give its URL, https://…, or set {URL_VARIABLE}, and "
            f"{KEY_VARIABLE} to a key of `keyturn api-keys create`."
        )
    return found, secret(env, KEY_VARIABLE) if api_key is None else api_key


@cache
def _at(url: str, api_key: str, receipt_keys: tuple[str, ...]) -> HttpGateway:
    # One for each gateway and its keys, so that all agents share its connections.
    return HttpGateway(url, api_key, receipt_keys=receipt_keys)
