"""Handle one tool call: refuse it, run it, or wait for approval and then run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from langchain.agents.middleware.types import ToolCallRequest
from langchain_core.messages import AnyMessage, ToolCall, ToolMessage
from langgraph.prebuilt import ToolRuntime

from twokey.agent import (
    auto_approved,
    interrupts,
    messages,
    model_answers,
    nesting,
    not_run,
    question_tool,
    rechecks,
    result_codec,
    reviewer_notes,
    tool_invocation,
    tool_messages,
    turns,
)
from twokey.agent.bridge import Shell, ask_while_held
from twokey.agent.execution import (
    Closed,
    CutOff,
    NotRun,
    Ran,
    RanBefore,
    Reconciled,
    Work,
    execute,
)
from twokey.agent.grants import grant_scope, recheck_of
from twokey.agent.held_call import HeldCall
from twokey.agent.messages import ITEM_KEY
from twokey.agent.nested_edits import collect_edits, report_edits
from twokey.agent.prepared_calls import PreparedCall, Toolbox
from twokey.agent.result_codec import ToolResult
from twokey.agent.result_sanitizer import restore_result
from twokey.agent.tool_invocation import Handler
from twokey.agent.tool_schemas import schema_of
from twokey.agent.unanswered_turns import UnansweredTurns
from twokey.agent.verdict_cache import VerdictCache
from twokey.gateway.errors import (
    FINAL_ERRORS,
    KeyRefused,
    LeaseLost,
    NotAllowed,
    StateUnknown,
    StoreUnavailable,
    TwokeyError,
)
from twokey.gateway.protocol import run_context, strict_json
from twokey.gateway.protocol.business_state import BusinessState
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.records import EditRecord, RunRef
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    AnswerKind,
    CallHint,
    ProposedCall,
    TurnRef,
    Verdict,
    VerdictKind,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """Handles the calls of one agent: its gateway, tools and caches."""

    agent: str
    gateway: Callable[[], Gateway]
    shell: Shell
    cache: VerdictCache
    tools: Toolbox = field(default_factory=Toolbox)
    schemas: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    unanswered: UnansweredTurns = field(default_factory=UnansweredTurns)

    async def submit(
        self,
        ref: TurnRef,
        calls: Sequence[ToolCall],
        says: str,
        hints: Mapping[str, CallHint] = turns.NO_HINTS,
        *,
        ready: Mapping[str, PreparedCall],
        history: Sequence[AnyMessage] = (),
        is_repeated: bool = False,
    ) -> turns.TurnRecord:
        """Have the gateway evaluate the calls of a message; deny all on failure.

        Twokey runs a thread again when the store is back. Who runs one by other means
        is not asked to: its model is told, and can say so.

        Args:
            ref: the turn.
            calls: of its message, as the model wrote them.
            says: the model's own text.
            hints: those of the agent's code, by call id.
            ready: the calls, prepared.
            history: the messages of the agent, for the circuit breaker.
            is_repeated: whether the gateway had this turn before.

        Raises:
            StoreUnavailable: in a thread that Twokey runs; nothing ran.
            LeaseLost: another process runs the thread now.
        """
        draft = turns.TurnDraft(calls, hints, ready, history)
        is_nested = nesting.is_inside_tool(ref)
        if is_nested:
            question_tool.refuse_questions(draft)
        draft.add_states(await self._states(draft.proposed))
        if not draft.proposed:
            return draft.record(ref.message_id, ())
        gateway: Gateway | None = None
        try:
            gateway = self.gateway()
            turn = draft.turn(ref, says, self._schemas(calls))
            verdicts = await ask_while_held(self.shell, partial(gateway.submit, turn))
        except KeyRefused:
            # Of the process, not of its calls: the model could do nothing about it.
            raise
        except FINAL_ERRORS as error:
            return draft.deny_all(ref.message_id, str(error))
        except LeaseLost:
            raise  # No denial: another process owns the thread, and goes on with it.
        except TwokeyError as error:
            # Inside a tool, the error would be that of the tool.
            is_retried = run_context.current_run() is not None and not is_nested
            if is_retried and isinstance(error, StoreUnavailable):
                raise
            if gateway is not None and not is_repeated:
                self.unanswered.end(ref, gateway, self.shell)
            return draft.deny_all(ref.message_id, turns.UNREACHABLE)
        self.unanswered.moved_on(ref)
        note = draft.record(ref.message_id, verdicts)
        # Not cached when the gateway was unreachable: the next attempt asks it again.
        self.cache.put(ref, note.verdicts)
        return note

    async def _states(
        self, calls: Sequence[ProposedCall]
    ) -> dict[str, BusinessState | None]:
        """Return the business state of each call with a recheck; None: unknown."""
        found: dict[str, BusinessState | None] = {}
        for call in calls:
            recheck = recheck_of(self.tools.get(call.tool))
            if recheck is None or call.problem:
                continue
            try:
                state = await rechecks.read(self.shell, recheck, call.tool, call.args)
            except StateUnknown:
                # Not raised: the draft refuses this call alone, the others go on.
                state = None
            found[call.tool_call_id] = state
        return found

    def _schemas(self, calls: Sequence[ToolCall]) -> dict[str, JsonObject | None]:
        """Return each tool's schema of arguments: the one given for it, or its own."""
        names = {call["name"] for call in calls}
        own = {name: schema_of(self.tools.get(name)) for name in names}
        return {**own, **self.schemas}

    async def call(self, request: ToolCallRequest, run: Handler) -> ToolResult:
        """Return the tool message of one call.

        Nothing before the pause of a held call has an effect: LangGraph replays it.
        """
        state = cast("Mapping[str, Any]", request.state)
        message = turns.requesting_message(state, request.tool_call["id"] or "")
        # No message requests this call: a middleware or a jump made it up.
        if message is None or message.id is None:
            return not_run.not_requested(request)
        ref = turns.turn_ref(self.agent, message.id)
        if ref is None:
            return not_run.result(request, turns.NO_THREAD)
        verdict, args = turns.kept_verdict(state, message, request.tool_call)
        if verdict.kind is VerdictKind.DENY:
            return not_run.denied(request, verdict)
        return await self._run_or_hold(request, run, ref, verdict, args)

    async def _run_or_hold(
        self,
        request: ToolCallRequest,
        run: Handler,
        ref: TurnRef,
        verdict: Verdict,
        args: JsonObject,
    ) -> ToolResult:
        """Run or hold a call that is not denied, with its submitted arguments."""
        state = cast("Mapping[str, Any]", request.state)
        runtime = cast("ToolRuntime[Any, Any]", cast("Any", request).runtime)
        self.tools.learn(runtime.tools)
        if verdict.kind is VerdictKind.RUN and verdict.item_id:
            exact = tool_invocation.with_args(request, args)
            # No need to confirm the verdict: the claim asks the gateway.
            return await self._execute(exact, run, HeldCall(ref, verdict, args))
        if verdict.kind is VerdictKind.HOLD:
            exact = tool_invocation.with_args(request, args)
            problem = tool_invocation.late_tool_problem(state, request, args)
            if problem:
                return not_run.result(
                    request, problem, verdict.item_id, is_counted=True
                )
            return await self._wait_and_run(exact, run, ref, verdict)
        confirmed = await self._confirm(ref, state, verdict)
        if confirmed.runs_unclaimed:
            call = HeldCall(ref, confirmed, args)
            return await self._run_auto_approved(request, run, call)
        return not_run.denied(request, confirmed)

    async def _confirm(
        self, ref: TurnRef, state: Mapping[str, Any], verdict: Verdict
    ) -> Verdict:
        """Return the gateway's own verdict on a call that state lets run unclaimed."""
        # State may have been rewritten. A claim would detect that; without one, the
        # verdict must come from the gateway: cached just now, or submitted again.
        known = self.cache.get(ref)
        find = turns.requesting_message
        if known is None and (message := find(state, verdict.tool_call_id)) is not None:
            calls = turns.open_calls(message, state["messages"])
            hints = turns.submitted_hints(state)
            # The kept ones: a generated default would differ now, and make other calls.
            kept = turns.submitted_canonical(state)
            ready = model_answers.prepare_answer(message, calls, self.tools, kept)
            says = str(message.text)
            note = await self.submit(
                ref, calls, says, hints, ready=ready, is_repeated=True
            )
            known = note.verdicts
        current = (known or {}).get(verdict.tool_call_id)
        about = (verdict.tool, verdict.args_hash)
        if current is not None and (
            current.kind is VerdictKind.DENY
            or (current.tool, current.args_hash) == about
        ):
            return current
        return turns.denial(verdict.tool, verdict.tool_call_id, turns.NO_VERDICT)

    async def _run_auto_approved(
        self, request: ToolCallRequest, run: Handler, call: HeldCall
    ) -> ToolResult:
        ref = call.ref
        with (
            collect_edits(ref.run_ref) as inside,
            grant_scope(auto_approved.grant_for(ref, call.verdict)),
        ):
            end = await auto_approved.run_auto_approved(
                lambda: tool_invocation.invoke(request, run, call.args),
                lambda result: result_codec.serialize(result, inside),
                ref=ref,
                verdict=call.verdict,
                gateway=self.gateway,
                shell=self.shell,
                went_well=result_codec.went_well,
            )
        if not isinstance(end, auto_approved.RanEarlier):
            result = end
        elif end.result is None:
            return not_run.result(request, tool_messages.CUT_OFF)
        else:
            history = request.state["messages"]
            result, inside = restore_result(request.tool_call, end.result, history)
        return self._present(
            request, result, ref.run_ref, item_id="", own=None, inside=inside
        )

    async def _wait_and_run(
        self, request: ToolCallRequest, run: Handler, ref: TurnRef, verdict: Verdict
    ) -> ToolResult:
        item_id = verdict.item_id
        if not interrupts.is_alone(request):
            return not_run.result(
                request, tool_messages.NOT_ALONE, item_id, is_counted=True
            )
        args = strict_json.accept_object(request.tool_call["args"])
        answer = interrupts.request_decision(verdict, args)
        if answer.type not in {AnswerKind.APPROVE, AnswerKind.EDIT}:
            message = tool_messages.decision_message(
                request.tool_call, answer, item_id=item_id
            )
            return not_run.to_model(request, message)
        held = HeldCall(
            ref,
            verdict,
            args,
            ask_again=lambda: interrupts.request_decision(verdict, args, is_again=True),
            recheck=recheck_of(self.tools.get(verdict.tool)),
        )
        ran = await self._execute(request, run, held)
        return reviewer_notes.with_reasons(request, ran, answer)

    async def _execute(
        self, request: ToolCallRequest, run: Handler, held: HeldCall
    ) -> ToolResult:
        try:
            gateway = self.gateway()
        except NotAllowed as error:
            return not_run.result(request, str(error), held.verdict.item_id)
        work = Work(
            partial(tool_invocation.invoke, request, run),
            result_codec.serialize,
            partial(tool_messages.message_for, request.tool_call),
        )
        end = await execute(held, gateway, self.shell, work)
        call, item_id = request.tool_call, held.verdict.item_id
        if isinstance(end, Closed):
            message = tool_messages.decision_message(call, end.answer, item_id=item_id)
            return not_run.to_model(request, message)
        if isinstance(end, CutOff):
            message = tool_messages.message_for(
                call, tool_messages.CUT_OFF, item_id=item_id
            )
            # Marked: people may reconcile it, and a late report may contradict them.
            return not_run.to_model(request, messages.mark_reconciled(message))
        if isinstance(end, NotRun):
            return not_run.result(request, end.reason, item_id, is_counted=True)
        return self._final_result(request, held, end)

    def _final_result(
        self,
        request: ToolCallRequest,
        held: HeldCall,
        end: Ran[ToolResult] | RanBefore | Reconciled,
    ) -> ToolResult:
        """Return the model's tool message of a call that was started."""
        if isinstance(end, Reconciled):
            call, item_id = request.tool_call, held.verdict.item_id
            message = tool_messages.finding_message(call, end.finding, item_id=item_id)
            if end.edit is None:
                return not_run.to_model(request, message)
            # If it took effect, then with the edited arguments.
            run_ref, own = held.ref.run_ref, end.edit
            return self._present(
                request, message, run_ref, item_id=item_id, own=own, inside=[]
            )
        if isinstance(end, Ran):
            result, inside = end.result, end.inside
        else:
            history = request.state["messages"]
            result, inside = restore_result(request.tool_call, end.result, history)
        presented = self._present(
            request,
            result,
            held.ref.run_ref,
            item_id=held.verdict.item_id,
            own=end.edit,
            inside=inside,
        )
        return reviewer_notes.with_reconciliation_note(
            request, presented, end.reconciled
        )

    def _present(
        self,
        request: ToolCallRequest,
        result: ToolResult,
        run_ref: RunRef,
        *,
        item_id: str,
        own: EditRecord | None,
        inside: list[EditRecord],
    ) -> ToolResult:
        """Return a result with its item id, edit messages and edit records."""
        if not (item_id or own or inside):
            return result
        known = messages.known_edits(request.state)
        fresh = [record for record in inside if record not in known]
        # Such a result ends the run, so no model reads it; a user does, as it is.
        is_silent = request.tool is not None and request.tool.return_direct

        def annotate(message: ToolMessage) -> ToolMessage:
            # A handoff tool also returns the messages of other calls.
            if message.tool_call_id != request.tool_call["id"]:
                return message
            marked = message
            if item_id:
                kwargs = {**message.additional_kwargs, ITEM_KEY: item_id}
                marked = message.model_copy(update={"additional_kwargs": kwargs})
            return messages.with_records(marked, own, fresh, is_silent=is_silent)

        presented = result_codec.each_message(result, annotate)
        records = [*([own] if own is not None else []), *fresh]
        if not records:
            return presented
        self.cache.put_edits(run_ref, records)
        report_edits(records)
        return result_codec.with_state(
            presented, {"twokey_edits": messages.dump_records(records)}
        )
