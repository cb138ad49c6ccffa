"""The worker's side: activities that ask the gateway, and run approved calls once."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, cast

from pydantic import JsonValue, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from typing_extensions import override

from keyturn.connect.gate import Gate, HttpGate
from keyturn.connect.temporal import gated
from keyturn.connect.temporal.gated import Call, Held, Outcome, Step
from keyturn.connect.temporal.waker import Waker
from keyturn.gateway.client import claiming, http_gateway
from keyturn.gateway.client.bridge import AWAITING
from keyturn.gateway.errors import FINAL_ERRORS, KeyRefused, NotStarted
from keyturn.gateway.protocol import edits, http_api, texts, wire
from keyturn.gateway.protocol.records import FailureKind, Person, Result, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import AnswerKind, Claimed, VerdictKind

Tool = Callable[..., Any]

BEATS = 3
"""Signs of life within Temporal's time-out for them."""

_claim = ContextVar[Claimed]("keyturn_temporal_claim")


def current_claim() -> Claimed:
    """Return the claim of the running tool, with its idempotency key and receipt.

    Raises:
        LookupError: outside a gated tool, and in calls that the policy lets run freely.
    """
    return _claim.get()


class KeyturnPlugin(SimplePlugin):
    """Runs gated tools as activities of a worker, and wakes waiting workflows.

    Args:
        tools: functions, synchronous or not; each becomes the activity of its name.
            They get the authorized arguments as keywords.
        gateway: the gateway, or its URL; by default ``KEYTURN_GATEWAY``.
        api_key: by default ``KEYTURN_API_KEY``; it needs all three scopes.
        requester: returns who asked for a call; they cannot approve it.
        wakes: whether the worker follows the gateway's events. One worker has to.
    """

    def __init__(
        self,
        *tools: Tool,
        gateway: Gate | str = "",
        api_key: str = "",
        requester: Callable[[Call], Awaitable[Person | None]] | None = None,
        wakes: bool = True,
    ) -> None:
        if isinstance(gateway, str):
            url = gateway or os.environ.get(http_gateway.URL_VARIABLE, "")
            key = api_key or os.environ.get(http_gateway.KEY_VARIABLE, "")
            gateway = HttpGate(url, key)
        self._gate, self._wakes = gateway, wakes
        self._requester = requester
        self._tools = {tool.__name__: tool for tool in tools}
        super().__init__(
            "keyturn",
            activities=[
                *(self._submit, self._decided, self._withdraw),
                *(self._once(name, tool) for name, tool in self._tools.items()),
            ],
            workflow_runner=_passing_through,
        )

    @override
    async def run_worker(
        self, worker: Worker, next: Callable[[Worker], Awaitable[None]]
    ) -> None:
        """Run a worker, and the waker beside it."""
        waker = Waker(worker.client, self._gate)
        waking = asyncio.create_task(waker.run() if self._wakes else asyncio.sleep(0))
        try:
            await next(worker)
        finally:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)

    @activity.defn(name=gated.SUBMIT)
    async def _submit(self, held: Held) -> Step:
        """Propose a call; the same one again gets the same verdict."""
        with _final_errors():
            person = await self._requester(held.call) if self._requester else None
            if person is not None:
                facts = http_api.RunFacts(run=_run_of(held.call), requester=person)
                await self._gate.remember(facts)
            verdict = await self._verdict(held.call)
        step = _next_step(held, verdict)
        # A reset, or the same key again: people may have decided before.
        return await self._decided(step.held) if step.next == "wait" else step

    @activity.defn(name=gated.DECIDED)
    async def _decided(self, held: Held) -> Step:
        """Ask what people decided, without waiting for it."""
        kind = wire.RECONCILE_INTERRUPT if held.in_doubt else wire.APPROVAL_INTERRUPT
        question = http_api.OpenQuestion(
            kind=kind, item_id=held.item_id, action_hash=held.action_hash
        )
        run = _run_of(held.call)
        with _final_errors():
            found = await self._gate.answers(
                http_api.AnswersQuestion(run=run, questions=(question,))
            )
        if not found:
            return Step("wait", held)
        if held.in_doubt:
            finding = wire.ReconcileAnswer.model_validate(found[0].answer)
            if finding.type == "rerun":
                return Step("run", replace(held, in_doubt=False))
            return Step("end", held, _outcome(claiming.Reconciled(finding), ""))
        answer = wire.Answer.model_validate(found[0].answer)
        if answer.type in {AnswerKind.APPROVE, AnswerKind.EDIT}:
            return Step("run", replace(held, note=answer.why_approved))
        return Step("end", held, _outcome(claiming.Closed(answer), ""))

    @activity.defn(name=gated.WITHDRAW)
    async def _withdraw(self, held: Held) -> None:
        """Withdraw a call that has not started."""
        with _final_errors():
            await self._gate.withdraw(_run_of(held.call), (held.item_id,))

    def _once(self, name: str, tool: Tool) -> Tool:
        """Return the activity of a tool: each attempt claims the call for itself."""

        @activity.defn(name=name)
        async def attempt(held: Held) -> Step:
            # Another tool's approval must not run this one.
            named = replace(held, call=replace(held.call, tool=name))
            async with _alive():
                running = asyncio.ensure_future(self._attempt(named, tool))
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    # The workflow was cancelled, or the worker stops. What has begun
                    # ends, and is recorded.
                    await asyncio.wait([running])
                    raise

        return attempt

    async def _attempt(self, held: Held, tool: Tool) -> Step:
        with _final_errors():
            verdict = await self._verdict(held.call)
        step = _next_step(held, verdict)
        if step.outcome is not None:
            return step
        held, call = step.held, held.call
        if verdict.runs_unclaimed:
            return Step("end", held, await _run_freely(tool, call.args))
        people = _People() if verdict.kind is VerdictKind.HOLD else None
        known = claiming.HeldCall(_ref_of(call), verdict, call.args, people)
        effect = claiming.Effect(partial(_claimed, tool), _result, failure=str)
        try:
            end = await claiming.execute(known, self._gate, AWAITING, effect)
        except _Waits as waits:
            return Step("wait", replace(held, in_doubt=waits.in_doubt))
        return Step("end", held, _outcome(end, held.note))

    async def _verdict(self, call: Call) -> wire.Verdict:
        proposed = wire.ProposedCall(
            tool=call.tool, args=call.args, tool_call_id=call.key
        )
        schemas = _schemas(call.tool, self._tools.get(call.tool))
        turn = wire.Turn(ref=_ref_of(call), calls=(proposed,), schemas=schemas)
        (verdict,) = await self._gate.submit(turn)
        return verdict


class _Waits(Exception):
    """The call waits for people; no activity is held open for that."""

    def __init__(self, *, in_doubt: bool) -> None:
        self.in_doubt = in_doubt


class _People:
    """Leaves every wait to the workflow."""

    async def decide_again(self) -> wire.Answer:
        raise _Waits(in_doubt=False)

    async def reconcile(self) -> wire.ReconcileAnswer:
        raise _Waits(in_doubt=True)

    def has_ended(self) -> None:
        """Nothing is kept between attempts."""


def _passing_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Load this package once, and not for each workflow."""
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner or SandboxedWorkflowRunner()
    allowed = runner.restrictions.with_passthrough_modules("keyturn")
    return replace(runner, restrictions=allowed)


def _run_of(call: Call) -> RunRef:
    return RunRef(agent=call.agent, thread=call.thread)


def _ref_of(call: Call) -> wire.TurnRef:
    # A lane for each call: calls of one workflow do not supersede each other.
    names = {"agent": call.agent, "thread": call.thread}
    return wire.TurnRef(**names, ns=call.key, message_id=call.key)


def _next_step(held: Held, verdict: wire.Verdict) -> Step:
    if verdict.kind is VerdictKind.DENY:
        return Step("end", held, _outcome(claiming.NotRun(verdict.reason), ""))
    held = replace(held, item_id=verdict.item_id, action_hash=verdict.action_hash)
    return Step("wait" if verdict.kind is VerdictKind.HOLD else "run", held)


def _schemas(name: str, tool: Tool | None) -> dict[str, JsonObject]:
    """Return the schema of a tool's arguments, for edits, if its types have one."""
    try:
        return {name: TypeAdapter(cast("Any", tool)).json_schema()} if tool else {}
    except PydanticUserError:
        return {}


@contextmanager
def _final_errors() -> Generator[None]:
    """Let Temporal retry outages, and refused keys, which can be replaced meanwhile."""
    try:
        yield
    except KeyRefused:
        raise
    except FINAL_ERRORS as error:
        kind = type(error).__name__
        raise ApplicationError(str(error), type=kind, non_retryable=True) from error


@asynccontextmanager
async def _alive() -> AsyncGenerator[None]:
    """Tell Temporal that this attempt lives, as the claim tells the gateway."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(gated.HEARTBEAT.total_seconds() / BEATS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()


async def _called(tool: Tool, args: JsonObject) -> JsonValue:
    """Run a tool with these arguments; return its value as JSON."""
    try:
        inspect.signature(tool).bind(**args)
    except TypeError as error:
        raise NotStarted(f"{tool.__name__} cannot be called so: {error}.") from error
    is_async = inspect.iscoroutinefunction(tool)
    value = await (tool(**args) if is_async else asyncio.to_thread(tool, **args))
    return cast("JsonValue", to_jsonable_python(value, fallback=str))


async def _claimed(tool: Tool, claimed: Claimed, args: JsonObject) -> JsonValue:
    token = _claim.set(claimed)
    try:
        return await _called(tool, args)
    finally:
        _claim.reset(token)


async def _run_freely(tool: Tool, args: JsonObject) -> Outcome:
    """Run a call that the policy lets run without a record."""
    try:
        return _returned(await _called(tool, args))
    except Exception as error:  # noqa: BLE001 - an outcome, as for a claimed call
        return _failed(texts.failed_result(error))


def _outcome(end: claiming.End[JsonValue], note: str) -> Outcome:
    """Return how a call ended; ``note`` is the text of its approvers."""
    reconciled: wire.ReconcileAnswer | None = None
    match end:
        case claiming.NotRun():
            return Outcome("denied", texts.denial_text(end.reason))
        case claiming.Closed():
            return Outcome(str(end.answer.type), texts.ended_text(end.answer))
        case claiming.CutOff():
            return Outcome("unknown", texts.CUT_OFF)
        case claiming.Reconciled():
            kind = "ran" if end.finding.type == "executed" else "unknown"
            found = Outcome(kind, texts.reconciled_text(end.finding))
        case claiming.RanBefore():
            found, reconciled = _recorded(end.result), end.reconciled
        case claiming.Ran():
            failure = Result(ok=False, summary=str(end.result), failure=end.failure)
            found = _failed(failure) if end.failure else _returned(end.result)
            reconciled = end.reconciled
    edit = texts.edit_text(end.edit) if end.edit else ""
    told = texts.reconciliation_note(reconciled) if reconciled else ""
    parts = [edit, edits.defuse(note), edits.defuse(told), found.text]
    return replace(found, text="\n\n".join(filter(None, parts)))


def _recorded(result: Result) -> Outcome:
    """Return the end of a call that ran before, maybe in another attempt."""
    if result.failure is not None:
        return _failed(result)
    if not result.payload:
        kind = "ran" if result.ok else "unknown"
        return Outcome(kind, texts.lost_result_text(result))
    return _returned(json.loads(result.payload))


def _result(value: JsonValue) -> Result:
    return Result(ok=True, summary=_text(value)[:500] or "-", payload=json.dumps(value))


def _returned(value: JsonValue) -> Outcome:
    return Outcome("ran", edits.defuse(_text(value)), value)


def _failed(result: Result) -> Outcome:
    kind = result.failure or FailureKind.RAISED
    return Outcome("failed", edits.defuse(texts.failure_text(kind, result.summary)))


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
