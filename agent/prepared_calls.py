"""Canonicalize tool-call arguments for approval; check them before execution.

The gateway, reviewers and the tool see only the prepared arguments. They are prepared
once, when the turn is submitted: a schema may fill in a default that differs each time
(an id, a time), and a second document would be another call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool

from keyturn.agent import canonical
from keyturn.agent.question_tool import is_question
from keyturn.gateway.errors import BadJson, NotStarted
from keyturn.gateway.protocol import digest, wire
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
        args: the canonical document, or the model's arguments if there is none.
        original: the model's arguments.
        problem: a sentence for the model when the call does not fit its tool, or "".
        refusal: a sentence for the model when the call must not be submitted, or "".
        is_checked: False if the tool is unknown and its schema was not applied.
        is_question: True if the call asks people and never runs.
    """

    args: JsonObject
    original: JsonObject
    problem: str = ""
    refusal: str = ""
    is_checked: bool = False
    is_question: bool = False

    @property
    def to_keep(self) -> CanonicalArgs | None:
        """Return the arguments to store until the call runs, or None if not needed."""
        if self.args is self.original or digest.same(self.args, self.original):
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
        return PreparedCall(original, original, problem=problem, is_checked=True)
    tool = tools.get(name)
    if tool is None:
        # `runnable` checks it once the tool node has found the tool.
        return PreparedCall(original, original)
    try:
        if kept is not None and kept.original_hash == wire.args_hash(original):
            args = canonical.plain(kept.args)
            if digest.same(canonical.canonical_args(tool, args), args):
                return PreparedCall(args, original, is_checked=True)
        return PreparedCall(
            canonical.canonical_args(tool, original), original, is_checked=True
        )
    except (canonical.ArgumentMismatch, BadJson) as error:
        return PreparedCall(
            original, original, problem=mismatch_message(name, error), is_checked=True
        )


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
        inner: object = described.get("function")
        if isinstance(inner, Mapping) and not described.get("name"):
            described = cast("Mapping[str, Any]", inner)
        return str(described.get("name") or "")
    return str(getattr(tool, "__name__", ""))
