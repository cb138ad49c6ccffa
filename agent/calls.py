"""Handle one tool call: refuse it, run it, or wait for approval and then run it."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import Any, cast

from langchain.agents.middleware import ContextEditingMiddleware
from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic.errors import PydanticInvalidForJsonSchema

from keyturn.agent import (
    auto_approved,
    canonical,
    grants,
    interrupts,
    messages,
    prepared_calls,
    result_codec,
    turns,
)
from keyturn.agent.canonical import ArgumentModel, argument_model
from keyturn.agent.execution import Interrupts, Work, execute, state_reader
from keyturn.agent.grants import recheck_of, share_guarded
from keyturn.agent.messages import ITEM_KEY
from keyturn.agent.prepared_calls import PreparedCall, Toolbox
from keyturn.agent.result_codec import (
    ToolResult,
    clean_result,
    explained,
    restore_result,
)
from keyturn.agent.turns import report_edits
from keyturn.gateway import errors
from keyturn.gateway.client import claiming
from keyturn.gateway.client.bridge import Shell, ask_with_retries
from keyturn.gateway.clock import now_s
from keyturn.gateway.gates.reachable import middleware_behind
from keyturn.gateway.protocol import edits, run_context, strict_json, texts, wire
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.records import EditRecord, Reading
from keyturn.gateway.protocol.schema_validation import checkable
from keyturn.gateway.protocol.strict_json import JsonObject

CACHE_AGE_S = 5.0
"""How long a verdict is valid in this process before the gateway is asked again."""


# Not of one cache: a middleware with a lock could not be copied or pickled.
_PUT = Lock()


class VerdictCache:
    """Recent verdicts of the gateway, kept in this process.

    A process that can write checkpoints can rewrite the agent's state, but not this
    cache.
    """

    def __init__(self) -> None:
        self._turns: dict[str, tuple[float, dict[str, wire.Verdict]]] = {}

    def put(self, ref: wire.TurnRef, verdicts: Mapping[str, wire.Verdict]) -> None:
        """Cache the verdicts on a turn and drop expired ones."""
        key, turns = ref.model_dump_json(), self._turns
        with _PUT:
            turns.pop(key, None)
            turns[key] = now_s(), dict(verdicts)
            # The oldest come first, so only expired ones are read.
            while turns and not _is_fresh(turns[oldest := next(iter(turns))][0]):
                del turns[oldest]

    def get(self, ref: wire.TurnRef) -> dict[str, wire.Verdict] | None:
        """Return the verdicts on a turn; None when they are missing or expired."""
        at_s, known = self._turns.get(ref.model_dump_json(), (0.0, None))
        # The policy may have changed in the meantime.
        return known if _is_fresh(at_s) else None


def _is_fresh(at_s: float) -> bool:
    # A wall clock that is set back would keep an old verdict valid.
    return now_s() - at_s < CACHE_AGE_S


@dataclass(frozen=True, slots=True)
class Caller:
    """Handles the calls of one agent: its gateway, tools and caches."""

    agent: str
    gateway: Callable[[], Gateway]
    shell: Shell
    cache: VerdictCache
    tools: Toolbox = field(default_factory=Toolbox)
    schemas: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])

    async def submit(
        self,
        ref: wire.TurnRef,
        calls: Sequence[ToolCall],
        says: str,
        hints: Mapping[str, wire.CallHint] = turns.NO_HINTS,
        *,
        ready: Mapping[str, PreparedCall],
    ) -> turns.TurnRecord:
        """Have the gateway evaluate the calls of a message; deny all on failure.

        In a thread that Keyturn runs, an outage is raised and the thread is run again
        later. In any other run the calls are denied, and the model can report the
        outage.

        Args:
            ref: the turn.
            calls: the calls of its message, as the model wrote them.
            says: the model's own text.
            hints: hints from the agent's code, by call id.
            ready: the prepared calls.

        Raises:
            StoreUnavailable: in a thread that Keyturn runs; nothing ran.
            LeaseLost: another process runs the thread now.
        """
        draft = turns.TurnDraft(calls, hints, ready)
        is_nested = turns.is_inside_tool(ref)
        if is_nested:
            draft.refuse_questions()
        draft.add_states(await self._states(draft.proposed))
        if not draft.proposed:
            return draft.record(ref.message_id, ())
        try:
            gateway = self.gateway()
            turn = draft.turn(ref, says, self._schemas(calls))
            verdicts = await ask_with_retries(self.shell, partial(gateway.submit, turn))
        except errors.KeyRefused:
            # A problem of the process, not of its calls: the model could not correct
            # it.
            raise
        except errors.FINAL_ERRORS as error:
            return draft.deny_all(ref.message_id, str(error))
        except errors.LeaseLost:
            raise  # No denial: another process owns the thread now and continues it.
        except errors.KeyturnError as error:
            # Inside a tool, the error would become the tool's error.
            is_retried = run_context.current_run() is not None and not is_nested
            if is_retried and isinstance(error, errors.StoreUnavailable):
                raise
            return draft.deny_all(ref.message_id, turns.UNREACHABLE)
        note = draft.record(ref.message_id, verdicts)
        # An outage is not cached, so the next attempt asks the gateway again.
        self.cache.put(ref, note.verdicts)
        return note

    async def _states(
        self, calls: Sequence[wire.ProposedCall]
    ) -> dict[str, BusinessState | None]:
        """Return the business state of each call with a recheck; None: unknown."""
        found: dict[str, BusinessState | None] = {}
        for call in calls:
            recheck = recheck_of(self.tools.get(call.tool))
            if recheck is None or call.problem:
                continue
            try:
                state = await grants.read(self.shell, recheck, call.tool, call.args)
            except errors.StateUnknown:
                # The draft refuses only this call; the others continue.
                state = None
            found[call.tool_call_id] = state
        return found

    def _schemas(self, calls: Sequence[ToolCall]) -> dict[str, JsonObject | None]:
        """Return each tool's argument schema; a configured one overrides the tool's."""
        own = {one["name"]: schema_of(self.tools.get(one["name"])) for one in calls}
        return {**own, **self.schemas}

    async def call(self, request: ToolCallRequest, run: Handler) -> ToolResult:
        """Return the tool message of one call.

        Before the pause of a held call nothing may have an effect: LangGraph replays
        the code up to there.
        """
        state = cast("Mapping[str, Any]", request.state)
        message = turns.requesting_message(state, request.tool_call["id"] or "")
        # Without a requesting message, a middleware or a jump invented the call.
        if message is None or message.id is None:
            text = texts.NO_VERDICT if request.tool_call["id"] else turns.NO_ID
            return _refused_result(request, text)
        ref = turns.turn_ref(self.agent, message.id)
        if ref is None:
            return _refused_result(request, turns.NO_THREAD)
        kept = turns.kept_turn(state, request.tool_call["id"] or "")
        verdict, args = turns.kept_verdict(kept, message, request.tool_call)
        if verdict.kind is wire.VerdictKind.DENY:
            return denied(request, verdict)
        found = await self._run_or_hold(request, run, ref, verdict, args)
        return with_note(request, found, texts.pause_text(verdict))

    async def _run_or_hold(
        self,
        request: ToolCallRequest,
        run: Handler,
        ref: wire.TurnRef,
        verdict: wire.Verdict,
        args: JsonObject,
    ) -> ToolResult:
        """Run or hold a call that is not denied, with its submitted arguments."""
        state = cast("Mapping[str, Any]", request.state)
        runtime = cast("ToolRuntime[Any, Any]", cast("Any", request).runtime)
        self.tools.learn(runtime.tools)
        if verdict.kind is wire.VerdictKind.RUN and verdict.item_id:
            exact = with_args(request, args)
            # The claim asks the gateway, so the verdict needs no confirmation.
            return await self._execute(
                exact, run, claiming.HeldCall(ref, verdict, args)
            )
        if verdict.kind is wire.VerdictKind.HOLD:
            exact = with_args(request, args)
            return await self._wait_and_run(exact, run, ref, verdict)
        confirmed = await self._confirm(ref, state, verdict)
        if confirmed.runs_unclaimed:
            call = claiming.HeldCall(ref, confirmed, args)
            return await self._run_auto_approved(request, run, call)
        return denied(request, confirmed)

    async def _confirm(
        self, ref: wire.TurnRef, state: Mapping[str, Any], verdict: wire.Verdict
    ) -> wire.Verdict:
        """Return the gateway's verdict on a call that would run without a claim."""
        # The state may have been rewritten. A claim would detect that. Without a claim,
        # the verdict must be the gateway's: from the cache, or by submitting the turn
        # again.
        known, kept = self.cache.get(ref), turns.kept_turn(state)
        message = turns.requesting_message(state, verdict.tool_call_id)
        if known is None and message is not None and kept is not None:
            calls = turns.open_calls(message, state["messages"])
            # The recorded arguments: a generated default would differ now and change
            # the calls.
            ready = prepared_calls.prepare_answer(message, calls, self.tools, kept.args)
            says = str(message.text)
            note = await self.submit(ref, calls, says, kept.hints, ready=ready)
            known = note.verdicts
        current = (known or {}).get(verdict.tool_call_id)
        about = (verdict.tool, verdict.args_hash)
        if current is not None and (
            current.kind is wire.VerdictKind.DENY
            or (current.tool, current.args_hash) == about
        ):
            return current
        return turns.denial(verdict.tool, verdict.tool_call_id, texts.NO_VERDICT)

    async def _run_auto_approved(
        self, request: ToolCallRequest, run: Handler, held: claiming.HeldCall
    ) -> ToolResult:
        end = await auto_approved.run_auto_approved(
            held,
            _work(request, partial(invoke_or_refuse, request, run)),
            gateway=self.gateway,
            shell=self.shell,
            went_well=result_codec.went_well,
        )
        return _told(request, held, end)

    async def _wait_and_run(
        self,
        request: ToolCallRequest,
        run: Handler,
        ref: wire.TurnRef,
        verdict: wire.Verdict,
    ) -> ToolResult:
        item_id = verdict.item_id
        if not interrupts.is_alone(request):
            return _refused_result(request, texts.NOT_ALONE, item_id)
        args = strict_json.accept_object(request.tool_call["args"])
        answer = interrupts.request_decision(verdict, args)
        if answer.type not in {wire.AnswerKind.APPROVE, wire.AnswerKind.EDIT}:
            message = messages.decision_message(
                request.tool_call, answer, item_id=item_id
            )
            return to_model(request, message)
        held = claiming.HeldCall(
            ref,
            verdict,
            args,
            people=Interrupts(verdict, args),
            state=state_reader(
                self.shell, recheck_of(self.tools.get(verdict.tool)), verdict.tool
            ),
            reading=partial(reading, request),
        )
        ran = await self._execute(request, run, held)
        return with_note(request, ran, answer.why_approved)

    async def _execute(
        self, request: ToolCallRequest, run: Handler, held: claiming.HeldCall
    ) -> ToolResult:
        try:
            gateway = self.gateway()
        except errors.NotAllowed as error:
            return _refused_result(request, str(error), held.verdict.item_id)
        work = _work(request, partial(invoke, request, run))
        end = await execute(held, gateway, self.shell, work)
        return _told(request, held, end)


Handler = Callable[[ToolCallRequest], Awaitable[ToolResult]]


def _work(
    request: ToolCallRequest, run: Callable[[JsonObject], Awaitable[ToolResult]]
) -> Work[ToolResult]:
    failure = partial(messages.message_for, request.tool_call)
    return Work(run, result_codec.serialize, failure)


def with_args(request: ToolCallRequest, args: JsonObject) -> ToolCallRequest:
    """Return the request with these arguments."""
    call = {**request.tool_call, "args": args}
    return request.override(tool_call=cast("Any", call))


async def invoke(
    request: ToolCallRequest, run: Handler, args: JsonObject
) -> ToolResult:
    """Invoke the tool with exactly these arguments.

    The tool is guarded: if a middleware listed after this one changes the arguments,
    the tool does not run.

    Raises:
        NotStarted: the tool does not accept these arguments, and did not run.
        NotAllowed: a call inside the tool was refused.
    """
    # Checked again right before the run: a new version of the program may parse the
    # approved arguments differently.
    tool = prepared_calls.runnable(request.tool_call["name"], request.tool, args)
    call = cast("Any", {**request.tool_call, "args": args})
    result = await run(request.override(tool_call=call, tool=share_guarded(tool)))
    return clean_result(result, request.state["messages"])


async def invoke_or_refuse(
    request: ToolCallRequest, run: Handler, args: JsonObject
) -> ToolResult:
    """Invoke an auto-approved tool; return a refusal as its message.

    A raised refusal would end the run in the tool node, and the model could not correct
    its call.
    """
    try:
        return await invoke(request, run, args)
    except errors.NotAllowed as error:
        failed = texts.failed_result(error)
        message = messages.message_for(request.tool_call, failed.summary)
        return explained(message, failed.failure)


def reading(request: ToolCallRequest, args: JsonObject) -> Reading | None:
    """Return how the tool reads arguments that it would change; otherwise None."""
    return prepared_calls.reading(request.tool, args) if request.tool else None


def _told(
    request: ToolCallRequest,
    held: claiming.HeldCall,
    end: claiming.End[ToolResult],
) -> ToolResult:
    """Return the model's tool message of a call that has ended."""
    call, item_id = request.tool_call, held.verdict.item_id
    match end:
        case claiming.Closed():
            message = messages.decision_message(call, end.answer, item_id=item_id)
        case claiming.NotRun():
            message = messages.message_for(call, end.reason, item_id=item_id)
        case claiming.CutOff():
            message = messages.message_for(call, texts.CUT_OFF, item_id=item_id)
            # Marked: people may reconcile it, and a late report may contradict them.
            message = messages.mark_reconciled(message)
        case claiming.Reconciled():
            message = messages.finding_message(call, end.finding, item_id=item_id)
            if end.edit is not None:
                # If the call took effect, it did so with the edited arguments.
                return _present(request, message, item_id, end.edit, [])
        case claiming.Ran():
            result = explained(end.result, end.failure)
            return _present(
                request, result, item_id, end.edit, end.inside, end.reconciled
            )
        case claiming.RanBefore():
            history = request.state["messages"]
            result, inside = restore_result(call, end.result, history)
            return _present(request, result, item_id, end.edit, inside, end.reconciled)
    return to_model(request, message)


def _present(
    request: ToolCallRequest,
    result: ToolResult,
    item_id: str,
    edit: EditRecord | None,
    inside: list[EditRecord],
    reconciled: wire.ReconcileAnswer | None = None,
) -> ToolResult:
    """Return a result with its item id, edit messages and edit records.

    The result of a reconciled call has the note of the people who reconciled it. It is
    also marked, because the attempt in doubt may still report a result.
    """
    if not (item_id or edit or inside):
        return result
    own = edit and edits.edit_as_spelled(edit, request.tool_call["args"])
    known = messages.known_edits(request.state)
    fresh = [record for record in inside if record not in known]

    def annotate(message: ToolMessage) -> ToolMessage:
        named = messages.marked(message, ITEM_KEY, item_id) if item_id else message
        is_silent = _is_silent(request)
        marked = messages.with_records(named, own, fresh, is_silent=is_silent)
        return messages.mark_reconciled(marked) if reconciled else marked

    note = texts.reconciliation_note(reconciled) if reconciled else ""
    presented = with_note(request, _each_own(request, result, annotate), note)
    records = [own, *fresh] if own else fresh
    if not records:
        return presented
    report_edits(records)
    return result_codec.with_state(
        presented, {"keyturn_edits": messages.dump_records(records)}
    )


# Describe a tool's canonical arguments as JSON Schema, for edit forms and checks.
#
# The gateway has no pydantic and checks a reviewer's edit against this schema. It
# therefore describes the canonical document: the names that the tool reads, with every
# default filled in. Rules that JSON Schema cannot express are checked again before the
# tool runs.


def schema_of(tool: BaseTool | None) -> JsonObject | None:
    """Return the JSON Schema of a tool's canonical arguments; None if it has none."""
    if tool is None or tool.args_schema is None:
        return None
    given = tool.args_schema
    try:
        if isinstance(given, dict):
            return checkable(strict_json.accept_object(given))
        described = strict_json.accept(tool.description)
        return {**_schema(argument_model(tool)), "description": described}
    except (errors.BadJson, PydanticInvalidForJsonSchema, canonical.SchemaFault):
        return None


# Cached: each turn declares it, and building it takes longer than submitting the turn.
@lru_cache(maxsize=512)
def _schema(model: ArgumentModel) -> JsonObject:
    return checkable(strict_json.accept_object(model.json_schema()))


def with_note(request: ToolCallRequest, result: ToolResult, note: str) -> ToolResult:
    """Return the result with a note of reviewers before it, if there is one.

    The result of a ``return_direct`` tool is shown to the user and stays as it is.
    """
    if not note or _is_silent(request):
        return result
    return _each_own(request, result, partial(messages.with_note, text=note))


def _is_silent(request: ToolCallRequest) -> bool:
    # No model reads such a result: it ends the run and is shown to a user unchanged.
    return request.tool is not None and request.tool.return_direct


def _each_own(
    request: ToolCallRequest,
    result: ToolResult,
    change: Callable[[ToolMessage], ToolMessage],
) -> ToolResult:
    """Change the messages of this call: a handoff tool also returns those of others."""
    call_id = request.tool_call["id"]
    return result_codec.each_message(
        result, lambda one: change(one) if one.tool_call_id == call_id else one
    )


def denied(request: ToolCallRequest, verdict: wire.Verdict) -> ToolResult:
    """Return the tool message of a call that its verdict denies."""
    reason = (
        verdict.reason if verdict.kind is wire.VerdictKind.DENY else texts.NO_VERDICT
    )
    return _refused_result(request, texts.denial_text(reason))


def _refused_result(
    request: ToolCallRequest, text: str, item_id: str = ""
) -> ToolResult:
    """Return the message of a call that did not run."""
    message = messages.message_for(request.tool_call, text, item_id=item_id)
    return to_model(request, message)


def to_model(request: ToolCallRequest, message: ToolMessage) -> ToolResult:
    """Return the message of a call that did not run, routed to the model."""
    if _ends_unread(request):
        return Command(goto="model", update={"messages": [message]})
    return message


def _ends_unread(request: ToolCallRequest) -> bool:
    """Return True if the agent would end before its model reads this call's message.

    The agent ends after a turn of only ``return_direct`` tools. It also ends after a
    turn with a structured answer: LangChain itself answers that call, which has no
    tool.
    """
    runtime = cast("ToolRuntime[Any, Any]", cast("Any", request).runtime)
    by_name = {tool.name: tool for tool in runtime.tools}
    asking = turns.requesting_message(request.state, request.tool_call["id"] or "")
    siblings = [] if asking is None else asking.tool_calls
    others = {call["id"] for call in siblings if call["name"] not in by_name}
    if others:
        return any(
            isinstance(one, ToolMessage) and one.tool_call_id in others
            for one in request.state["messages"]
        )
    return _is_silent(request) and all(
        by_name[call["name"]].return_direct for call in siblings
    )


def warn_about_later(handler: Callable[..., Any]) -> None:
    """Warn if context clearing is listed after the approval middleware.

    It could clear the notice of an edit before the model reads it.
    """
    if middleware_behind([handler], ContextEditingMiddleware) is not None:
        warnings.warn(
            "ContextEditingMiddleware is listed after ApprovalMiddleware and can clear "
            "the notices of edits that the model needs. List ApprovalMiddleware last.",
            UserWarning,
            stacklevel=3,
        )
