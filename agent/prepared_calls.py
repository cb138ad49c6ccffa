"""Canonicalize tool-call arguments for approval; check them before execution.

What is prepared here is all that the gateway, people and the tool get to see. It is
made once, when the turn is submitted: a schema may fill in a default that is another
one each time (an id, a time), and a second document would be another call.
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
    "(For the developer: a middleware that adds tools has to be listed before "
    "ApprovalMiddleware, which knows no others.)"
)


class Toolbox(dict[str, BaseTool]):
    """The tools that this process saw an agent have, by name.

    Some tools are known by name only: those of the model's provider, and those that
    another middleware describes to the model in its own words.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def learn(self, tools: Iterable[object]) -> None:
        """Remember tools, as LangChain lists them for a model or a tool node."""
        for tool in tools:
            if isinstance(tool, BaseTool):
                name = tool.name
                self[name] = tool
            else:
                name = _name_of(tool)
            if name:
                self._names.add(name)

    def is_unknown(self, name: str) -> bool:
        """Return whether there is no such tool; False while none was seen at all."""
        # A process that resumes a thread has seen no tools yet; its tool node decides.
        return bool(self._names) and name not in self._names

    @property
    def names(self) -> tuple[str, ...]:
        """Return every known name, sorted."""
        return tuple(sorted(self._names))


class CanonicalArgs(Record):
    """The canonical arguments of a call, kept where they differ from the message's.

    ``original_hash`` is the hash of the message's arguments. Canonical arguments of
    other ones are ignored.
    """

    original_hash: str
    args: JsonObject


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """One call, ready to be submitted.

    Attributes:
        args: the canonical document; what the model wrote when there is none.
        original: what the model wrote.
        problem: a sentence for the model when the call does not fit; else empty.
        refusal: a sentence for the model when nobody may be asked either; else empty.
        is_checked: False while the tool is unknown, so that its schema was not applied.
        is_question: it asks people, and never runs.
    """

    args: JsonObject
    original: JsonObject
    problem: str = ""
    refusal: str = ""
    is_checked: bool = False
    is_question: bool = False

    @property
    def to_keep(self) -> CanonicalArgs | None:
        """Return what has to be kept until the call runs; None: the message has it."""
        if self.args is self.original or digest.same(self.args, self.original):
            return None
        return CanonicalArgs(
            original_hash=wire.args_hash(self.original), args=self.args
        )

    @property
    def original_args(self) -> JsonObject | None:
        """Return the model's own arguments where one of them was read as another.

        A default that was filled in is no other reading of what the model wrote.
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
    """Return the calls of a message by their ids, prepared; bad JSON is left out.

    Args:
        calls: as the model wrote them.
        tools: those of the agent.
        kept: canonical arguments from the agent's state. They are not believed: only
            a canonical document of the tool counts.
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
        # Checked by `tool_invocation`, when the tool node has found the tool.
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
    """Return the tool when it would get exactly these arguments.

    Raises:
        NotStarted: with a reason for people and the model: it does not run.
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
            f"The arguments that were cleared do not fit the tool {name!r}, so it did "
            f"not run: {found.problem}."
        )
    shown = digest.canonical(found.args).decode("utf-8")
    raise NotStarted(
        f"The tool {name!r} would not run with exactly the arguments that were "
        f"cleared, so it did not run. It would read them as {shown}."
    )


def reading(tool: BaseTool, args: JsonObject) -> Reading | None:
    """Return how a tool reads arguments that it would not get exactly; else None."""
    try:
        made = canonical.canonical_args(tool, args)
    except canonical.ArgumentMismatch as error:
        return Reading(problem=str(error)[:MAX_PROBLEM])
    return None if digest.same(made, args) else Reading(args=made)


def unknown_tool_message(name: str, names: Sequence[str]) -> str:
    """Return the sentence that there is no such tool."""
    listed = ", ".join(names[:_MAX_NAMES]) + (", …" if len(names) > _MAX_NAMES else "")
    return (
        f"There is no tool {name!r}, so nothing ran and nobody was asked. The tools "
        f"are: {listed}. Call one of them by its exact name, or answer without a tool. "
        f"{_ADDED}"
    )


def mismatch_message(name: str, error: Exception) -> str:
    """Return the sentence that arguments do not fit their tool."""
    if isinstance(error, canonical.SchemaFault):
        return (
            f"This call of {name!r} did not run and nobody was asked: {error}. That is "
            "for the tool's developer to mend: do not make the same call again; tell "
            "the user."
        )
    return (
        f"This call does not fit the tool {name!r}, so it did not run and nobody was "
        f"asked: {error}. Correct the arguments and call the tool again; the same "
        "call would come back in the same way."
    )


def _name_of(tool: object) -> str:
    if isinstance(tool, Mapping):
        described = cast("Mapping[str, Any]", tool)
        inner: object = described.get("function")
        if isinstance(inner, Mapping) and not described.get("name"):
            described = cast("Mapping[str, Any]", inner)
        return str(described.get("name") or "")
    return str(getattr(tool, "__name__", ""))
