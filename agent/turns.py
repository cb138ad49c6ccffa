"""Submit the calls of one AI message once, and look up a call's verdict later.

A nested agent runs inside a tool of another agent. Without a separate thread, its calls
belong to the run of the outermost agent. Edits of its calls are reported to the agent
around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Annotated, Any, NotRequired, cast

from langchain.agents.middleware.types import AgentState, PrivateStateAttr
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    ToolCall,
    ToolMessage,
)
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER
from langgraph.config import get_config
from pydantic import Field, ValidationError

from keyturn.agent.canonical import plain
from keyturn.agent.messages import add_edits
from keyturn.agent.prepared_calls import NO_CALLS, CanonicalArgs, PreparedCall
from keyturn.gateway.errors import BadJson, GraphError
from keyturn.gateway.protocol import digest, run_context, strict_json, texts, wire
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.questions import NOT_OUTERMOST
from keyturn.gateway.protocol.records import EditRecord, Record, RunRef, Tier, is_inside
from keyturn.gateway.protocol.run_context import Scope, current_run, inside
from keyturn.gateway.protocol.strict_json import JsonObject

UNREACHABLE = (
    "The approval gateway could not be reached, so this call did not run. Tell the "
    "user; it can be tried again later."
)
NO_THREAD = (
    "This agent has no persistent thread, so no call can be cleared and it did not "
    "run. Tell the user that the agent needs a checkpointer and a thread_id."
)
DUPLICATE_ID = (
    "Two calls of this message have the same id, so neither was cleared and neither "
    "ran. If they are still needed, make them again one at a time."
)
NO_ID = "This call has no id, so it was not cleared and did not run."

STATE_PREFIX = "keyturn_"
"""The prefix of all of Keyturn's keys in an agent's state."""

_PROPOSED = wire.ProposedCall(tool="", args={}, tool_call_id="")

NO_HINTS: Mapping[str, wire.CallHint] = MappingProxyType({})


class KeyturnState(AgentState[Any]):
    """The middleware's data in an agent's checkpointed state, as plain JSON.

    ``keyturn_turn`` is a dumped `TurnRecord` of the latest turn with calls.
    ``keyturn_edits`` are dumped `EditRecord`s that the model must not forget.
    ``keyturn_overrides`` are dumped `Overrides`: the per-run overrides of tools.
    """

    keyturn_turn: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]
    keyturn_edits: NotRequired[
        Annotated[list[dict[str, Any]], PrivateStateAttr, add_edits]
    ]
    keyturn_overrides: NotRequired[Annotated[list[Any], PrivateStateAttr]]


class TurnRecord(Record):
    """The verdicts on one AI message, by tool call id.

    ``hints`` are the submitted hints, without their descriptions: they are never
    evaluated again. ``args`` are canonical arguments that differ from those of the
    message.
    """

    message_id: str
    verdicts: dict[str, wire.Verdict]
    hints: dict[str, wire.CallHint] = Field(default_factory=dict)
    args: dict[str, CanonicalArgs] = Field(default_factory=dict)


def turn_ref(agent: str, message_id: str) -> wire.TurnRef | None:
    """Return the ref of this turn, from the configuration of the running node.

    The namespace is the agent's: that of the running task without its last part, so
    that every node of one agent has the same. A fork or a step back in time stays in
    its thread; a copy is another thread. None without a persistent thread.

    Raises:
        GraphError: when an outermost agent's name differs from that of its run.
    """
    configurable: dict[str, Any] = get_config().get("configurable", {})
    # A namespace is "node:task|node:task"; its last part is the running node.
    own, _, _ = str(configurable.get("checkpoint_ns", "")).rpartition("|")
    thread = kept_thread(configurable, own)
    if not thread:
        return None
    check_name(agent, thread, own)
    return wire.TurnRef(
        agent=agent,
        thread=thread,
        ns=own,
        message_id=message_id,
        nested_in=nested_in(agent, thread, own),
    )


def is_nested(agent: str) -> bool:
    """Return True if this agent runs inside another agent of its run."""
    ref = turn_ref(agent, "")
    return ref is not None and is_inside_tool(ref)


def pending_calls(
    messages: Sequence[AnyMessage],
) -> tuple[AIMessage, list[ToolCall]] | None:
    """Return the last AI message and its unanswered calls, or None."""
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            calls = open_calls(message, messages)
            return (message, calls) if calls else None
    return None


def open_calls(message: AIMessage, messages: Sequence[AnyMessage]) -> list[ToolCall]:
    """Return the calls of a message without a later tool message."""
    answered: set[str] = set()
    for later in reversed(messages):
        # By identity: a history may contain an equal message twice.
        if later is message:
            break
        if isinstance(later, ToolMessage):
            answered.add(later.tool_call_id)
    return [call for call in message.tool_calls if call["id"] not in answered]


class TurnDraft:
    """The calls of one turn, split into those to submit and those already refused."""

    def __init__(
        self,
        calls: Sequence[ToolCall],
        hints: Mapping[str, wire.CallHint] = NO_HINTS,
        ready: Mapping[str, PreparedCall] = NO_CALLS,
    ) -> None:
        self._hints = hints
        self._ready = ready
        self.proposed: list[wire.ProposedCall] = []
        self.refused: dict[str, wire.Verdict] = {}
        # Counted before any is added: both calls of one id are refused, not only the
        # second.
        counts = Counter(call["id"] for call in calls)
        for call in calls:
            self._add(call, is_duplicate=counts[call["id"]] > 1)

    def _add(self, call: ToolCall, *, is_duplicate: bool) -> None:
        call_id, one = call["id"] or "", self._ready.get(call["id"] or "")
        try:
            if one is None:
                args = strict_json.accept_object(call["args"])
                one = PreparedCall(args, args)
            strict_json.accept_texts(call["name"], call_id)
        except BadJson as error:
            self.refuse(call, f"{error} So this call did not run.")
            return
        refusal = one.refusal
        if not call_id or is_duplicate:
            # Verdicts are found by id, so one call could run under the other's verdict.
            refusal = DUPLICATE_ID if call_id else NO_ID
        if refusal:
            self.refuse(call, refusal)
            return
        self.proposed.append(
            # All values are checked already; pydantic would validate each of them
            # again.
            _PROPOSED.with_(
                tool=call["name"],
                args=one.args,
                tool_call_id=call_id,
                hint=self._hints.get(call_id),
                original_args=one.original_args,
                problem=one.problem,
                is_question=one.is_question,
            )
        )

    def refuse(self, call: ToolCall, reason: str) -> None:
        """Deny a call without submitting it."""
        self.refused[call["id"] or ""] = denial(call["name"], call["id"] or "", reason)

    def add_states(self, states: Mapping[str, BusinessState | None]) -> None:
        """Add business states by call id; None denies a call: its state is unknown."""
        proposed, self.proposed = self.proposed, []
        for call in proposed:
            call_id, state = call.tool_call_id, states.get(call.tool_call_id)
            if call_id in states and state is None:
                reason = texts.STATE_UNREADABLE
                self.refused[call_id] = denial(call.tool, call_id, reason)
            else:
                self.proposed.append(call.with_(state=state) if state else call)

    def refuse_questions(self) -> None:
        """Refuse the questions of an agent that people do not talk to."""
        for call in self.proposed:
            if call.is_question:
                refused = denial(call.tool, call.tool_call_id, NOT_OUTERMOST)
                self.refused[call.tool_call_id] = refused
        self.proposed = [call for call in self.proposed if not call.is_question]

    def turn(
        self, ref: wire.TurnRef, says: str, schemas: Mapping[str, JsonObject | None]
    ) -> wire.Turn:
        """Return the turn to submit, with the schemas of the called tools."""
        called = {call.tool: schemas.get(call.tool) for call in self.proposed}
        turn = wire.Turn(
            ref=ref, calls=tuple(self.proposed), says=strict_json.printable(says)
        )
        # Schemas are valid JSON already; pydantic would validate each value again.
        return turn.with_(
            schemas={tool: one for tool, one in called.items() if one is not None},
            enclosing_run=run_context.enclosing_run(ref.run_ref),
        )

    def record(self, message_id: str, verdicts: Sequence[wire.Verdict]) -> TurnRecord:
        """Merge the gateway's verdicts with the refusals; a mismatch is a denial."""
        kept = dict(self.refused)
        given = {verdict.tool_call_id: verdict for verdict in verdicts}
        for call in self.proposed:
            verdict = given.get(call.tool_call_id)
            # Matched by content, not by order: no call runs under another's verdict.
            if verdict is None or not is_about(
                verdict, call.tool, call.tool_call_id, call.args
            ):
                verdict = denial(call.tool, call.tool_call_id, texts.NO_VERDICT)
            kept[call.tool_call_id] = verdict
        hints = {
            # The card has the description; state is written with every checkpoint.
            call.tool_call_id: call.hint.with_(description="", evidence=())
            for call in self.proposed
            if call.hint is not None
        }
        to_keep = {call_id: one.to_keep for call_id, one in self._ready.items()}
        return TurnRecord(
            message_id=message_id,
            verdicts=kept,
            hints=hints,
            args={call_id: one for call_id, one in to_keep.items() if one is not None},
        )

    def deny_all(self, message_id: str, reason: str) -> TurnRecord:
        """Deny every call with one reason, or with its individual problem."""
        denials = {
            call.tool_call_id: denial(
                call.tool, call.tool_call_id, call.problem or reason
            )
            for call in self.proposed
        }
        return TurnRecord(message_id=message_id, verdicts={**self.refused, **denials})


def is_about(verdict: wire.Verdict, tool: str, call_id: str, args: JsonObject) -> bool:
    """Return True if a verdict is about exactly this call."""
    return (
        verdict.tool == tool
        and verdict.tool_call_id == call_id
        and verdict.args_hash == wire.args_hash(args)
    )


def denial(tool: str, tool_call_id: str, reason: str) -> wire.Verdict:
    """Return a verdict that refuses a call for this reason."""
    return wire.Verdict(
        kind=wire.VerdictKind.DENY,
        tool=tool,
        tool_call_id=tool_call_id,
        tier=Tier.DENY,
        # Never compared: a denial applies to any arguments.
        args_hash="",
        reason=reason,
    )


def kept_turn(state: Mapping[str, Any], call_id: str = "") -> TurnRecord | None:
    """Return the stored record of the latest turn; None if it is missing or unreadable.

    Any writer of checkpoints can write this state.

    Args:
        state: the graph's state.
        call_id: leaves out the entries of other calls, if given. Each call of a turn
            reads the record, which would take quadratic time.
    """
    stored = state.get("keyturn_turn")
    if call_id and isinstance(stored, dict):
        whole = cast("dict[str, Any]", stored)
        stored = {name: _entry(part, call_id) for name, part in whole.items()}
    try:
        return TurnRecord.model_validate(stored)
    except ValidationError:
        return None


def _entry(part: object, call_id: str) -> object:
    """Return a part of a record with the entry of one call only."""
    if not isinstance(part, dict):
        return part
    entries = cast("dict[str, object]", part)
    return {call_id: entries[call_id]} if call_id in entries else {}


def kept_verdict(
    note: TurnRecord | None, message: AIMessage, call: ToolCall
) -> tuple[wire.Verdict, JsonObject]:
    """Return the stored verdict on a call of this message, and the call's arguments.

    Without a verdict it is a denial. A verdict counts only for its message, call id,
    tool and arguments.
    """
    call_id, reason = call["id"] or "", texts.NO_VERDICT
    if [each["id"] for each in message.tool_calls].count(call["id"]) != 1:
        reason = DUPLICATE_ID
    elif note and note.message_id == message.id and call_id in note.verdicts:
        verdict = note.verdicts[call_id]
        if verdict.kind is wire.VerdictKind.DENY:
            return verdict, {}
        args = _submitted_args(note, call)
        if args is not None and is_about(verdict, call["name"], call_id, args):
            return verdict, digest.in_spelling_of(call["args"], args)
    return denial(call["name"], call_id, reason), {}


def _submitted_args(note: TurnRecord, call: ToolCall) -> JsonObject | None:
    """Return the arguments that a call was submitted with; None if they are lost.

    They are the call's arguments, unless canonical ones derived from exactly these are
    stored.
    """
    try:
        written = plain(call["args"])
        row = note.args.get(call["id"] or "")
        if row is None:
            return written
        # Another hash: the message or the stored arguments were rewritten.
        return plain(row.args) if row.original_hash == wire.args_hash(written) else None
    except BadJson:
        return None


def requesting_message(state: Mapping[str, Any], tool_call_id: str) -> AIMessage | None:
    """Return the last AI message if it has an id and contains a call with this id."""
    messages = cast("Sequence[AnyMessage]", state.get("messages", ()))
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            ids = [call["id"] for call in message.tool_calls if call["id"]]
            return message if tool_call_id in ids and message.id else None
    return None


# Nested agents: resolve the run and the conversation of an agent.
#
# People talk to the outermost agent, and a worker resumes that one. A call that waits
# inside its tools therefore belongs to its thread, which determines the requester, the
# resume and the expiry.
#
# Agents of one run that are nodes of one graph share a conversation. An agent inside a
# tool has a separate conversation, which begins at the namespace of that tool's task.

_conversation: ContextVar[str] = ContextVar("keyturn_conversation", default="")


def kept_thread(configurable: Mapping[str, Any], ns: str) -> str:
    """Return the id of the thread that a graph runs in; "" if it is not persistent.

    Without a checkpointer, an approved call could not continue.

    Args:
        configurable: the configuration of the running node.
        ns: namespace of its agent; "" for an outermost one.
    """
    thread_id = configurable.get("thread_id")
    # A nested graph resumes with the outer one, with or without a checkpointer.
    is_kept = ns or configurable.get(CONFIG_KEY_CHECKPOINTER, "") is not None
    return "" if thread_id is None or not is_kept else str(thread_id)


def check_name(agent: str, thread: str, ns: str) -> None:
    """Refuse an outermost agent whose name differs from that of its run.

    Its approvals would belong to another run, which no worker resumes.

    Raises:
        GraphError: contains both names; no request was made.
    """
    run_ref = current_run()
    if run_ref is None or ns or run_ref.thread != thread or run_ref.agent == agent:
        return
    raise GraphError(
        f"The graph of the agent {run_ref.agent!r} calls itself {agent!r}; write "
        f"ApprovalMiddleware({run_ref.agent!r}) or require_approval(…, "
        f"agent={run_ref.agent!r}), or run it as agent={agent!r}. No approval was "
        "requested."
    )


def nested_in(agent: str, thread: str, ns: str) -> RunRef | None:
    """Return the run around an agent; None for the agent of the thread itself.

    LangGraph gives a namespace to every graph that runs inside another one. An agent
    without a namespace is outermost, even if its context was copied from another run.
    """
    run_ref = current_run()
    if run_ref is None or not ns:
        return None
    # The agent of the run may itself be a subgraph; it is not nested in itself.
    is_own = run_ref == RunRef(agent=agent, thread=thread)
    return None if is_own else run_ref


def own_conversation() -> Scope:
    """Give the agents inside this block, in this task, a separate conversation."""
    ns = str(get_config().get("configurable", {}).get("checkpoint_ns", ""))
    return inside(_conversation, ns)


def enclosing_task() -> str:
    """Return the namespace of the task whose tool this code runs in; "" if none."""
    return _conversation.get()


def is_inside_tool(ref: wire.TurnRef) -> bool:
    """Return True if an agent runs inside a tool of another agent, or of itself.

    A subagent may have the name and the thread of the enclosing agent; then only the
    conversation differs.
    """
    return ref.nested_in is not None or bool(conversation_of(ref.ns))


def conversation_of(ns: str) -> str:
    """Return the namespace in which the conversation of an agent at ``ns`` began.

    It is "" outside of tools: there the conversation is that of the whole run.
    """
    outer = _conversation.get()
    # With the separator, because "a:1" is not a parent of "a:12".
    if not outer or not f"{ns}|".startswith(f"{outer}|"):
        return ""
    # A second graph in the same task has a separate conversation.
    return outer if ns == outer or is_inside(ns, outer) else ns


# Collect edits to calls of nested agents, and report them to the outer agent.
#
# A nested agent reports edits when it finds them: before each model call the edits in
# its state, and after a call that call's edit. An outer tool that resumes after a pause
# starts from the beginning without the earlier reports, and the nested agent may end
# without another model call. The edits in the state are therefore also reported before
# each call.

_inside: ContextVar[list[EditRecord] | None] = ContextVar(
    "keyturn_inside", default=None
)


@contextmanager
def collect_edits(run_ref: RunRef) -> Generator[list[EditRecord]]:
    """Collect the edits of this run that agents inside the running tool report."""
    found: list[EditRecord] = []
    with inside(_inside, found), run_context.in_run(run_ref), own_conversation():
        yield found


def has_enclosing_tool() -> bool:
    """Return True if this agent runs inside a tool of another gated agent."""
    return _inside.get() is not None


def report_edits(records: Sequence[EditRecord]) -> None:
    """Report edits to the outer agent, if there is one."""
    found = _inside.get()
    if found is not None:
        # LangGraph reruns the node after a pause, and the agent then reports again.
        found.extend(record for record in records if record not in found)
