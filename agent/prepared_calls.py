"""Canonicalize tool-call arguments for approval; check them before execution.

What is prepared here is all that the gateway, people and the tool get to see. It is
made once, when the turn is submitted: a schema may fill in a default that is another
one each time (an id, a time), and a second document would be another call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool

from twokey.agent import canonical
from twokey.gateway.errors import BadJson, NotAllowed
from twokey.gateway.protocol import digest, wire
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.strict_json import JsonObject

_NAMES = 40


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
                self[tool.name] = tool
            name = _name_of(tool)
            if name:
                self._names.add(name)

    def lacks(self, name: str) -> bool:
        """Return whether there is no such tool; False while none was seen at all."""
        # A process that resumes a thread has seen no tools yet; the tool node is asked
        # then.
        return bool(self._names) and name not in self._names

    @property
    def names(self) -> tuple[str, ...]:
        """Return every known name, sorted."""
        return tuple(sorted(self._names))


class KeptArgs(Record):
    """The canonical arguments of a call, kept where they differ from the message's.

    ``spelled`` is the hash of the arguments as the message has them: what was made of
    other arguments does not count.
    """

    spelled: str
    args: JsonObject


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """One call, ready to be submitted.

    Attributes:
        args: the canonical document; what the model wrote when there is none.
        written: what the model wrote.
        problem: a sentence for the model when the call does not fit; else empty.
        is_read: whether nothing more has to be read once the tool is known.
    """

    args: JsonObject
    written: JsonObject
    problem: str = ""
    is_read: bool = False

    @property
    def kept(self) -> KeptArgs | None:
        """Return what has to be kept until the call runs; None: the message has it."""
        written_hash = wire.args_hash(self.written)
        if wire.args_hash(self.args) == written_hash:
            return None
        return KeptArgs(spelled=written_hash, args=self.args)

    @property
    def original_args(self) -> JsonObject | None:
        """Return the model's own arguments where one of them was read as another.

        A default that was filled in is no other reading of what the model wrote.
        """
        is_other = any(
            name not in self.args or not canonical.same(self.args[name], value)
            for name, value in self.written.items()
        )
        return self.written if is_other else None


NO_CALLS: Mapping[str, PreparedCall] = MappingProxyType({})


def prepare_calls(
    calls: Sequence[ToolCall],
    tools: Toolbox,
    kept: Mapping[str, KeptArgs] = MappingProxyType({}),
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
            written = canonical.plain(call["args"])
        except BadJson:
            continue  # refused with a sentence when the turn is drafted
        call_id = call["id"] or ""
        found[call_id] = _prepared(call["name"], written, tools, kept.get(call_id))
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
    name: str, written: JsonObject, tools: Toolbox, kept: KeptArgs | None
) -> PreparedCall:
    if tools.lacks(name):
        problem = unknown_tool_message(name, tools.names)
        return PreparedCall(written, written, problem=problem, is_read=True)
    tool = tools.get(name)
    if tool is None:
        return PreparedCall(written, written)
    try:
        if kept is not None and kept.spelled == wire.args_hash(written):
            args = canonical.plain(kept.args)
            if canonical.same(canonical.canonical_args(tool, args), args):
                return PreparedCall(args, written, is_read=True)
        return PreparedCall(
            canonical.canonical_args(tool, written), written, is_read=True
        )
    except (canonical.ArgumentMismatch, BadJson) as error:
        return PreparedCall(
            written, written, mismatch_message(name, error), is_read=True
        )


def runnable(name: str, tool: BaseTool | None, args: JsonObject) -> BaseTool:
    """Return the tool when it would get exactly these arguments.

    Raises:
        NotAllowed: a sentence for the model and for the card: it does not run.
    """
    if tool is None:
        raise NotAllowed(
            f"There is no tool {name!r} here, so this call did not run. Tell the user."
        )
    try:
        made = canonical.canonical_args(tool, args)
    except canonical.ArgumentMismatch as error:
        raise NotAllowed(
            f"The arguments that were cleared do not fit the tool {name!r}, so it did "
            f"not run: {error}. Do not make the same call again; tell the user."
        ) from error
    if not canonical.same(made, args):
        shown = digest.canonical(made).decode("utf-8")
        raise NotAllowed(
            f"The tool {name!r} would not run with exactly the arguments that were "
            f"cleared, so it did not run. It would read them as {shown}. Ask "
            "with these arguments, or tell the user."
        )
    return tool


def unknown_tool_message(name: str, names: Sequence[str]) -> str:
    """Return the sentence that there is no such tool."""
    listed = ", ".join(names[:_NAMES]) + (", …" if len(names) > _NAMES else "")
    return (
        f"There is no tool {name!r}, so nothing ran and nobody was asked. The tools "
        f"are: {listed}. Call one of them by its exact name, or answer without a tool."
    )


def mismatch_message(name: str, error: Exception) -> str:
    """Return the sentence that arguments do not fit their tool."""
    return (
        f"This call does not fit the tool {name!r}, so it did not run and nobody was "
        f"asked: {error}. Correct the arguments and call the tool again; the same "
        "call would come back in the same way."
    )


def _name_of(tool: object) -> str:
    if isinstance(tool, BaseTool):
        return tool.name
    if isinstance(tool, Mapping):
        described = cast("Mapping[str, Any]", tool)
        inner: object = described.get("function")
        if isinstance(inner, Mapping) and not described.get("name"):
            described = cast("Mapping[str, Any]", inner)
        return str(described.get("name") or "")
    return str(getattr(tool, "__name__", ""))
