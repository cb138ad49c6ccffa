"""Bring a call from proposal to result: submit, wait for people, claim, forward.

A call advances only while a caller waits for it. Otherwise an approved call could run
without a reader for its result. A forwarded call continues without its caller, and its
result is kept until it is collected.

All calls wait for one stream of events. One waiting request per call would exceed the
gateway's limit for an API key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from mcp_types import CallToolResult
from typing_extensions import override

from keyturn.connect.gate import Following, Gate, Listing, each_listed
from keyturn.connect.mcp.calls import Call, Calls, call_id_of, turn_of
from keyturn.connect.mcp.definitions import Definitions
from keyturn.connect.mcp.results import (
    cleaned,
    decision_of,
    ended,
    of_run,
    restored,
    stored,
    text_result,
)
from keyturn.connect.mcp.upstreams import NoAnswer, NotSent, ServerRefused, Upstream
from keyturn.gateway.background import begun
from keyturn.gateway.client import claiming
from keyturn.gateway.client.bridge import AWAITING, ask_or_wait
from keyturn.gateway.errors import KeyturnError, NotAllowed, ThreadUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import texts, wire
from keyturn.gateway.protocol.http_api import Attendance, RunFacts
from keyturn.gateway.protocol.receipts import META_KEY
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject

logger = logging.getLogger(__name__)

POLL_S = 30
"""Longest wait of one request for events; then all waiting calls are checked."""

AFTER_S = 15.0
"""Seconds after a request in which its caller is expected again."""

PAUSE_S = 1.0
"""Seconds before the next request to a gateway that did not answer."""

CHANGED = (
    "The server changed the definition of this tool after the call was proposed. So "
    "the call did not run, and an approval of it is void. People decide about the "
    "new definition. Tell the user, who may ask for the call again."
)

FORGOTTEN = (
    "The gate does not know this call any more: its result was returned before, or the "
    f"gate was restarted. {texts.UNKNOWN_EFFECT}"
)

_GOES_ON = {wire.AnswerKind.APPROVE, wire.AnswerKind.EDIT}


class _NotNow(KeyturnError):
    """The call is pending again or in doubt, so its caller waits again."""


class _NoWaiting(claiming.People):
    """Ends the claim instead of waiting for people inside it."""

    @override
    async def decide_again(self) -> wire.Answer:
        raise _NotNow

    @override
    async def reconcile(self) -> wire.ReconcileAnswer:
        raise _NotNow

    @override
    def has_ended(self) -> None:
        return


class DefinitionChanged(KeyturnError):
    """The server changed the tool between the approval and the run."""


@dataclass(eq=False)
class Passage:
    """Brings calls through the gateway.

    Attributes:
        gate: the gateway.
        agent: name of the agent that proposes the calls.
        upstreams: the servers, by name.
        calls: the calls of this gate.
        definitions: the approved definitions.
    """

    gate: Gate
    agent: str
    upstreams: Mapping[str, Upstream]
    calls: Calls
    definitions: Definitions
    _place: str = ""
    _recovered: asyncio.Lock = field(default_factory=asyncio.Lock)
    _is_recovered: bool = False

    async def recover(self) -> None:
        """Find the open calls of an earlier process of this gate, once.

        Raises:
            KeyturnError: the gateway does not answer.
        """
        async with self._recovered:
            if self._is_recovered:
                return
            if not self._place:
                self._place = (await self.gate.events(Following(self.agent))).next
            async for approval in each_listed(
                self.gate, Listing(self.agent, limit=200)
            ):
                if name := call_id_of(approval.thread):
                    item = approval.calls[0]
                    same = self.calls.left_open.setdefault(item.tool_call_id, {})
                    same[name] = item.id
            self._is_recovered = True

    async def joined(self, wanted: Call) -> str:
        """Return the id of another process's call that a request continues; or ""."""
        left = self.calls.left_open.get(wanted.mark, {}).copy()
        if wanted.id in left or wanted.may_have_run:
            return wanted.id
        for call_id, item_id in left.items():
            # While its caller waits, an equal call is another one.
            asked = Attendance(item_id=item_id, wait_s=AFTER_S, joins=True)
            if (await self.gate.attend(asked)).has_call:
                return call_id
        return wanted.id

    async def attend(self, call: Call, wait_s: float) -> str:
        """Report that a caller waits for a call so long; return its card's address.

        The report is for people only, so a failure does not matter.
        """
        verdict = call.verdict
        if verdict is None or not verdict.item_id or call.result is not None:
            return ""
        asked = Attendance(item_id=verdict.item_id, wait_s=wait_s)
        try:
            return (await self.gate.attend(asked)).card_url
        except KeyturnError as error:
            log_failure(logger, error, "mcp.unattended call=%s", call.id)
            return ""

    async def follow(self) -> None:
        """Wake calls at their events, until cancelled."""
        is_away = False
        while True:
            try:
                await self.recover()
                wait_s = 0 if is_away else POLL_S
                asked = Following(self.agent, self._place, wait_s)
                page = await self.gate.events(asked)
            except KeyturnError as error:
                log_failure(logger, error, "mcp.events_unread")
                is_away = True
                await asyncio.sleep(PAUSE_S)
                continue
            self._place = page.next
            if is_away:
                self.definitions.changed()  # during the outage no tools were listed
            if is_away or page.missed or not page.events:
                # A wait may end without an event, such as after a restore.
                self.wake_all()
            is_away = False
            for event in page.events:
                self.definitions.wake(event.thread)
                if call := self.calls.get(call_id_of(event.thread)):
                    call.woken.set()

    def wake_all(self) -> None:
        """Wake all waiting calls."""
        for call in self.calls.all():
            call.woken.set()

    async def wait(self, call: Call, hold_s: float) -> CallToolResult | None:
        """Advance a call for at most ``hold_s``; return None if it is still open.

        Raises:
            KeyturnError: nothing ran, and the caller may ask again.
        """
        is_reported = False
        try:
            async with asyncio.timeout(hold_s):
                while call.result is None:
                    call.woken.clear()
                    async with call.lock:
                        await self._advance(call)
                        if call.verdict and call.work is None and not is_reported:
                            is_reported = True
                            await self.attend(call, hold_s + AFTER_S)
                    if (trouble := call.trouble) is not None:
                        call.trouble = None
                        raise trouble
                    if call.result is None:
                        await call.woken.wait()
        except TimeoutError:
            pass
        return call.result

    async def left(self, call: Call) -> None:
        """Report that the caller of a call has gone, unless another one waits."""
        async with call.lock:
            if not call.waiting:
                await self.attend(call, 0)

    async def ended_before(self, server: str, call_id: str) -> CallToolResult | None:
        """Return the result of a call of an earlier process; None if it is open."""
        ref = turn_of(self.agent, server, call_id)
        for outcome in await self.gate.outcomes(ref):
            unknown = in_doubt() if outcome.state is ItemState.IN_DOUBT else None
            return _over(outcome, {}) or unknown
        # A call that the policy runs has no record, so it may have run.
        return text_result(FORGOTTEN)

    async def finish_work(self, within_s: float) -> None:
        """Wait for the running calls, and report that all callers have gone."""
        calls = self.calls.all()
        work = [call.work for call in calls if call.work and not call.work.done()]
        work += [begun(self.left(call)) for call in calls]
        if work:
            await asyncio.wait(work, timeout=within_s)

    async def _advance(self, call: Call) -> None:
        """Take the next step of a call, unless people decide or it runs."""
        if call.result is not None or (call.work is not None and not call.work.done()):
            return
        if call.verdict is None:
            definition = await self.definitions.of_call(call.server, call.name)
            if definition is None:
                return  # people decide about the definition first
            call.definition = definition
            call.verdict = await self._submitted(call)
        verdict = call.verdict
        if verdict.kind is wire.VerdictKind.DENY:
            decision = decision_of("denied", call.args)
            text = texts.denial_text(verdict.reason)
            call.end(text_result(text, decision))
        elif verdict.runs_unclaimed and call.may_have_run:
            call.end(text_result(FORGOTTEN))
        elif verdict.runs_unclaimed:
            self._begin(call, self._run_unclaimed(call))
        elif verdict.kind is wire.VerdictKind.RUN or await self._is_decided(call):
            self._begin(call, self._run_claimed(call, verdict))

    def _begin(self, call: Call, work: Any) -> None:  # noqa: ANN401 - a coroutine
        async def kept() -> None:
            try:
                await work
            except _NotNow:
                pass
            except KeyturnError as error:
                call.trouble = error
            except any_failure() as error:
                log_failure(logger, error, "mcp.call_failed call=%s", call.id)
                call.trouble = ThreadUnavailable("The gate failed; see its log.")
            finally:
                call.woken.set()

        call.work = begun(kept())

    async def _submitted(self, call: Call) -> wire.Verdict:
        ref = call.ref(self.agent)
        if call.caller.person is not None:
            facts = RunFacts(run=ref.run_ref, requester=call.caller.person)
            await ask_or_wait(AWAITING, lambda: self.gate.remember(facts), call.tool)
        schema = (call.definition or {}).get("inputSchema")
        schemas = {call.tool: schema} if isinstance(schema, dict) else {}
        turn = wire.Turn(ref=ref, calls=(_proposed(call),), schemas=schemas)
        [verdict] = await ask_or_wait(
            AWAITING, lambda: self.gate.submit(turn), call.tool
        )
        if verdict.tool_call_id != call.mark or verdict.tool != call.tool:
            raise NotAllowed(texts.MISMATCH)
        return verdict

    async def _is_decided(self, call: Call) -> bool:
        """Return whether a held call may be claimed; give it its end, if it has one."""
        for outcome in await self.gate.outcomes(call.ref(self.agent)):
            call.is_in_doubt = outcome.state is ItemState.IN_DOUBT
            if outcome.state is not ItemState.PENDING:
                call.result = _over(outcome, call.args)
                return call.result is None and not call.is_in_doubt
        return False

    async def _run_claimed(self, call: Call, verdict: wire.Verdict) -> None:
        held = claiming.HeldCall(call.ref(self.agent), verdict, call.args, _NoWaiting())

        async def run(claimed: wire.Claimed, args: JsonObject) -> CallToolResult:
            if not await self.definitions.is_still(call):
                raise DefinitionChanged
            return await self._forward(call, args, claimed.receipt)

        effect = claiming.Effect(run, stored, text_result, _meaning)
        try:
            end = await claiming.execute(held, self.gate, AWAITING, effect)
        except DefinitionChanged:
            # The approval was for another definition of the tool.
            await self.gate.withdraw(held.ref.run_ref, (held.item_id,))
            call.end(text_result(CHANGED))
            return
        except NoAnswer as error:
            decision = decision_of("unknown", call.args)
            text = f"{error} {texts.UNKNOWN_EFFECT}"
            call.end(text_result(text, decision))
            return
        call.end(_result_of(call, verdict, end))

    async def _run_unclaimed(self, call: Call) -> None:
        """Forward a call of tier ``auto``: it has no record, and no receipt."""
        is_over = True
        try:
            result = await self._forward(call, call.args, "")
            kept = stored(result)
        except NotSent:
            raise
        except any_failure() as error:
            kept, is_over = texts.failed_result(error), not isinstance(error, NoAnswer)
            text = f"{error} {texts.UNKNOWN_EFFECT}"
            result = text_result(text)
        call.end(of_run(result, call.args, kind="policy"))
        if kept.ok:
            return
        end = wire.CallEnd(
            ref=call.ref(self.agent),
            tool=call.tool,
            tool_call_id=call.mark,
            result=kept,
            is_over=is_over,
        )
        try:
            await self.gate.ended(end)
        except KeyturnError as error:
            log_failure(logger, error, "mcp.end_unreported call=%s", call.id)

    async def _forward(
        self, call: Call, args: JsonObject, receipt: str
    ) -> CallToolResult:
        meta: dict[str, Any] = {META_KEY: receipt} if receipt else {}

        async def pass_on(
            progress: float, total: float | None, message: str | None
        ) -> None:
            if call.progress is not None:
                await call.progress(progress, total, message)

        upstream = self.upstreams[call.server]
        found = await upstream.call(call.name, args, meta=meta, progress=pass_on)
        return cleaned(found)


def in_doubt() -> CallToolResult:
    """Return the result of a call whose effect is unknown."""
    return text_result(texts.UNKNOWN_RESULT, decision_of("unknown", {}))


def _proposed(call: Call) -> wire.ProposedCall:
    client = f"{call.client!r}" if call.client else "without a name"
    description = f"Asked by the MCP client {client}. "
    if call.caller.person is not None and not call.caller.principal:
        description += "The configuration of the client names its requester. "
    description += "It runs while the client waits, or when it asks again."
    hints = (call.definition or {}).get("annotations")
    # A server may raise the tier of its tool, and never lower it.
    is_destructive = isinstance(hints, dict) and hints.get("destructiveHint") is True
    hint = wire.CallHint(description=description, hold=True if is_destructive else None)
    return wire.ProposedCall(
        tool=call.tool, args=call.args, tool_call_id=call.mark, hint=hint
    )


def _meaning(error: BaseException) -> claiming.Unfinished | None:
    """Return what an error means; None for a failure of the tool."""
    if isinstance(error, NoAnswer):
        return claiming.Unfinished.UNKNOWN
    has_begun = isinstance(error, ServerRefused) or not isinstance(error, KeyturnError)
    return None if has_begun else claiming.Unfinished.NOT_BEGUN


def _over(outcome: wire.CallOutcome, args: JsonObject) -> CallToolResult | None:
    """Return the result of a call that is over; None for one that may still run."""
    answer = outcome.answer
    if answer is not None and answer.type not in _GOES_ON:
        return ended(answer, args)
    if outcome.reconcile_answer is not None:
        return text_result(texts.reconciled_text(outcome.reconcile_answer))
    if outcome.result is None:
        return None
    return of_run(restored(outcome.result), args, outcome.edit, answer)


def _result_of(
    call: Call, verdict: wire.Verdict, end: claiming.End[CallToolResult]
) -> CallToolResult:
    """Return what the client gets for a claimed call."""
    match end:
        case claiming.Ran():
            result = end.result
            if end.failure is not None:
                text = " ".join(getattr(one, "text", "") for one in result.content)
                result = text_result(texts.failure_text(end.failure, text))
        case claiming.RanBefore():
            result = restored(end.result)
        case claiming.Reconciled():
            return text_result(texts.reconciled_text(end.finding))
        case claiming.CutOff():
            return in_doubt()
        case claiming.Closed():
            return ended(end.answer, call.args)
        case claiming.NotRun():
            decision = decision_of("refused", call.args)
            return text_result(end.reason, decision)
        case _:
            assert_never(end)
    kind = "policy" if verdict.kind is wire.VerdictKind.RUN else "approve"
    return of_run(result, call.args, end.edit, kind=kind, item_id=verdict.item_id)
