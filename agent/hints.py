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
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, cast

from langchain.agents.middleware import InterruptOnConfig
from langchain.agents.middleware.types import AgentState, ToolCallRequest
from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.prebuilt import ToolRuntime
from langgraph.runtime import Runtime
from pydantic import AfterValidator, Field, ValidationError

from keyturn.gateway.arguments import is_a
from keyturn.gateway.errors import BadJson
from keyturn.gateway.failures import any_failure, log_failure
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
        ValueError: when it has LangChain's ``interrupt_on``, which configures agents.
    """
    rows = list(_outer.get())
    for given in (context, get_config().get("configurable", {})):
        for row in _rows_in(given):
            if row not in rows:
                rows.append(row)
    return rows


def _rows_in(given: object) -> Iterator[Any]:
    for name in ("interrupt_on", "interruptOn"):
        # Not ignored: the caller of this run wants its calls to be held.
        if _member(given, name) is not None:
            raise ValueError(
                f"A run takes no `{name}`; write its overrides under {KEY!r}, such as "
                "{'tools': {'pay': {'hold': True}}}."
            )
    own = _member(given, KEY)
    if own is not None:
        yield _plain(own)


def _member(given: object, name: str) -> object:
    if isinstance(given, Mapping):
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


# Convert LangChain's ``interrupt_on`` configuration into a policy hint for one call.
#
# The format: https://docs.langchain.com/oss/python/langchain/human-in-the-loop.
# LangChain evaluates ``when`` again on every resume; if the result changes, a rejected
# call runs. Here it is evaluated once, when a turn is submitted. Only a plain ``False``
# removes the hold, and only if the gateway's policy agrees.

DESCRIPTION_PREFIX = "Tool execution requires approval"
"""LangChain's default; the card states this itself, so the text is omitted there."""

InterruptOn = Mapping[str, bool | InterruptOnConfig]
When = Callable[[ToolCallRequest], object]
Describe = Callable[[ToolCall, AgentState[Any], Runtime[Any]], object]

_RUN_HINT = CallHint(hold=False)


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """The configuration of one tool that ``interrupt_on`` gates."""

    allow: tuple[Verb, ...]
    description: str | Describe
    when: When | None = None
    args_schema: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class HintContext:
    """The arguments that LangChain passes to the callables of a config."""

    state: AgentState[Any]
    runtime: Runtime[Any]
    tools: Mapping[str, BaseTool]


_ALL_DECISIONS: Mapping[str, Any] = {"allowed_decisions": [str(verb) for verb in Verb]}


class InterruptConfig:
    """The tools that ``interrupt_on`` gates; all others may run.

    Args:
        interrupt_on: LangChain's mapping of tool names.
        description_prefix: the text reviewers see for a tool without a description.

    Raises:
        ValueError: when a config has no ``allowed_decisions`` or an unknown one,
            because no reviewer could then decide, or when it has another type.

    Attributes:
        configs: the config of each gated tool.
    """

    def __init__(
        self, interrupt_on: InterruptOn, description_prefix: str = DESCRIPTION_PREFIX
    ) -> None:
        if not is_a(interrupt_on, Mapping):
            raise ValueError(
                f"`interrupt_on` must be a mapping of names of tools, such as "
                f"{{'send_email': True}}, got {interrupt_on!r}."
            )
        is_default = description_prefix == DESCRIPTION_PREFIX
        prefix = "" if is_default else description_prefix
        self._tools: dict[str, ToolConfig] = {}
        self.configs: dict[str, InterruptOnConfig] = {}
        for tool, config in interrupt_on.items():
            _check_name(tool)
            if config is False:
                continue
            given = _ALL_DECISIONS
            if config is not True:
                # Anything but a mapping has no decisions and is refused.
                found: object = config if is_a(config, Mapping) else {}
                given = cast("Mapping[str, Any]", found)
            self._tools[tool] = _tool_config(tool, given, prefix)
            self.configs[tool] = cast("InterruptOnConfig", dict(given))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tools that may need approval, sorted."""
        return tuple(sorted(self._tools))

    @property
    def schemas(self) -> dict[str, JsonObject]:
        """Return the configured JSON Schemas of arguments, by tool."""
        return {
            tool: config.args_schema
            for tool, config in self._tools.items()
            if config.args_schema is not None
        }

    def hint(self, call: ToolCall, context: HintContext) -> CallHint:
        """Return the hint for one call. Never raises: on an error the call is held."""
        config = self._tools.get(call["name"])
        if config is None:
            return _RUN_HINT
        if config.when is not None and not _is_held(config.when, call, context):
            return _RUN_HINT
        return CallHint(
            hold=True,
            allow=config.allow,
            description=_description(config.description, call, context),
        )


def _check_name(tool: object) -> None:
    # A tool object instead of its name would gate nothing.
    if not isinstance(tool, str):
        raise ValueError(  # noqa: TRY004 - likewise
            f"`interrupt_on` names tools by text, got {tool!r}; write its name."
        )


def _tool_config(tool: str, given: Mapping[str, Any], prefix: str) -> ToolConfig:
    description, when = given.get("description"), given.get("when")
    if description is None:
        description = prefix
    if not (when is None or callable(when)):
        raise ValueError(
            f"Invalid `interrupt_on` config for tool '{tool}': `when` must be a "
            f"function, got {when!r}."
        )
    return ToolConfig(
        allow=_verbs(tool, given),
        description=description if callable(description) else str(description),
        when=when,
        args_schema=_schema(tool, given.get("args_schema")),
    )


def _verbs(tool: str, config: Mapping[str, Any]) -> tuple[Verb, ...]:
    decisions = config.get("allowed_decisions")
    try:
        verbs = tuple(Verb(decision) for decision in decisions or ())
    except (TypeError, ValueError):
        verbs = ()
    if not verbs:
        raise ValueError(
            f"Invalid `interrupt_on` config for tool '{tool}': `allowed_decisions` "
            "must be a non-empty list of decision types (e.g. ['approve', 'reject']), "
            f"each one of {[str(verb) for verb in Verb]}. Got config with keys "
            f"{sorted(config)} and allowed_decisions={decisions!r}."
        )
    return verbs


def _schema(tool: str, schema: object) -> JsonObject | None:
    if schema is None:
        return None
    try:
        return strict_json.accept_object(schema)
    except BadJson as error:
        raise ValueError(
            f"Invalid `interrupt_on` config for tool '{tool}': `args_schema` must be a "
            f"JSON Schema object. {error}"
        ) from error


def _is_held(when: When, call: ToolCall, context: HintContext) -> bool:
    try:
        answer = when(_request(call, context))
    except any_failure() as error:  # application code; the call is then held
        log_failure(logger, error, "interrupt_on.when_failed tool=%s", call["name"])
        return True
    if inspect.iscoroutine(answer):
        # Closed because it is never awaited: Python would warn on garbage collection.
        answer.close()
    if not isinstance(answer, bool):
        logger.warning("interrupt_on.when_unclear tool=%s", call["name"])
    # Only a plain False lets a call run: None or a coroutine is a mistake in `when`.
    return answer is not False


def _request(call: ToolCall, context: HintContext) -> ToolCallRequest:
    runtime = context.runtime
    tool_runtime: ToolRuntime[Any, Any] = ToolRuntime(
        state=context.state,
        context=runtime.context,
        config=get_config(),
        stream_writer=runtime.stream_writer,
        tool_call_id=call["id"],
        store=runtime.store,
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )
    return ToolCallRequest(
        # A copy: changes by `when` must not be submitted.
        tool_call=copy.deepcopy(call),
        tool=context.tools.get(call["name"]),
        state=context.state,
        runtime=tool_runtime,
    )


def _description(
    description: str | Describe, call: ToolCall, context: HintContext
) -> str:
    if isinstance(description, str):
        return strict_json.printable(description)
    try:
        text = description(copy.deepcopy(call), context.state, context.runtime)
        return strict_json.printable(str(text))
    except any_failure() as error:  # application code; the card then has no description
        event = "interrupt_on.description_failed tool=%s"
        log_failure(logger, error, event, call["name"])
        return ""
