"""Gate an agent's tool calls: the hooks of the LangChain middleware.

``before_agent`` repairs a turn that was cut off. ``wrap_model_call`` adds edits to the
model's input and submits the calls of its answer. ``wrap_tool_call`` waits for approval
and executes. The last two also report edits to an enclosing agent. Synchronous and
asynchronous hooks share one core.

Verdicts are stored in the same step as the model's answer, and edits are reported when
they are found. The hooks ``after_model`` and ``after_agent`` would add a step and a
checkpoint each (docs/decisions/0012).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import (
    AgentState,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import (
    AnyMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from keyturn.agent import (
    auto_approved,
    calls,
    execution,
    grants,
    hints,
    history,
    messages,
    prepared_calls,
    turns,
)
from keyturn.agent.calls import Caller, Handler, VerdictCache
from keyturn.agent.grants import share_guarded
from keyturn.agent.prepared_calls import GUIDANCE, PreparedCall, Toolbox
from keyturn.agent.result_codec import ToolResult
from keyturn.agent.turns import KeyturnState
from keyturn.gateway.client.bridge import AWAITING, BLOCKING, Shell, drive
from keyturn.gateway.client.http_gateway import (
    agent_name,
    current_gateway,
    given_gateway,
)
from keyturn.gateway.errors import GraphError, KeyturnError
from keyturn.gateway.gates.gate import Gate
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.questions import ASK_USER
from keyturn.gateway.protocol.wire import AgentNote, CallHint

logger = logging.getLogger(__name__)

Update = dict[str, Any]


class ApprovalMiddleware(AgentMiddleware[AgentState[Any], Any, Any], Gate):
    """Run only those tool calls of an agent that the gateway has cleared.

    List it last, so that no other middleware changes a cleared call. The tools are
    passed on `guarded`: a cleared call that another middleware changed does not run.
    Wrap tools that need approval in `guarded` yourself, and they do not run without
    this middleware either.

    Args:
        agent: the agent's name in policy and cards; not empty.
        gateway: the gateway, or the URL of a remote one. Defaults to the gateway that
            is `connected` in the context of the run, then to ``KEYTURN_GATEWAY`` in the
            environment. Without any, nothing runs.
        api_key: the key for a remote gateway. Defaults to ``KEYTURN_API_KEY`` in the
            environment.
        receipt_keys: public keys of a remote gateway, as `keyturn keys list` prints
            them. If given, a claim needs a receipt signed by one of them.
        system_note: whether the system prompt lists the tools that need approval.
        interrupt_on: LangChain's mapping of the tools that need approval. The other
            tools run without one, if the gateway's policy lets this agent decide that.
        description_prefix: the text reviewers see for a tool of ``interrupt_on``
            without a description.

    Raises:
        ValueError: when ``interrupt_on`` gates a tool without a usable decision.
        SettingsError: when the URL or the key cannot be used.
    """

    state_schema = KeyturnState

    def __init__(
        self,
        agent: str = "agent",
        *,
        gateway: Gateway | str | None = None,
        api_key: str | None = None,
        receipt_keys: Iterable[str] = (),
        system_note: bool = True,
        interrupt_on: hints.InterruptOn | None = None,
        description_prefix: str = hints.DESCRIPTION_PREFIX,
    ) -> None:
        super().__init__()
        self.agent = agent_name(agent)
        self.system_note = system_note
        self._gateway = given_gateway(gateway, api_key, receipt_keys)
        self._interrupts: dict[str, hints.ToolConfig] | None = None
        if interrupt_on is not None:
            self._interrupts = hints.tool_configs(interrupt_on, description_prefix)
        self._tools = Toolbox()
        self._note: AgentNote | None = None
        self._cache = VerdictCache()
        self._callers: dict[Shell, Caller] = {}
        self._is_order_checked = False

    @property
    def name(self) -> str:
        """Return the constant name: checkpoints contain it, so it must never change."""
        return "ApprovalMiddleware"

    def gateway(self) -> Gateway:
        """Return the gateway of this agent.

        Raises:
            NotAllowed: when there is none.
        """
        return self._gateway or current_gateway()

    def guard(self, tool: BaseTool) -> BaseTool:
        """Return a tool that shares all data with this one and needs a grant."""
        return share_guarded(tool)

    def before_agent(
        self, state: AgentState[Any], runtime: Runtime[Any]
    ) -> Update | None:
        """Repair cut-off turns; read overrides and the edits of other agents."""
        return drive(self._before_agent(BLOCKING, state, runtime))

    async def abefore_agent(
        self, state: AgentState[Any], runtime: Runtime[Any]
    ) -> Update | None:
        """Repair cut-off turns; read overrides and the edits of other agents."""
        return await self._before_agent(AWAITING, state, runtime)

    def wrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]],
    ) -> ToolMessage | Command[Any]:
        """Run the call, pause for approval, or return the refusal."""

        async def run(changed: ToolCallRequest) -> ToolResult:
            return handler(changed)

        with self._tool_scope(request):
            return _as_hook(drive(self._call(BLOCKING, request, run)))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Run the call, pause for approval, or return the refusal."""

        async def run(changed: ToolCallRequest) -> ToolResult:
            return await handler(changed)

        with self._tool_scope(request):
            return _as_hook(await self._call(AWAITING, request, run))

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with known edits added; submit the calls of its answer."""
        self._check_order(handler)

        async def ask(changed: ModelRequest[Any]) -> ModelResponse[Any]:
            return handler(changed)

        return drive(self._ask_model(BLOCKING, request, ask))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with known edits added; submit the calls of its answer."""
        self._check_order(handler)
        return await self._ask_model(AWAITING, request, handler)

    @contextmanager
    def _tool_scope(self, request: ToolCallRequest) -> Generator[None]:
        """Pass overrides and the check of tool starts to all code inside a tool."""
        inherited = hints.inherit(request.state.get(hints.STATE))
        with inherited, grants.checked_starts(self.agent):
            yield

    def _caller(self, shell: Shell, state: object = None) -> Caller:
        known = self._callers.get(shell)
        if known is None:
            configs = (self._interrupts or {}).items()
            schemas = {
                tool: one.args_schema for tool, one in configs if one.args_schema
            }
            known = self._callers[shell] = Caller(
                self.agent, self.gateway, shell, self._cache, self._tools, schemas
            )
        given = hints.schemas(cast("Mapping[str, Any]", state or {}))
        return replace(known, schemas={**known.schemas, **given}) if given else known

    async def _before_agent(
        self, shell: Shell, state: AgentState[Any], runtime: Runtime[Any]
    ) -> Update | None:
        check()
        # This mark lets an outer call that is cut off be entered again.
        await auto_approved.note_nested_agent()
        changes = hints.update(cast("Mapping[str, Any]", state), runtime.context)
        caller = self._caller(shell)
        missed = await history.missed_edits(caller, state)
        edits = {"keyturn_edits": messages.dump_records(missed)} if missed else {}
        repaired = await history.repair_history(caller, state)
        return history.merge_update(repaired, {**changes, **edits})

    async def _call(
        self, shell: Shell, request: ToolCallRequest, run: Handler
    ) -> ToolResult:
        caller = self._caller(shell, request.state)
        if turns.has_enclosing_tool():
            # Before the call: if the gateway cannot be reached, no finished call is
            # lost.
            await history.report_edits(caller, request)
        with execution.passing():
            return await caller.call(request, run)

    async def _ask_model(
        self,
        shell: Shell,
        request: ModelRequest[Any],
        ask: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        prepared = await self._model_request(shell, request)
        with grants.checked_starts(self.agent):
            answer = await ask(prepared)
        return await self._submit_answer(shell, request, answer)

    async def _submit_answer(
        self, shell: Shell, request: ModelRequest[Any], answer: ModelResponse[Any]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Return the model's answer with the verdicts on its calls, for the state."""
        answer = prepared_calls.with_ids(answer)
        answer = prepared_calls.with_unreadable_calls(answer, self._tools)
        # An answer with a structured response calls a tool that is already answered.
        found = turns.pending_calls(cast("list[AnyMessage]", answer.result))
        if found is None:
            return answer
        message, calls = found
        message_id, state = str(message.id), prepared_calls.after(request.state, answer)
        ref = turns.turn_ref(self.agent, message_id)
        if ref is None:
            note = turns.TurnDraft(calls).deny_all(message_id, turns.NO_THREAD)
        else:
            ready = prepared_calls.prepare_answer(message, calls, self._tools)
            note = await self._caller(shell, state).submit(
                ref,
                calls,
                str(message.text),
                self._hints(calls, ready, state, request.runtime),
                ready=ready,
            )
        kept: Command[Any] = Command(
            # Every checkpoint contains the state; omitted defaults are restored when it
            # is read.
            update={"keyturn_turn": note.model_dump(mode="json", exclude_defaults=True)}
        )
        return ExtendedModelResponse(model_response=answer, command=kept)

    def _hints(
        self,
        calls: Sequence[ToolCall],
        ready: Mapping[str, PreparedCall],
        state: AgentState[Any],
        runtime: Runtime[Any],
    ) -> dict[str, CallHint]:
        rows = cast("Mapping[str, Any]", state).get(hints.STATE)
        found: dict[str, CallHint] = {}
        # Canonical arguments: `when` and descriptions get the values that would run.
        for call in prepared_calls.with_args(calls, ready):
            name, gated = call["name"], None
            if self._interrupts is not None:
                config, tool = self._interrupts.get(name), self._tools.get(name)
                gated = hints.config_hint(config, call, tool, state, runtime)
            hint = hints.merge_hints(gated, hints.hint(name, rows))
            if hint is not None:
                found[call["id"] or ""] = hint
        return found

    async def _model_request(
        self, shell: Shell, request: ModelRequest[Any]
    ) -> ModelRequest[Any]:
        self._tools.learn(request.tools)
        caller = self._caller(shell)
        await history.end_dropped_calls(
            caller, cast("Mapping[str, Any]", request.state)
        )
        found = await history.confirm_edits(caller, request.state)
        turns.report_edits(found.made)
        late = await history.fetch_reports(caller, request.messages)
        # Edits first: restating neutralizes all marks, including that of a late report.
        stated = messages.restate_edits(request.messages, found.made, found.unknown)
        tools = request.tools
        if prepared_calls.can_ask(tools) and turns.is_nested(self.agent):
            # The gateway refuses questions from nested agents, so the tool is not
            # offered.
            tools = prepared_calls.without_ask_user(tools)
        system = request.system_message
        note = await self._agent_note(shell) if self.system_note else None
        if note is not None:
            can_ask = prepared_calls.can_ask(tools)
            system = with_note(system, note, can_ask=can_ask)
        return request.override(
            messages=history.with_reports(stated, late),
            tools=tools,
            system_message=system,
        )

    async def _agent_note(self, shell: Shell) -> AgentNote | None:
        if self._note is None:
            try:
                gateway = self.gateway()
                note = await shell.ask(lambda: gateway.note(self.agent))
                gated = sorted({*note.gated_tools, *(self._interrupts or ())})
                self._note = note.with_(gated_tools=tuple(gated))
            except KeyturnError:
                # No note this time; the next model call asks again.
                logger.info("gateway.note_unavailable agent=%s", self.agent)
        return self._note

    def _check_order(self, handler: Callable[..., Any]) -> None:
        # Not in `__init__`: only the handler's closure reveals which middleware
        # follows.
        if not self._is_order_checked:
            self._is_order_checked = True
            calls.warn_about_later(handler)


def _as_hook(result: ToolResult) -> ToolMessage | Command[Any]:
    # LangGraph's tool node accepts lists, and LangChain passes them on; only the
    # annotation of the hook lacks them.
    return cast("ToolMessage | Command[Any]", result)


# Describe in the system prompt which tools need approval and how approval works.
#
# The note contains tool names from the policy and the agent's code. No user and no
# model writes any part of it, so it cannot inject instructions. It is the same in every
# model call of an agent, which keeps a provider's prompt cache valid.

_INSTRUCTIONS = (
    "Such a call waits until a person has decided. If its result states that the "
    "person rejected it, that it expired, or that it did not run, then it did not run: "
    "do not make the same call again, tell the user. If its result states that a "
    "reviewer changed the arguments, the changed ones were used: tell the user."
)


def with_note(
    system: SystemMessage | None, note: AgentNote, *, can_ask: bool = False
) -> SystemMessage | None:
    """Return the system message with the note and the question guidance appended."""
    if can_ask:
        # The policy may name the tool to route its questions; it needs no approval.
        gated = tuple(name for name in note.gated_tools if name != ASK_USER)
        note = note.with_(gated_tools=gated)
    text = "\n\n".join(filter(None, [note_text(note), GUIDANCE if can_ask else ""]))
    if not text:
        return system
    return messages.around(system or SystemMessage(""), "", text)


def note_text(note: AgentNote) -> str:
    """Return the note as text; "" when no tool needs approval."""
    if note.gated_tools:
        names = ", ".join(note.gated_tools)
        others = " Other tools may need it too." if note.other_tools_are_gated else ""
        return f"Calls of these tools need a person's approval: {names}.{others} " + (
            _INSTRUCTIONS
        )
    if note.other_tools_are_gated:
        return f"Calls of tools may need a person's approval. {_INSTRUCTIONS}"
    return ""


# Refuse parallel agents that share one persistent state.
#
# LangGraph stores the state of a subgraph that is compiled with ``checkpointer=True``
# under the name of its node, without the task id, so that the next step finds it again.
# Two such subgraphs that run in parallel in one step, in a node or in two tools, share
# that state. After one of them pauses, it resumes with the state of the other: it
# repeats the other's call and loses its own.

_MOST_KNOWN = 1000


class SharedNamespace(GraphError, GraphBubbleUp):
    """Two agents share one state. Tool nodes do not catch it: no model can fix it."""


class _Visit(NamedTuple):
    """The place in a thread where an agent began to run.

    Attributes:
        path: the path of its task, with task ids.
        steps: the checkpoint of each enclosing graph, by namespace.
    """

    path: tuple[str, ...]
    steps: Mapping[str, str]

    def is_parallel_to(self, other: _Visit) -> bool:
        """Return True if one step of a graph began both, in separate tasks."""
        shared = 0
        for mine, theirs in zip(self.path, other.path, strict=False):
            if mine != theirs:
                break
            shared += 1
        if self.path == other.path:
            return False
        around = "|".join(self.path[:shared])
        step = self.steps.get(around)
        return step is not None and step == other.steps.get(around)


_visits: OrderedDict[tuple[str, str], _Visit] = OrderedDict()
_lock = threading.Lock()


def check() -> None:
    """Check that the agent that begins here does not share its persistent state.

    Raises:
        SharedNamespace: when another agent uses it; this agent has not run anything.
    """
    config = cast("Mapping[str, Any]", get_config())
    configurable: Mapping[str, Any] = config.get("configurable", {})
    own, _, _ = str(configurable.get("checkpoint_ns", "")).rpartition("|")
    # LangGraph stores the first part of the namespace there before it removes the task
    # ids. For an agent inside a tool, the gate around the tool provides the rest.
    path = str(config.get("metadata", {}).get("checkpoint_ns", ""))
    if (task := turns.enclosing_task()).startswith(f"{path}|"):
        path = task
    if not own or ":" in own or not path:
        return
    visit = _Visit(tuple(path.split("|")), configurable.get("checkpoint_map", {}))
    key = (str(configurable.get("thread_id", "")), own)
    with _lock:
        if (other := _visits.get(key)) is not None and visit.is_parallel_to(other):
            raise SharedNamespace(
                f"Two agents run in parallel on one state, that of {own!r}: they are "
                "compiled with checkpointer=True, and LangGraph would mix up their "
                "calls. The second one did not start. Compile them without it, call "
                "one at a time (ToolCallLimitMiddleware), or put each in a separate "
                "graph with a different node name."
            )
        _visits[key] = visit
        _visits.move_to_end(key)
        if len(_visits) > _MOST_KNOWN:
            _visits.popitem(last=False)
