"""Require approval for one action of a plain LangGraph node, without an agent.

    outcome = await arequire_approval("wire_money", {"amount": 90}, run=wire_money)

The node pauses until a person decided; then ``run`` is called once, with the arguments
that were authorized as keywords: ``wire_money(amount=90)``. LangGraph runs a node
again from its start after a pause: nothing before this call may have effects.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from twokey.agent import (
    auto_approved,
    interrupts,
    node_turns,
    rechecks,
    signatures,
    step_arguments,
    tool_messages,
    turns,
)
from twokey.agent.bridge import Awaiting, Blocking, Shell, drive
from twokey.agent.execution import (
    Closed,
    CutOff,
    NotRun,
    Ran,
    Reconciled,
    Work,
    execute,
)
from twokey.agent.grants import grant_scope
from twokey.agent.held_call import HeldCall
from twokey.agent.rechecks import Recheck
from twokey.gateway.arguments import is_a, require
from twokey.gateway.client.choice import agent_name, current_gateway, given_gateway
from twokey.gateway.errors import StateUnknown, TwokeyError
from twokey.gateway.protocol import run_context, strict_json
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.records import EditRecord, Result
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    AnswerKind,
    CallHint,
    ProposedCall,
    ReconcileAnswer,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Approved(Generic[R]):
    """It ran, with ``args``; ``edit`` says what a person changed, None for nothing.

    ``reasons`` is what people wrote when they approved it, each named, or nothing.
    """

    result: R
    args: JsonObject
    edit: EditRecord | None = None
    reasons: str = ""


@dataclass(frozen=True, slots=True)
class NotApproved:
    """It did not run. ``message`` is a sentence that says why, with people's words.

    ``kind`` is the answer's kind (reject, respond, expired, …), ``deny`` when policy
    or the gateway refused, or ``misfit`` when ``run`` does not take the arguments that
    a person wrote. ``said`` is the reason or the response of a person as they wrote it.
    """

    kind: str
    message: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Unsure:
    """It was started, and whether it took effect or what it returned is not known."""

    message: str


Outcome = Approved[R] | NotApproved | Unsure
_Work = Callable[[JsonObject], Awaitable[R]]
"""Calls the caller's function with authorized arguments."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a caller asked for, with defaults filled in."""

    run: Callable[..., Any]
    tool: str
    args: JsonObject
    agent: str
    given_key: str
    says: str
    task: str
    schema: JsonObject | None
    gateway: Gateway
    recheck: Recheck | None

    def __post_init__(self) -> None:
        """Check what pydantic would refuse in words of its own, or late."""
        require(is_a(self.tool, str) and self.tool, "tool", self.tool, "give a name")
        texts = {"key": self.given_key, "says": self.says, "task": self.task}
        for name, text in texts.items():
            require(is_a(text, str), name, text, "give a text")
        is_schema = self.schema is None or is_a(self.schema, Mapping)
        require(is_schema, "schema", self.schema, "give a JSON Schema as a mapping")
        is_recheck = self.recheck is None or callable(self.recheck)
        require(is_recheck, "recheck", self.recheck, "give a function")

    @property
    def key(self) -> str:
        """Return the name of the call."""
        return self.given_key or self.tool


def require_approval(  # noqa: PLR0913 - what a node may say of a step, by name
    tool: str,
    args: dict[str, Any],
    *,
    run: Callable[..., R],
    agent: str = "agent",
    key: str = "",
    says: str = "",
    task: str = "",
    schema: JsonObject | None = None,
    gateway: Gateway | str | None = None,
    api_key: str | None = None,
    recheck: Recheck | None = None,
) -> Outcome[R]:
    """Ask for one step of a node, wait, and run it once; for synchronous graphs.

    Args:
        tool: the name that policy and the card know this step by.
        args: its arguments by name, strict JSON.
        run: does it; called with the authorized arguments as keywords, which are read
            by its annotations, if it has any, before anybody is asked. What it returns
            is kept to be given back after a crash, so it should be plain JSON. `grant`
            works in it, and so do `guarded` tools.
        agent: the name that policy and the card know the asker by.
        key: names this step within its node. Without one a step is known by its place
            in the order in which the node asks, which must not change between runs
            of the node: give keys to steps that threads ask about in any order.
        says: why, in the asker's own words; shown as unverified.
        task: what the step is part of; steps of one task may share a card, where the
            policy says ``batch: {by: task, …}``.
        schema: JSON Schema of the arguments, for the edit form and its checks.
        gateway: the gateway to ask, or its URL; by default the one `connected`, else
            that of the environment.
        api_key: for a gateway at a URL; by default that of the environment.
        recheck: reads the state that must not change until the step runs; see
            `guarded`.

    Raises:
        BadJson: when the arguments are not strict JSON.
        BadStep: when ``run`` does not take these arguments; nobody was asked.
        SettingsError: when another argument is of a wrong type; nobody was asked.
        NotAllowed: when no gateway is connected, or the graph keeps no thread.
        ThreadUnavailable: when the gateway does not answer. Nothing ran, or an answer
            is kept: run the thread again later.
        StateUnknown: when ``recheck`` fails before the approved step runs; likewise.
    """
    signatures.check_synchronous(run, tool)
    signatures.check(run, args, tool)

    async def work(given: JsonObject) -> R:
        return run(**step_arguments.values(run, given, tool))

    plain = step_arguments.canonical_step(run, args, tool)
    found = given_gateway(gateway, api_key) or current_gateway()
    step = _Step(
        run, tool, plain, agent_name(agent), key, says, task, schema, found, recheck
    )
    return drive(_require(step, work, Blocking()))


async def arequire_approval(  # noqa: PLR0913 - what `require_approval` takes
    tool: str,
    args: dict[str, Any],
    *,
    run: Callable[..., Awaitable[R]],
    agent: str = "agent",
    key: str = "",
    says: str = "",
    task: str = "",
    schema: JsonObject | None = None,
    gateway: Gateway | str | None = None,
    api_key: str | None = None,
    recheck: Recheck | None = None,
) -> Outcome[R]:
    """Ask for one step of a node, wait, and run it once; see `require_approval`."""
    signatures.check(run, args, tool)

    async def work(given: JsonObject) -> R:
        # A synchronous function is accepted too.
        returned = cast("Any", run(**step_arguments.values(run, given, tool)))
        return cast("R", await returned if inspect.isawaitable(returned) else returned)

    plain = step_arguments.canonical_step(run, args, tool)
    found = given_gateway(gateway, api_key) or current_gateway()
    step = _Step(
        run, tool, plain, agent_name(agent), key, says, task, schema, found, recheck
    )
    return await _require(step, work, Awaiting())


async def _require(step: _Step, work: _Work[R], shell: Shell) -> Outcome[R]:
    ref = node_turns.turn_ref(step.agent, step.tool, step.given_key)
    verdict = await _submit(step, ref, shell)
    if verdict.kind is VerdictKind.DENY:
        return NotApproved("deny", tool_messages.denial_text(verdict.reason))
    if verdict.runs_unclaimed:
        return await _run_auto_approved(step, ref, verdict, work, shell)
    call = HeldCall(ref, verdict, step.args)
    if verdict.kind is VerdictKind.RUN:
        return await _execute_step(call, step, work, shell)
    answer = interrupts.request_decision(verdict, step.args)
    if answer.type not in {AnswerKind.APPROVE, AnswerKind.EDIT}:
        said = answer.message if answer.by else ""
        return NotApproved(str(answer.type), tool_messages.ended_text(answer), said)
    held = replace(
        call,
        ask_again=lambda: interrupts.request_decision(
            verdict, step.args, is_again=True
        ),
        recheck=step.recheck,
    )
    return await _execute_step(held, step, work, shell, why=answer.why_approved)


async def _run_auto_approved(
    step: _Step, ref: TurnRef, verdict: Verdict, work: _Work[R], shell: Shell
) -> Outcome[R]:
    with (
        run_context.in_run(ref.run_ref),
        grant_scope(auto_approved.grant_for(ref, verdict)),
    ):
        end = await auto_approved.run_auto_approved(
            lambda: work(step.args),
            lambda value: _to_result(Approved(value, step.args), []),
            ref=ref,
            verdict=verdict,
            gateway=lambda: step.gateway,
            shell=shell,
            is_replayed=True,
        )
    if not isinstance(end, auto_approved.RanEarlier):
        return Approved(end, step.args)
    return _from_result(end.result) if end.result else Unsure(tool_messages.CUT_OFF)


async def _execute_step(
    held: HeldCall, step: _Step, work: _Work[R], shell: Shell, *, why: str = ""
) -> Outcome[R]:
    async def run_step(args: JsonObject) -> Approved[R] | NotApproved | Unsure:
        problem = signatures.binding_problem(step.run, args) or step_arguments.problem(
            step.run, args, step.tool
        )
        if problem:
            return NotApproved("misfit", f"This did not run: {problem}.")
        return Approved(await work(args), args)

    end = await execute(held, step.gateway, shell, Work(run_step, _to_result, Unsure))
    if isinstance(end, Ran):
        return _with_edit(end.result, end.edit, why)
    if isinstance(end, Closed):
        return NotApproved(str(end.answer.type), tool_messages.ended_text(end.answer))
    if isinstance(end, NotRun):
        return NotApproved("deny", end.reason)
    if isinstance(end, CutOff):
        return Unsure(tool_messages.CUT_OFF)
    if isinstance(end, Reconciled):
        return Unsure(tool_messages.reconciled_text(end.finding))
    return _with_note(
        _with_edit(_from_result(end.result), end.edit, why), end.reconciled
    )


async def _submit(step: _Step, ref: TurnRef, shell: Shell) -> Verdict:
    call = ProposedCall(
        tool=step.tool,
        args=step.args,
        tool_call_id=step.key,
        hint=CallHint(task=step.task) if step.task else None,
    )
    if step.recheck is not None:
        try:
            state = await rechecks.read(shell, step.recheck, step.tool, step.args)
        except StateUnknown:
            return turns.denial(step.tool, step.key, rechecks.STATE_UNREADABLE)
        call = call.with_(state=state)
    schemas = {} if step.schema is None else {step.tool: step.schema}
    turn = Turn(ref=ref, calls=(call,), says=step.says, schemas=schemas)
    return await node_turns.submit(turn, step.gateway, shell)


def _to_result(
    outcome: Approved[R] | NotApproved | Unsure, inside: list[EditRecord]
) -> Result:
    del inside  # a plain node has no history in which to report them
    if isinstance(outcome, Unsure | NotApproved):
        kind = "unsure" if isinstance(outcome, Unsure) else "not_run"
        payload = json.dumps({"v": 1, kind: outcome.message})
        return Result(ok=False, summary=outcome.message[:500], payload=payload)
    try:
        row = {"v": 1, "result": outcome.result, "args": outcome.args}
        payload = json.dumps(row, allow_nan=False)
    except (TypeError, ValueError):
        # After a crash its end can still be reported, but not its value.
        payload = ""
    # Never an empty summary: that marks a result that people reconciled.
    return Result(ok=True, summary=str(outcome.result)[:500] or "-", payload=payload)


def _from_result(result: Result) -> Approved[Any] | NotApproved | Unsure:
    if not result.payload:
        return Unsure(tool_messages.lost_result_text(result))
    try:
        row = strict_json.parse_object(result.payload)
        if not result.ok and "unsure" in row:
            return Unsure(str(row["unsure"]))
        if not result.ok:
            return NotApproved("misfit", str(row["not_run"]))
        return Approved(row["result"], cast("JsonObject", row["args"]))
    except (TwokeyError, KeyError):
        return Unsure(tool_messages.lost_result_text(result))


def _with_edit(
    outcome: Outcome[R], edit: EditRecord | None, reasons: str
) -> Outcome[R]:
    if not isinstance(outcome, Approved):
        return outcome
    return Approved(outcome.result, outcome.args, edit, reasons)


def _with_note(outcome: Outcome[R], reconciled: ReconcileAnswer | None) -> Outcome[R]:
    """Return an `Unsure` outcome with the note of the people who reconciled it."""
    note = tool_messages.reconciliation_note(reconciled) if reconciled else ""
    if not note or not isinstance(outcome, Unsure):
        return outcome
    return Unsure(f"{note} {outcome.message}")
