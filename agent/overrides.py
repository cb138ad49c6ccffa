"""Read a run's overrides of the policy for its tools, from context or configuration.

    overrides = {"tools": {"pay": {"hold": True, "allow": ["approve", "reject"]}}}
    agent.invoke(given, {"configurable": {"thread_id": "7", "keyturn": overrides}})

or ``agent.invoke(given, config, context={"keyturn": overrides})``. An override applies
until the thread gets new input. It is read when a run starts and stored in the state,
because a thread that a decision resumes runs without the caller's context. An override
can raise a tier and narrow the decisions; like every hint, it relaxes only rules that
the policy marks as overridable. ``{"task": "nightly refunds"}`` names the task of the
run: if the policy has ``batch: {by: task, …}``, calls of one task share a card.

LangChain's options for a run, ``{"interruptOn": {...}}`` in the context, are read as
overrides that hold tools and never relax a rule.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, cast

from langgraph.config import get_config
from pydantic import AfterValidator, Field, ValidationError

from keyturn.agent.interrupt_on import (
    OPTION,
    OPTIONS,
    InterruptConfig,
    InterruptOn,
    ToolConfig,
)
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import strict_json
from keyturn.gateway.protocol.records import Record, Verb
from keyturn.gateway.protocol.run_context import Inside
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import MAX_TASK, CallHint

logger = logging.getLogger(__name__)

KEY = "keyturn"
STATE = "keyturn_overrides"
CORRUPT_OVERRIDES = CallHint(
    hold=True,
    description="The overrides of this run are corrupt, so every call is held.",
)


def _strict(schema: JsonObject) -> JsonObject:
    try:
        return strict_json.accept_object(schema)
    except BadJson as error:
        raise ValueError(str(error)) from error


class ToolOverride(Record):
    """Overrides of one run for one tool."""

    hold: bool | None = Field(default=None, strict=True)
    allow: tuple[Verb, ...] | None = Field(default=None, min_length=1)
    description: str = ""
    args_schema: Annotated[JsonObject, AfterValidator(_strict)] | None = None


class Overrides(Record):
    """Overrides of one run, by tool name, and the task that includes the run."""

    tools: dict[str, ToolOverride] = Field(default_factory=dict)
    task: str = Field(default="", max_length=MAX_TASK)


_outer: ContextVar[tuple[Any, ...]] = ContextVar("keyturn_overrides", default=())


def inherit(rows: object) -> Inside[tuple[Any, ...]]:
    """Make agents inside a tool inherit the overrides of the outer agent."""
    return Inside(_outer, tuple(cast("list[Any]", rows or ())))


def read_overrides(context: object) -> list[Any]:
    """Return the overrides of this run, from its context and its configuration.

    A context may be a mapping or an object with attributes. An agent inside a tool
    inherits the outer agent's overrides.

    Raises:
        ValueError: when LangChain's ``interrupt_on`` in it is invalid.
    """
    rows = list(_outer.get())
    for given in (context, get_config().get("configurable", {})):
        for row in _rows_in(given):
            if row not in rows:
                rows.append(row)
    return rows


def _rows_in(given: object) -> Iterator[Any]:
    found = {name: _member(given, name) for name in (KEY, *OPTIONS)}
    own = found.pop(KEY)
    if own is not None:
        yield _plain(own)
    options = {name: value for name, value in found.items() if value is not None}
    if not options.keys().isdisjoint(OPTION):
        tools = InterruptConfig(cast("InterruptOn", options)).tools
        held = {name: _held(config) for name, config in tools.items()}
        yield Overrides(tools=held).model_dump(mode="json")


def _member(given: object, name: str) -> object:
    if isinstance(given, Mapping):
        return cast("Mapping[str, object]", given).get(name)
    return getattr(given, name, None)


def _held(config: ToolConfig) -> ToolOverride:
    # State cannot store functions: without its `when` a tool is held for every call.
    text = config.description
    return ToolOverride(
        hold=True,
        allow=config.allow,
        description=text if isinstance(text, str) else "",
        args_schema=config.args_schema,
    )


def update(state: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Return the state update with the overrides of a run that starts."""
    rows = read_overrides(context)
    # An empty list is written too: new input ends the overrides of an earlier run.
    return {} if rows == (state.get(STATE) or []) else {STATE: rows}


def schemas(state: Mapping[str, Any]) -> dict[str, JsonObject]:
    """Return the argument schemas of a run's overrides, by tool."""
    found: dict[str, JsonObject] = {}
    try:
        for row in state.get(STATE) or ():
            for name, tool in Overrides.model_validate(row).tools.items():
                if tool.args_schema is not None:
                    found[name] = tool.args_schema
    except (TypeError, ValidationError):
        return {}  # `hint` then holds every call
    return found


def hint(tool: str, rows: object) -> CallHint | None:
    """Return the hint of the overrides for a tool; None without one.

    Args:
        tool: its name.
        rows: the stored return value of `read_overrides`. Corrupt rows hold every tool,
            because they may have concerned this one.
    """
    if not rows:
        return None
    try:
        parsed = [Overrides.model_validate(row) for row in cast("list[object]", rows)]
    except (TypeError, ValidationError):
        logger.warning("overrides.corrupt tool=%s", tool)
        return CORRUPT_OVERRIDES
    return merge_hints(*(_of_run(one, tool) for one in parsed))


def _of_run(one: Overrides, tool: str) -> CallHint | None:
    found = one.tools.get(tool)
    if found is None:
        return CallHint(task=one.task) if one.task else None
    text = strict_json.printable(found.description)
    return CallHint(hold=found.hold, allow=found.allow, description=text, task=one.task)


def merge_hints(*hints: CallHint | None) -> CallHint | None:
    """Merge hints: any hold wins; only decisions that all hints allow are allowed."""
    whole: CallHint | None = None
    for one in hints:
        if one is not None:
            whole = one if whole is None else _both(whole, one)
    return whole


def _both(first: CallHint, second: CallHint) -> CallHint:
    # False requests a run and None requests nothing: `or` would confuse them.
    held = {first.hold, second.hold}
    return CallHint(
        hold=True if True in held else False if False in held else None,
        allow=_common(first.allow, second.allow),
        description=first.description or second.description,
        # The second task comes from the inner agent and is narrower.
        task=second.task or first.task,
    )


def _common(
    first: tuple[Verb, ...] | None, second: tuple[Verb, ...] | None
) -> tuple[Verb, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    return tuple(verb for verb in first if verb in second)


def _plain(value: object) -> Any:  # noqa: ANN401 - any JSON of a caller
    """Return a value that can be checkpointed; an invalid one stays invalid."""
    try:
        return Overrides.model_validate(value).model_dump(mode="json")
    except ValidationError:
        # Kept as corrupt: dropping it would run with fewer overrides than requested.
        return "corrupt"
