"""Read a run's overrides of the policy for its tools, from context or configuration.

    overrides = {"tools": {"pay": {"hold": True, "allow": ["approve", "reject"]}}}
    agent.invoke(given, {"configurable": {"thread_id": "7", "keyturn": overrides}})

or ``agent.invoke(given, config, context={"keyturn": overrides})``. An override applies
until the thread gets new input. It is read when a run starts and stored in the state,
because a thread that a decision resumes runs without the caller's context. An override
can raise a tier and narrow the decisions; like every hint, it relaxes only rules that
the policy marks as overridable. ``{"task": "nightly refunds"}`` names the task of the
run: if the policy has ``batch: {by: task, …}``, calls of one task share a card.

LangChain's ``interrupt_on``, which configures an agent, becomes a hint here as well.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, cast

from langchain.agents.middleware import InterruptOnConfig
from langchain.agents.middleware.types import AgentState, ToolCallRequest
from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import Runtime
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from keyturn.gateway.arguments import is_a
from keyturn.gateway.errors import BadJson
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import strict_json
from keyturn.gateway.protocol.records import Evidence, Record, Verb
from keyturn.gateway.protocol.run_context import Scope, inside
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import MAX_EVIDENCE, MAX_TASK, CallHint

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


Schema = Annotated[JsonObject, AfterValidator(_strict)]


class ToolOverride(Record):
    """Overrides of one run for one tool."""

    hold: bool | None = Field(default=None, strict=True)
    allow: tuple[Verb, ...] | None = Field(default=None, min_length=1)
    description: str = ""
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=MAX_EVIDENCE)
    args_schema: Schema | None = None


class Overrides(Record):
    """Overrides of one run, by tool name, and the task that includes the run."""

    tools: dict[str, ToolOverride] = Field(default_factory=dict)
    task: str = Field(default="", max_length=MAX_TASK)


_outer: ContextVar[tuple[Any, ...]] = ContextVar("keyturn_overrides", default=())


def inherit(rows: object) -> Scope:
    """Make agents inside a tool inherit the overrides of the outer agent."""
    return inside(_outer, tuple(cast("list[Any]", rows or ())))


def read_overrides(context: object) -> list[Any]:
    """Return the overrides of this run, from its context and its configuration.

    A context may be a mapping or an object with attributes. An agent inside a tool
    inherits the outer agent's overrides.

    Raises:
        ValueError: when it has LangChain's ``interrupt_on``, which configures agents.
    """
    rows = list(_outer.get())
    for given in (context, get_config().get("configurable", {})):
        for name in ("interrupt_on", "interruptOn"):
            # Not ignored: the caller of this run wants its calls to be held.
            if _member(given, name) is not None:
                raise ValueError(
                    f"A run takes no `{name}`; write its overrides under {KEY!r}, such "
                    "as {'tools': {'pay': {'hold': True}}}."
                )
        own = _member(given, KEY)
        if own is None:
            continue
        try:
            row: object = Overrides.model_validate(own).model_dump(mode="json")
        except ValidationError:
            # Kept as corrupt: without it, the run would have fewer overrides.
            row = "corrupt"
        if row not in rows:
            rows.append(row)
    return rows


def _member(given: object, name: str) -> object:
    if is_a(given, Mapping):
        return cast("Mapping[str, object]", given).get(name)
    return getattr(given, name, None)


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
    try:
        parsed = [
            Overrides.model_validate(row) for row in cast("list[object]", rows or ())
        ]
    except (TypeError, ValidationError):
        logger.warning("overrides.corrupt tool=%s", tool)
        return CORRUPT_OVERRIDES
    return merge_hints(*(_of_run(one, tool) for one in parsed))


def _of_run(one: Overrides, tool: str) -> CallHint | None:
    found = one.tools.get(tool)
    if found is None:
        return CallHint(task=one.task) if one.task else None
    text = strict_json.printable(found.description)
    return CallHint(
        hold=found.hold,
        allow=found.allow,
        description=text,
        evidence=found.evidence,
        task=one.task,
    )


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
        evidence=(*first.evidence, *second.evidence)[:MAX_EVIDENCE],
        # The second task comes from the inner agent and is narrower.
        task=second.task or first.task,
    )


def _common(
    first: tuple[Verb, ...] | None, second: tuple[Verb, ...] | None
) -> tuple[Verb, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    return tuple(verb for verb in first if verb in second)


# Convert LangChain's ``interrupt_on`` configuration into a policy hint for one call.
#
# The format: https://docs.langchain.com/oss/python/langchain/human-in-the-loop.
# LangChain evaluates ``when`` again on every resume; if the result changes, a rejected
# call runs. Here it is evaluated once, when a turn is submitted. Only a plain ``False``
# removes the hold, and only if the gateway's policy agrees.

DESCRIPTION_PREFIX = "Tool execution requires approval"
"""LangChain's default; the card states this itself, so the text is omitted there."""

InterruptOn = Mapping[str, bool | InterruptOnConfig]

_RUN_HINT = CallHint(hold=False)


class ToolConfig(BaseModel):
    """The config of one tool that ``interrupt_on`` gates, with LangChain's names.

    ``when`` and ``description`` get LangChain's arguments.
    """

    allowed_decisions: tuple[Verb, ...] = Field(min_length=1)
    description: str | Callable[..., object] = ""
    when: Callable[[ToolCallRequest], object] | None = None
    args_schema: Schema | None = None


def tool_configs(
    interrupt_on: InterruptOn, description_prefix: str
) -> dict[str, ToolConfig]:
    """Return the configs of the tools that ``interrupt_on`` gates; all others may run.

    Args:
        interrupt_on: LangChain's mapping of tool names.
        description_prefix: the text reviewers see for a tool without a description.

    Raises:
        ValueError: when a config has no ``allowed_decisions`` or an unknown one,
            because no reviewer could then decide, or when it has another type.
    """
    prefix = "" if description_prefix == DESCRIPTION_PREFIX else description_prefix
    configs: dict[str, ToolConfig] = {}
    if not is_a(interrupt_on, Mapping) or not all(
        is_a(one, str) for one in interrupt_on
    ):
        # A tool object instead of its name would gate nothing.
        raise ValueError(
            "`interrupt_on` must be a mapping of names of tools, such as "
            f"{{'send_email': True}}, got {interrupt_on!r}."
        )
    for tool, config in interrupt_on.items():
        if config is False:
            continue
        given: object = {"allowed_decisions": [*Verb]} if config is True else config
        if is_a(given, Mapping):
            given = {"description": prefix, **cast("Mapping[str, object]", given)}
        try:
            configs[tool] = ToolConfig.model_validate(given)
        except ValidationError as error:
            raise ValueError(
                f"Invalid `interrupt_on` config for tool '{tool}': {error}"
            ) from error
    return configs


def config_hint(
    config: ToolConfig | None,
    call: ToolCall,
    tool: BaseTool | None,
    state: AgentState[Any],
    runtime: Runtime[Any],
) -> CallHint:
    """Return the hint for one call. Never raises: on an error the call is held."""
    if config is None:
        return _RUN_HINT
    if config.when is not None and not _is_held(
        config.when, call["name"], lambda: _request(call, tool, state, runtime)
    ):
        return _RUN_HINT
    text = config.description
    if callable(text):
        try:
            text = str(text(copy.deepcopy(call), state, runtime))
        except any_failure() as error:  # application code; the card has no description
            event = "interrupt_on.description_failed tool=%s"
            log_failure(logger, error, event, call["name"])
            text = ""
    allow = config.allowed_decisions
    return CallHint(hold=True, allow=allow, description=strict_json.printable(text))


def _is_held(
    when: Callable[[ToolCallRequest], object],
    tool: str,
    request: Callable[[], ToolCallRequest],
) -> bool:
    try:
        answer = when(request())
    except any_failure() as error:  # application code; the call is then held
        log_failure(logger, error, "interrupt_on.when_failed tool=%s", tool)
        return True
    if inspect.iscoroutine(answer):
        # Closed because it is never awaited: Python would warn on garbage collection.
        answer.close()
    if not isinstance(answer, bool):
        logger.warning("interrupt_on.when_unclear tool=%s", tool)
    # Only a plain False lets a call run: None or a coroutine is a mistake in `when`.
    return answer is not False


def _request(
    call: ToolCall,
    tool: BaseTool | None,
    state: AgentState[Any],
    runtime: Runtime[Any],
) -> ToolCallRequest:
    tool_runtime: ToolRuntime[Any, Any] = ToolRuntime(
        state=state,
        context=runtime.context,
        config=get_config(),
        stream_writer=runtime.stream_writer,
        tool_call_id=call["id"],
        store=runtime.store,
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )
    # A copy: changes by `when` must not be submitted.
    return ToolCallRequest(
        tool_call=copy.deepcopy(call), tool=tool, state=state, runtime=tool_runtime
    )
