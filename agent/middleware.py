"""Gate an agent's tool calls: the hooks of the LangChain middleware.

``before_agent`` repairs a turn that was cut off, ``wrap_model_call`` adds edits to the
model's input and submits the calls of its answer, ``wrap_tool_call`` waits for approval
and executes. Both report people's edits to an agent whose tool this agent is.
Synchronous and asynchronous hooks share one core.

The verdicts on an answer are part of the step that keeps the answer, and edits are
reported where they become known: hooks ``after_model`` and ``after_agent`` would be
steps of their own, each with a checkpoint of its own (docs/decisions/0012).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from types import CoroutineType
from typing import Any, TypeVar, cast

from langchain.agents.middleware import AgentMiddleware, InterruptOnConfig
from langchain.agents.middleware.types import (
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.runtime import Runtime
from langgraph.types import Command
from langsmith.utils import tracing_is_enabled  # pyright: ignore[reportUnknownVariableType] - its types are partial

from twokey.agent import (
    auto_approved,
    edit_verification,
    kept_namespaces,
    late_reports,
    messages,
    middleware_order,
    model_answers,
    nested_edits,
    outages,
    overrides,
    paused_turns,
    prepared_calls,
    question_tool,
    repair,
    storable_answers,
    system_prompt,
    tool_starts,
    turns,
)
from twokey.agent.bridge import AWAITING, BLOCKING, Shell, drive
from twokey.agent.calls import Caller
from twokey.agent.grants import share_guarded
from twokey.agent.interrupt_on import (
    DESCRIPTION_PREFIX,
    HintContext,
    InterruptConfig,
    InterruptOn,
)
from twokey.agent.prepared_calls import PreparedCall, Toolbox
from twokey.agent.result_codec import ToolResult
from twokey.agent.tool_invocation import Handler
from twokey.agent.turns import TwokeyState
from twokey.agent.verdict_cache import VerdictCache
from twokey.gateway.client.choice import agent_name, current_gateway, given_gateway
from twokey.gateway.context_values import Inside
from twokey.gateway.errors import TwokeyError
from twokey.gateway.gates.gate import Gate
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.wire import AgentNote, CallHint

logger = logging.getLogger(__name__)

Update = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


def _with_known_signature(function: F) -> F:
    """Return a function whose signature LangSmith does not work out at each call."""
    cast("Any", function).__signature__ = inspect.signature(function)
    return function


class ApprovalMiddleware(AgentMiddleware[AgentState[Any], Any, Any], Gate):
    """Run only those tool calls of an agent that the gateway has cleared.

    List it last, so that nothing changes a call after it was cleared. The tools are
    handed on `guarded`: what another middleware makes of a cleared call does not run.
    Wrap tools that need a person in `guarded` yourself, and they do not run without
    this middleware either.

    Args:
        agent: the agent's name, as policy and cards know it; not empty.
        gateway: the gateway to ask, or the URL of one in another process; by default
            the one `connected` in the context of each run, else that of the
            environment, ``TWOKEY_GATEWAY``. Without any, nothing runs.
        api_key: for a gateway at a URL; by default that of the environment,
            ``TWOKEY_API_KEY``.
        receipt_keys: public keys of a gateway at a URL, as `twokey keys list` prints
            them; with any, a claim counts only with a receipt that one of them signed.
        system_note: whether the system prompt lists the tools that need a person.
        interrupt_on: LangChain's mapping of the tools that need a person; the others
            then run, as far as the gateway's policy lets this agent decide that.
        description_prefix: what a reviewer reads about a tool of ``interrupt_on``
            that has no description.

    Raises:
        ValueError: when ``interrupt_on`` gates a tool without a usable decision.
        SettingsError: when the URL or the key cannot be used.
    """

    state_schema = TwokeyState

    def __init__(
        self,
        agent: str = "agent",
        *,
        gateway: Gateway | str | None = None,
        api_key: str | None = None,
        receipt_keys: Iterable[str] = (),
        system_note: bool = True,
        interrupt_on: InterruptOn | None = None,
        description_prefix: str = DESCRIPTION_PREFIX,
    ) -> None:
        super().__init__()
        self.agent = agent_name(agent)
        self.system_note = system_note
        self._gateway = given_gateway(gateway, api_key, receipt_keys)
        self._interrupts: InterruptConfig | None = None
        self.description_prefix = description_prefix
        if interrupt_on is not None:
            self._interrupts = InterruptConfig(interrupt_on, description_prefix)
        self._tools = Toolbox()
        self._note: AgentNote | None = None
        self._cache = VerdictCache()
        self._callers: dict[Shell, Caller] = {}
        self._is_order_checked = False
        if not tracing_is_enabled():
            # Around a coroutine function LangChain puts LangSmith's wrapper, which
            # makes a task and two visits to a thread of each call, traced or not.
            self.awrap_model_call = self._model_call_hook  # type: ignore[method-assign]  # as said above
            self.awrap_tool_call = self._tool_call_hook  # type: ignore[method-assign]  # as said above

    @property
    def name(self) -> str:
        """Return the constant name: it lives in checkpoints and must never change."""
        return "ApprovalMiddleware"

    @property
    def interrupt_on(self) -> dict[str, InterruptOnConfig]:
        """Return the config of each tool that ``interrupt_on`` gates, as LangChain."""
        return dict(self._interrupts.configs) if self._interrupts else {}

    def gateway(self) -> Gateway:
        """Return the gateway to ask.

        Raises:
            NotAllowed: when there is none.
        """
        return self._gateway or current_gateway()

    def guard(self, tool: BaseTool) -> BaseTool:
        """Return a tool that shares everything with this one and needs a grant."""
        return share_guarded(tool)

    def before_agent(
        self,
        state: AgentState[Any],
        runtime: Runtime[Any],
    ) -> Update | None:
        """Repair cut-off turns; read overrides and the edits of other agents."""
        return drive(self._before_agent(BLOCKING, state, runtime))

    async def abefore_agent(
        self,
        state: AgentState[Any],
        runtime: Runtime[Any],
    ) -> Update | None:
        """Repair cut-off turns; read overrides and the edits of other agents."""
        return await self._before_agent(AWAITING, state, runtime)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run a cleared call, hold it for people, or return why it does not run."""

        async def run(changed: ToolCallRequest) -> ToolResult:
            return handler(changed)

        inherited, checked = self._tool_scope(request)
        with inherited, checked:
            return _as_hook(drive(self._call(BLOCKING, request, run)))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run a cleared call, hold it for people, or return why it does not run."""

        async def run(changed: ToolCallRequest) -> ToolResult:
            return await handler(changed)

        inherited, checked = self._tool_scope(request)
        with inherited, checked:
            return _as_hook(await self._call(AWAITING, request, run))

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Ask the model, knowing of edits; submit all calls of its answer at once."""
        self._check_order(handler)
        prepared = drive(self._model_request(BLOCKING, request))
        with tool_starts.checked(self.agent):
            answer = paused_turns.answer_of(prepared, handler)
        return drive(self._submit_answer(BLOCKING, request, answer))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Ask the model, knowing of edits; submit all calls of its answer at once."""
        self._check_order(handler)
        prepared = await self._model_request(AWAITING, request)
        with tool_starts.checked(self.agent):
            answer = await paused_turns.aanswer_of(prepared, handler)
        return await self._submit_answer(AWAITING, request, answer)

    @_with_known_signature
    def _model_call_hook(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> CoroutineType[Any, Any, ModelResponse[Any] | ExtendedModelResponse[Any]]:
        return type(self).awrap_model_call(self, request, handler)  # type: ignore[return-value]  # a coroutine function returns one

    @_with_known_signature
    def _tool_call_hook(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> CoroutineType[Any, Any, ToolMessage | Command[Any]]:
        return type(self).awrap_tool_call(self, request, handler)  # type: ignore[return-value]  # a coroutine function returns one

    def _tool_scope(self, request: ToolCallRequest) -> tuple[Inside[Any], Inside[Any]]:
        """Pass overrides and the check of tool starts to everything inside a tool."""
        inherited = overrides.inherit(request.state.get(overrides.STATE))
        return inherited, tool_starts.checked(self.agent)

    def _caller(self, shell: Shell) -> Caller:
        known = self._callers.get(shell)
        if known is None:
            schemas = self._interrupts.schemas if self._interrupts else {}
            known = self._callers[shell] = Caller(
                self.agent, self.gateway, shell, self._cache, self._tools, schemas
            )
        return known

    async def _before_agent(
        self, shell: Shell, state: AgentState[Any], runtime: Runtime[Any]
    ) -> Update | None:
        kept_namespaces.check()
        # With this mark an outer call that is cut off is entered again, not given up.
        await auto_approved.note_nested_agent()
        changes = overrides.update(cast("Mapping[str, Any]", state), runtime.context)
        caller = self._caller(shell)
        missed = await edit_verification.missed_edits(caller, state)
        edits = {"twokey_edits": messages.dump_records(missed)} if missed else {}
        repaired = await repair.repair_history(caller, state)
        return repair.merge_update(repaired, {**changes, **edits})

    async def _call(
        self, shell: Shell, request: ToolCallRequest, run: Handler
    ) -> ToolResult:
        caller = self._caller(shell)
        if nested_edits.is_nested():
            # Before the call, which must not be undone where the gateway cannot say.
            await edit_verification.report_edits(caller, request)
        with outages.passing():
            return await caller.call(request, run)

    async def _submit_answer(
        self, shell: Shell, request: ModelRequest[Any], answer: ModelResponse[Any]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Return an answer of the model with the verdicts on its calls, to be kept."""
        answer = model_answers.with_ids(answer)
        answer = model_answers.with_unreadable_calls(answer, self._tools)
        turn = model_answers.open_turn(request.state, answer)
        if turn is None:
            return answer
        calls, message_id = turn.calls, turn.message_id
        ref = turns.turn_ref(self.agent, message_id)
        if ref is None:
            note = turns.TurnDraft(calls).deny_all(message_id, turns.NO_THREAD)
        else:
            ready = model_answers.prepare_answer(turn.message, calls, self._tools)
            if len(ready) < len(calls) or any(one.refusal for one in ready.values()):
                # Submitted as it was: so the model reads what is wrong with it.
                answer = storable_answers.storable(answer)
            seen = HintContext(turn.state, request.runtime, self._tools)
            note = await self._caller(shell).submit(
                ref,
                calls,
                str(turn.message.text),
                self._hints(calls, ready, seen),
                ready=ready,
                history=turn.history,
            )
        kept: Command[Any] = Command(
            # State is written with every checkpoint, and read with the same defaults.
            update={"twokey_turn": note.model_dump(mode="json", exclude_defaults=True)}
        )
        return ExtendedModelResponse(model_response=answer, command=kept)

    def _hints(
        self,
        calls: Sequence[ToolCall],
        ready: Mapping[str, PreparedCall],
        context: HintContext,
    ) -> dict[str, CallHint]:
        rows = cast("Mapping[str, Any]", context.state).get(overrides.STATE)
        hints: dict[str, CallHint] = {}
        if not (self._interrupts or rows):
            return hints
        # The canonical arguments: `when` and descriptions see what would run.
        for call in prepared_calls.with_args(calls, ready):
            gated = self._interrupts.hint(call, context) if self._interrupts else None
            hint = overrides.merge_hints(gated, overrides.hint(call["name"], rows))
            if hint is not None:
                hints[call["id"] or ""] = hint
        return hints

    async def _model_request(
        self, shell: Shell, request: ModelRequest[Any]
    ) -> ModelRequest[Any]:
        self._tools.learn(request.tools)
        caller = self._caller(shell)
        await repair.end_dropped_calls(caller, cast("Mapping[str, Any]", request.state))
        found = await edit_verification.confirm_edits(caller, request.state)
        nested_edits.report_edits(found.made)
        late = await late_reports.fetch_reports(caller, request.messages)
        # Edits first: restating defuses every mark, also that of a late report.
        stated = messages.restate_edits(request.messages, found.made, found.unknown)
        tools = request.tools
        if question_tool.can_ask(tools) and turns.is_nested(self.agent):
            # The gateway would refuse its questions; not offered, none is made.
            tools = question_tool.without_ask_user(tools)
        system = request.system_message
        note = await self._agent_note(shell) if self.system_note else None
        if note is not None:
            can_ask = question_tool.can_ask(tools)
            system = system_prompt.with_note(system, note, can_ask=can_ask)
        return request.override(
            messages=late_reports.with_reports(stated, late),
            tools=tools,
            system_message=system,
        )

    async def _agent_note(self, shell: Shell) -> AgentNote | None:
        if self._note is None:
            try:
                gateway = self.gateway()
                note = await shell.ask(lambda: gateway.note(self.agent))
                gated = (
                    *note.gated_tools,
                    *(self._interrupts.names if self._interrupts else ()),
                )
                self._note = note.with_(gated_tools=tuple(sorted(set(gated))))
            except TwokeyError:
                # Without a note this time; the next model call asks again.
                logger.info("gateway.note_unavailable agent=%s", self.agent)
        return self._note

    def _check_order(self, handler: Callable[..., Any]) -> None:
        # Not in `__init__`: a middleware learns what is listed after it only from the
        # closure of the handler that it is given.
        if not self._is_order_checked:
            self._is_order_checked = True
            middleware_order.warn_about_later(handler)


def _as_hook(result: ToolResult) -> ToolMessage | Command[Any]:
    # LangGraph's tool node accepts lists, and LangChain passes them on; only the
    # annotation of the hook lacks them.
    return cast("ToolMessage | Command[Any]", result)
