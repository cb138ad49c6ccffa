"""Prepare the calls of a model's answer for approval; check them before execution.

The gateway, reviewers and the tool see only the prepared, canonical arguments. They are
prepared once, when the turn is submitted: a schema may fill in a default that differs
each time (an id, a time), and a second document would be another call.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NoReturn, cast

from langchain.agents.middleware.types import AgentState, ModelResponse
from langchain_core.messages import AIMessage, ToolCall
from langchain_core.tools import BaseTool
from langchain_core.tools.base import ArgsSchema

from keyturn.agent import canonical
from keyturn.gateway.errors import BadJson, NotAllowed, NotStarted
from keyturn.gateway.gates.gate import GuardedTool
from keyturn.gateway.protocol import digest, strict_json, wire
from keyturn.gateway.protocol.questions import ASK_USER, QuestionSet
from keyturn.gateway.protocol.records import MAX_PROBLEM, Reading, Record
from keyturn.gateway.protocol.strict_json import JsonObject

_MAX_NAMES = 40
_ADDED = (
    "(For the developer: list a middleware that adds tools before "
    "ApprovalMiddleware, which otherwise does not see them.)"
)


class Toolbox(dict[str, BaseTool]):
    """The tools of an agent that this process has seen, by name.

    Some tools are known only by name: those of the model's provider, and those that
    another middleware describes directly to the model.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def learn(self, tools: Iterable[object]) -> None:
        """Add tools, as LangChain lists them for a model or a tool node."""
        for tool in tools:
            if isinstance(tool, BaseTool):
                name = tool.name
                self[name] = tool
            else:
                name = _name_of(tool)
            if name:
                self._names.add(name)

    def is_unknown(self, name: str) -> bool:
        """Return True if there is no such tool; False if no tools were seen at all."""
        # A process that resumes a thread has seen no tools yet; its tool node decides.
        return bool(self._names) and name not in self._names

    @property
    def names(self) -> tuple[str, ...]:
        """Return every known name, sorted."""
        return tuple(sorted(self._names))


class CanonicalArgs(Record):
    """The canonical arguments of a call, stored if they differ from the message's.

    ``original_hash`` is the hash of the message's arguments. If it does not match, the
    canonical arguments are ignored.
    """

    original_hash: str
    args: JsonObject


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """One call, ready to be submitted.

    Attributes:
        args: the canonical document; ``original`` itself if there is none, or an equal
            one.
        original: the model's arguments.
        problem: a sentence for the model when the call does not fit its tool, or "".
        refusal: a sentence for the model when the call must not be submitted, or "".
        is_question: True if the call asks people and never runs.
    """

    args: JsonObject
    original: JsonObject
    problem: str = ""
    refusal: str = ""
    is_question: bool = False

    @property
    def to_keep(self) -> CanonicalArgs | None:
        """Return the arguments to store until the call runs, or None if not needed."""
        if self.args is self.original:
            return None
        return CanonicalArgs(
            original_hash=wire.args_hash(self.original), args=self.args
        )

    @property
    def original_args(self) -> JsonObject | None:
        """Return the model's arguments if one of them was converted; otherwise None.

        A filled-in default is not a conversion.
        """
        if self.args is self.original:
            return None
        is_other = any(
            name not in self.args or not digest.same(self.args[name], value)
            for name, value in self.original.items()
        )
        return self.original if is_other else None


NO_CALLS: Mapping[str, PreparedCall] = MappingProxyType({})
NO_KEPT: Mapping[str, CanonicalArgs] = MappingProxyType({})


def prepare_calls(
    calls: Sequence[ToolCall],
    tools: Toolbox,
    kept: Mapping[str, CanonicalArgs] = NO_KEPT,
) -> dict[str, PreparedCall]:
    """Return the prepared calls of a message by id, without invalid JSON.

    Args:
        calls: the calls, as the model wrote them.
        tools: the agent's tools.
        kept: canonical arguments from the agent's state. They are not trusted: only a
            document that is canonical for the tool counts.
    """
    found: dict[str, PreparedCall] = {}
    for call in calls:
        try:
            original = canonical.plain(call["args"])
        except BadJson:
            continue  # refused with a sentence when the turn is drafted
        call_id = call["id"] or ""
        name = call["name"]
        one = _prepared(name, original, tools, kept.get(call_id))
        if is_question(name, tools.get(name)):
            one = replace(one, is_question=True)
        found[call_id] = one
    return found


def with_args(
    calls: Sequence[ToolCall], ready: Mapping[str, PreparedCall]
) -> list[Any]:
    """Return calls with the arguments that they would run with."""
    return [
        {**call, "args": ready[call["id"] or ""].args}
        if (call["id"] or "") in ready
        else call
        for call in calls
    ]


def _prepared(
    name: str, original: JsonObject, tools: Toolbox, kept: CanonicalArgs | None
) -> PreparedCall:
    if tools.is_unknown(name):
        problem = unknown_tool_message(name, tools.names)
        return PreparedCall(original, original, problem=problem)
    tool = tools.get(name)
    if tool is None:
        # `runnable` checks it once the tool node has found the tool.
        return PreparedCall(original, original)
    try:
        if kept is not None and kept.original_hash == wire.args_hash(original):
            args = canonical.plain(kept.args)
            if digest.same(canonical.canonical_args(tool, args), args):
                return PreparedCall(args, original)
        args = canonical.canonical_args(tool, original)
        return PreparedCall(original if digest.same(args, original) else args, original)
    except (canonical.ArgumentMismatch, BadJson) as error:
        return PreparedCall(original, original, problem=mismatch_message(name, error))


def runnable(name: str, tool: BaseTool | None, args: JsonObject) -> BaseTool:
    """Return the tool if it would receive exactly these arguments.

    Raises:
        NotStarted: with a reason for people and the model; the tool does not run.
    """
    if tool is None:
        raise NotStarted(
            f"There is no tool {name!r} here, so this call did not run. {_ADDED}"
        )
    found = reading(tool, args)
    if found is None:
        return tool
    if found.args is None:
        raise NotStarted(
            f"The cleared arguments do not fit the tool {name!r}, so it did not run: "
            f"{found.problem}."
        )
    shown = digest.canonical(found.args).decode("utf-8")
    raise NotStarted(
        f"The tool {name!r} would not run with exactly the cleared arguments, so it "
        f"did not run. It would read them as {shown}."
    )


def reading(tool: BaseTool, args: JsonObject) -> Reading | None:
    """Return how a tool reads arguments that it would change; otherwise None."""
    try:
        made = canonical.canonical_args(tool, args)
    except canonical.ArgumentMismatch as error:
        return Reading(problem=str(error)[:MAX_PROBLEM])
    return None if digest.same(made, args) else Reading(args=made)


def unknown_tool_message(name: str, names: Sequence[str]) -> str:
    """Return the model's message about a tool that does not exist."""
    listed = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
    return (
        f"There is no tool {name!r}, so nothing ran and no approval was requested. The "
        f"tools are: {listed}. Call one of them by its exact name, or answer without a "
        f"tool. {_ADDED}"
    )


def mismatch_message(name: str, error: Exception) -> str:
    """Return the model's message about arguments that do not fit their tool."""
    if isinstance(error, canonical.SchemaFault):
        return (
            f"This call of {name!r} did not run and no approval was requested: "
            f"{error}. Only the tool's developer can fix this: do not make the same "
            "call again; tell the user."
        )
    return (
        f"This call does not fit the tool {name!r}, so it did not run and no approval "
        f"was requested: {error}. Correct the arguments and call the tool again; the "
        "same call would be refused again."
    )


def _name_of(tool: object) -> str:
    if isinstance(tool, Mapping):
        described = cast("Mapping[str, Any]", tool)
        inner = cast("Mapping[str, Any]", described.get("function", {}))
        return str(described.get("name") or inner.get("name", ""))
    return str(getattr(tool, "__name__", ""))


# The tool with which an agent asks people questions; the answers are its result.
#
# The middleware sends the questions to people like a call that needs approval. It never
# runs the tool: the answers are the result.

GUIDANCE = (
    f"With {ASK_USER} you can ask people. Ask rarely: only for what you cannot find "
    "out or decide yourself. Ask all you need to know in one call, and give choices "
    "where you can. Do not ask for permission with it: calls that need approval are "
    "sent to people automatically."
)
"""The system prompt's text about the tool."""


class AskUser(GuardedTool, BaseTool):
    """The tool `ask_user`; it works only with `ApprovalMiddleware`."""

    name: str = ASK_USER
    description: str = (
        "Ask the people you work for one or more questions and wait for their answers. "
        "The result lists each question with its answer."
    )
    args_schema: ArgsSchema | None = QuestionSet

    def _run(self, *args: object, **kwargs: object) -> NoReturn:
        del args, kwargs
        raise NotAllowed(
            f"The questions were not sent: {ASK_USER} works only in an agent with "
            "`ApprovalMiddleware`, listed last."
        )


ask_user: BaseTool = AskUser()
"""List it among an agent's tools."""


def is_question(name: str, tool: BaseTool | None) -> bool:
    """Return True if a call of this tool asks people."""
    # A process that resumes a thread may not have seen its tools yet. Treating the name
    # as a question is safe: nothing runs, whichever tool it is.
    return isinstance(tool, AskUser) or (tool is None and name == ASK_USER)


def can_ask(tools: Sequence[object]) -> bool:
    """Return True if an agent with these tools can ask people."""
    return any(isinstance(tool, AskUser) for tool in tools)


def without_ask_user(tools: Sequence[Any]) -> list[Any]:
    """Return the tools without `ask_user`, for an agent that people do not talk to."""
    return [tool for tool in tools if not isinstance(tool, AskUser)]


# Prepare the model's answer before LangGraph adds it to the agent's state: calls get
# ids, and unreadable or cut-off calls are refused.

CUT_OFF = (
    "Your answer ended within or after this call, so its arguments may be cut off, and "
    "it did not run. If it is still needed, make it again, in a shorter answer."
)
UNREADABLE = (
    "The arguments of this call are not a JSON object, so it did not run and no "
    "approval was requested. If it is still needed, make it again with a JSON object."
)
UNREADABLE_KEY = "keyturn_unreadable"
"""The key, in a model message, of the texts for calls with unreadable arguments."""

_INCOMPLETE = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_context_window_exceeded",
        "content_filter",
        "refusal",
        "content_filtered",
        "guardrail_intervened",
        "incomplete",
    }
)
# OpenAI and Gemini, Anthropic, Bedrock, Ollama, OpenAI's responses.
_REASONS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")
_ALWAYS_SAY_WHY = frozenset({"openai", "anthropic"})
"""Providers that always report why an answer ended, unless the stream broke off."""


def after(state: AgentState[Any], answer: ModelResponse[Any]) -> AgentState[Any]:
    """Return an agent's state with the model's answer among its messages."""
    members = cast("Mapping[str, Any]", state)
    messages = [*members["messages"], *answer.result]
    return cast("AgentState[Any]", {**members, "messages": messages})


def with_ids(answer: ModelResponse[Any]) -> ModelResponse[Any]:
    """Return an answer in which all AI messages and all their calls have ids.

    A turn is submitted and stored under the id of its message, and verdicts are found
    by call id. A call without an id could not be answered either: providers would
    refuse the history from then on.
    """
    result = [
        _with_ids(message) if isinstance(message, AIMessage) else message
        for message in answer.result
    ]
    is_changed = any(a is not b for a, b in zip(result, answer.result, strict=True))
    return replace(answer, result=result) if is_changed else answer


def _with_ids(message: AIMessage) -> AIMessage:
    update: dict[str, Any] = {}
    if message.id is None:
        update["id"] = str(uuid.uuid4())
    for name in ("tool_calls", "invalid_tool_calls"):
        calls: Sequence[Any] = getattr(message, name)
        if not all(call["id"] for call in calls):
            update[name] = [
                call if call["id"] else {**call, "id": f"call_{uuid.uuid4().hex}"}
                for call in calls
            ]
    return message.model_copy(update=update) if update else message


def with_unreadable_calls(
    answer: ModelResponse[Any], tools: Toolbox
) -> ModelResponse[Any]:
    """Return an answer in which calls with unreadable arguments have empty ones.

    LangChain separates calls whose arguments are not a JSON object. If there are no
    others, it ends the run, and the model never learns of the problem. It accepts a
    NaN, a lone surrogate or an integer of any length as an argument, but no provider
    accepts them back, or no checkpoint stores them. None of these calls runs.
    """
    result = [
        _with_unreadable(message, tools) if isinstance(message, AIMessage) else message
        for message in answer.result
    ]
    return replace(answer, result=result)


def _with_unreadable(message: AIMessage, tools: Toolbox) -> AIMessage:
    # Another name may belong to a structured response, which LangChain parses itself.
    apart = [one for one in message.invalid_tool_calls if one["name"] in tools]
    unread = {one["id"] or "": UNREADABLE for one in apart}
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        problem = _problem(call["args"])
        calls.append({**call, "args": {}} if problem else call)
        if problem:
            unread[call["id"] or ""] = problem
    if not unread:
        return message
    for one in apart:
        name = one["name"] or ""
        calls.append(ToolCall(name=name, args={}, id=one["id"], type="tool_call"))
    content: Any = message.content
    if isinstance(content, list):
        # Without a provider's copy of such a call.
        blocks = cast("list[object]", content)
        content = [one for one in blocks if isinstance(one, str) or not _problem(one)]
    return message.model_copy(
        update={
            "content": content,
            "tool_calls": calls,
            "invalid_tool_calls": [
                one for one in message.invalid_tool_calls if one not in apart
            ],
            "additional_kwargs": {**message.additional_kwargs, UNREADABLE_KEY: unread},
        }
    )


def _problem(args: object) -> str:
    """Return why arguments are not strict JSON; "" if they are."""
    try:
        strict_json.accept_object(args)
    except BadJson as error:
        return f"{error} So this call did not run."
    return ""


def prepare_answer(
    message: AIMessage,
    calls: Sequence[ToolCall],
    tools: Toolbox,
    kept: Mapping[str, CanonicalArgs] = NO_KEPT,
) -> Mapping[str, PreparedCall]:
    """Prepare the open calls of a message; a call that was cut off gets a problem.

    LangChain completes the JSON of a streamed call that breaks off: an amount of 899
    may become 8. Calls are streamed one after the other, so all before the last one are
    complete.
    """
    ready = prepare_calls(calls, tools, kept)
    unread: dict[str, str] = message.additional_kwargs.get(UNREADABLE_KEY) or {}
    read = [call["id"] or "" for call in message.tool_calls if call["id"] not in unread]
    # If the last call is unreadable, the one before it is refused as well: LangChain
    # does not preserve their order.
    if read and read[-1] in ready and is_cut_off(message):
        ready[read[-1]] = replace(ready[read[-1]], problem=CUT_OFF)
    for call_id in unread.keys() & ready.keys():
        ready[call_id] = replace(ready[call_id], refusal=unread[call_id])
    return ready


def is_cut_off(message: AIMessage) -> bool:
    """Return True if a model's answer broke off, perhaps within its last call.

    The answer may look complete: LangChain completes the JSON of a streamed call.
    `ApprovalMiddleware` checks this itself; a custom node that reads a model's answer
    has to call this function.
    """
    about = cast("Mapping[str, object]", message.response_metadata)
    said = {str(about[name]).lower() for name in _REASONS if about.get(name)}
    is_unsaid = not said and about.get("model_provider") in _ALWAYS_SAY_WHY
    return is_unsaid or bool(said & _INCOMPLETE)
