"""A plugin for workers: activities that ask the gateway and run approved calls once."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import to_jsonable_python
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner
from typing_extensions import override

from keyturn.connect.asking import gate_of, schemas_of
from keyturn.connect.gate import Gate
from keyturn.connect.once import CallReport, NotDecided, Permit, Work, failed, once
from keyturn.connect.temporal import gated
from keyturn.connect.temporal.gated import Call, Held, Outcome, Step
from keyturn.connect.temporal.waker import Waker
from keyturn.gateway.background import begun
from keyturn.gateway.client.claiming import HeldCall
from keyturn.gateway.errors import FINAL_ERRORS, KeyRefused, NotStarted
from keyturn.gateway.protocol import edits, http_api, texts, wire
from keyturn.gateway.protocol.records import Person, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import AnswerKind, VerdictKind

Tool = Callable[..., Any]

BEATS = 3
"""Number of heartbeats within Temporal's heartbeat timeout."""

MAX_OUTCOME_CHARS = 1536 * 1024
"""Longest outcome as JSON: the server refuses 2 MiB, also at every later attempt."""


class KeyturnPlugin(SimplePlugin):
    """Runs gated tools as activities of a worker, and wakes waiting workflows.

    Args:
        tools: functions, synchronous or not; each becomes an activity of its name.
            They get the authorized arguments as keywords.
        gateway: the gateway, or its URL; by default ``KEYTURN_GATEWAY``.
        api_key: by default ``KEYTURN_API_KEY``; it needs all three scopes.
        requester: returns the requester of a call, who cannot approve it.
        wakes: follow the gateway's events; at least one worker must.
    """

    def __init__(
        self,
        *tools: Tool,
        gateway: Gate | str | None = None,
        api_key: str | None = None,
        requester: Callable[[Call], Awaitable[Person | None]] | None = None,
        wakes: bool = True,
    ) -> None:
        self._gate, self._wakes = gate_of(gateway, api_key), wakes
        self._requester = requester
        self._tools = {tool.__name__: tool for tool in tools}
        super().__init__(  # pyright: ignore[reportUnknownMemberType] - as Temporal types it
            "keyturn",
            activities=[
                *(self._submit, self._decided, self._withdraw),
                # Not from the dict: the worker refuses two tools with one name.
                *(self._once(tool.__name__, tool) for tool in tools),
            ],
            workflow_runner=_passing_through,
        )

    @override
    async def run_worker(
        self, worker: Worker, next: Callable[[Worker], Awaitable[None]]
    ) -> None:
        """Run a worker and its waker concurrently."""
        waker = Waker(worker.client, self._gate)
        waking = asyncio.create_task(waker.run() if self._wakes else asyncio.sleep(0))
        try:
            await next(worker)
        finally:
            waking.cancel()
            await asyncio.gather(waking, return_exceptions=True)

    @activity.defn(name=gated.SUBMIT)
    async def _submit(self, held: Held) -> Step:
        """Propose a call; a repeated proposal gets the same verdict."""
        with _final_errors():
            person = await self._requester(held.call) if self._requester else None
            if person is not None:
                facts = http_api.RunFacts(
                    run=_ref_of(held.call).run_ref, requester=person
                )
                await self._gate.remember(facts)
            verdict = await self._verdict(held.call)
        held = replace(
            held,
            item_id=verdict.item_id,
            action_hash=verdict.action_hash,
            pause=texts.pause_text(verdict),
        )
        if verdict.kind is VerdictKind.HOLD:
            # After a reset, or with a repeated key, people may have decided already.
            return await self._decided(held)
        if verdict.kind is VerdictKind.RUN:
            return Step("run", held)
        text = edits.defuse(texts.denial_text(verdict.reason))
        return Step("end", held, Outcome("refused", text))

    @activity.defn(name=gated.DECIDED)
    async def _decided(self, held: Held) -> Step:
        """Request the decision, without waiting for it."""
        kind = wire.RECONCILE_INTERRUPT if held.in_doubt else wire.APPROVAL_INTERRUPT
        question = http_api.OpenQuestion(
            kind=kind, item_id=held.item_id, action_hash=held.action_hash
        )
        run = _ref_of(held.call).run_ref
        with _final_errors():
            found = await self._gate.answers(
                http_api.AnswersQuestion(run=run, questions=(question,))
            )
        if not found:
            return Step("wait", held)
        if not held.in_doubt:
            answer = wire.Answer.model_validate(found[0].answer)
            if answer.type not in {AnswerKind.APPROVE, AnswerKind.EDIT}:
                text = f"{edits.defuse(texts.ended_text(answer))} {held.pause}".rstrip()
                return Step("end", held, Outcome(str(answer.type), text))
        return Step("run", held)

    @activity.defn(name=gated.WITHDRAW)
    async def _withdraw(self, held: Held) -> None:
        """Withdraw a call that has not started."""
        with _final_errors():
            await self._gate.withdraw(_ref_of(held.call).run_ref, (held.item_id,))

    def _once(self, name: str, tool: Tool) -> Tool:
        """Return the activity of a tool; each attempt claims the call."""

        @activity.defn(name=name)
        async def attempt(held: Held) -> Step:
            # Another tool's approval must not run this one.
            call = replace(held.call, tool=name)
            return await _to_its_end(self._attempt(call, tool))

        return attempt

    async def _attempt(self, call: Call, tool: Tool) -> Step:
        """Run a call once, or return its open question."""

        async def run(args: JsonObject, _permit: Permit) -> object:
            try:
                inspect.signature(tool).bind(**args)
            except TypeError as error:
                name = tool.__name__
                raise NotStarted(f"{name} refuses the arguments: {error}.") from error
            is_async = inspect.iscoroutinefunction(tool)
            value = tool(**args) if is_async else await asyncio.to_thread(tool, **args)
            # A decorator may hide that the function below it is async.
            value = await value if inspect.isawaitable(value) else value
            try:
                return to_jsonable_python(value, fallback=str)
            except (ValueError, RecursionError):  # such as bytes that are no text
                return str(value)

        with _final_errors():
            verdict = await self._verdict(call)
        held = HeldCall(_ref_of(call), verdict, call.args)
        try:
            report = await once(self._gate, held, Work(run), limit_s=0)
        except NotDecided as waits:
            asked = waits.question
            in_doubt = asked.kind == wire.RECONCILE_INTERRUPT
            return Step("wait", Held(call, asked.item_id, asked.action_hash, in_doubt))
        except Exception as error:
            if not verdict.runs_unclaimed:
                raise
            # An outcome, as for a claimed call.
            result = texts.failed_result(error)
            report = failed(result.failure, result.summary)
        return Step("end", Held(call, verdict.item_id), _outcome(report))

    async def _verdict(self, call: Call) -> wire.Verdict:
        proposed = wire.ProposedCall(
            tool=call.tool, args=call.args, tool_call_id=call.key
        )
        schemas = _schemas(call.tool, self._tools.get(call.tool))
        turn = wire.Turn(ref=_ref_of(call), calls=(proposed,), schemas=schemas)
        (verdict,) = await self._gate.submit(turn)
        return verdict


def _passing_through(runner: WorkflowRunner | None) -> WorkflowRunner:
    """Load this package once instead of once for each workflow."""
    if not isinstance(runner, SandboxedWorkflowRunner):
        return runner or SandboxedWorkflowRunner()
    allowed = runner.restrictions.with_passthrough_modules("keyturn")
    return replace(runner, restrictions=allowed)


def _ref_of(call: Call) -> wire.TurnRef:
    # A lane for each call: calls of one workflow do not supersede each other.
    return wire.TurnRef(
        agent=call.agent, thread=call.thread, ns=call.key, message_id=call.key
    )


def _schemas(name: str, tool: Tool | None) -> dict[str, JsonObject]:
    """Return the schema of a tool's arguments for edits; {} if it has none."""
    if tool is not None:
        with suppress(PydanticUserError):
            return schemas_of({name: TypeAdapter(cast("Any", tool)).json_schema()})
    return {}


@contextmanager
def _final_errors() -> Generator[None]:
    """Mark final errors as not retryable; Temporal retries outages and refused keys."""
    try:
        yield
    except KeyRefused:
        raise
    except FINAL_ERRORS as error:
        kind = type(error).__name__
        raise ApplicationError(str(error), type=kind, non_retryable=True) from error


async def _to_its_end(work: Coroutine[Any, Any, Step]) -> Step:
    """Await work, with heartbeats to Temporal.

    Work that has begun is finished and recorded, even if its workflow is cancelled or
    its worker stops.
    """
    running, cancelled = begun(work), False
    while not running.done():
        activity.heartbeat()
        try:
            await asyncio.wait(
                [running], timeout=gated.HEARTBEAT.total_seconds() / BEATS
            )
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    return running.result()


def _outcome(report: CallReport[Any]) -> Outcome:
    kind = report.kind if report.answer is None else str(report.answer.type)
    value, text = report.value and report.value.is_, report.in_words(_text)
    if len(json.dumps([value, text])) > MAX_OUTCOME_CHARS:
        lost = texts.lost_result_text(Result(ok=not report.is_error, summary=""))
        value, text = None, replace(report, value=None, text=lost).in_words(str)
    return Outcome(kind, text, value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
