"""Read a run's overrides of the policy for its tools, from context or configuration.

    overrides = {"tools": {"pay": {"hold": True, "allow": ["approve", "reject"]}}}
    agent.invoke(given, {"configurable": {"thread_id": "7", "twokey": overrides}})

or ``agent.invoke(given, config, context={"twokey": overrides})``. An override holds
until the thread gets new input: it is read when a run starts and kept in state, because
a thread that a decision resumes runs without the caller's context. It can raise a tier
and narrow decisions; like every hint, it loosens only what the policy marks
overridable. ``{"task": "nightly refunds"}`` names what the run is part of: where the
policy says ``batch: {by: task, …}``, calls of one task share a card.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, cast

from langgraph.config import get_config
from pydantic import Field, ValidationError

from twokey.gateway.context_values import Inside
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.protocol.wire import MAX_TASK, CallHint

logger = logging.getLogger(__name__)

KEY = "twokey"
STATE = "twokey_overrides"
CORRUPT_OVERRIDES = CallHint(
    hold=True,
    description="The overrides of this run are corrupt, so every call is held.",
)


class ToolOverride(Record):
    """Overrides of one run for one tool."""

    hold: bool | None = Field(default=None, strict=True)
    allow: tuple[Verb, ...] | None = Field(default=None, min_length=1)


class Overrides(Record):
    """Overrides of one run, by tool name, and the task that the run is part of."""

    tools: dict[str, ToolOverride] = Field(default_factory=dict)
    task: str = Field(default="", max_length=MAX_TASK)


_outer: ContextVar[tuple[Any, ...]] = ContextVar("twokey_overrides", default=())


def inherit(rows: object) -> Inside[tuple[Any, ...]]:
    """Make agents inside a tool inherit the overrides of the outer agent."""
    return Inside(_outer, tuple(cast("list[Any]", rows or ())))


def read_overrides(context: object) -> list[Any]:
    """Return what this run was given under `KEY`: in its context, its configuration.

    A context may be a mapping or an object with an attribute of that name. An agent
    inside a tool is given what the agent outside was, as well.
    """
    if isinstance(context, Mapping):
        in_context = cast("Mapping[str, Any]", context).get(KEY)
    else:
        in_context = getattr(context, KEY, None)
    configurable: Mapping[str, Any] = get_config().get("configurable", {})
    found = (in_context, configurable.get(KEY))
    rows = list(_outer.get())
    for value in found:
        row = None if value is None else _plain(value)
        if row is not None and row not in rows:
            rows.append(row)
    return rows


def update(state: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Return the state update with the overrides of a run that starts."""
    rows = read_overrides(context)
    # Also an empty list is written: what an earlier run was given ended with its input.
    return {} if rows == (state.get(STATE) or []) else {STATE: rows}


def hint(tool: str, rows: object) -> CallHint | None:
    """Return the hint of the overrides for a tool; None without one.

    Args:
        tool: its name.
        rows: what `read_overrides` returned, as state kept it. Corrupt rows hold
            every tool, because they may have meant this one.
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
    return CallHint(hold=found.hold, allow=found.allow, task=one.task)


def merge_hints(*hints: CallHint | None) -> CallHint | None:
    """Merge hints: one that holds wins; only what all of them allow is allowed."""
    whole: CallHint | None = None
    for one in hints:
        if one is not None:
            whole = one if whole is None else _both(whole, one)
    return whole


def _both(first: CallHint, second: CallHint) -> CallHint:
    # False wishes that the call runs and None wishes nothing: `or` would mix them up.
    held = {first.hold, second.hold}
    return CallHint(
        hold=True if True in held else False if False in held else None,
        allow=_common(first.allow, second.allow),
        description=first.description or second.description,
        # What was given to the inner agent comes later, and is the narrower task.
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
        # Not left out: the run would go on with fewer overrides than it was given.
        return "corrupt"
