"""Pydantic AI: put people before the tools of an agent.

    agent = Agent(model, tools=[refund], capabilities=[KeyturnApproval("billing")])

The calls of one model response are one turn, so they share a card. The claim is around
the tool itself, inside all other capabilities, so the tool runs with exactly the
authorized arguments. By default a call waits in place. With ``durable=True`` the run
ends with `DeferredToolRequests`, and continues after `KeyturnApproval.results`. Only
the gateway decides: an approval by the program has no effect.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import (
    AbstractToolset,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelRequestContext,
    ModelResponse,
    ModelRetry,
    RunContext,
    ToolCallPart,
    ToolDefinition,
    ToolFailed,
    ToolReturn,
    ToolsetTool,
    WrapperToolset,
)
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.output import OutputContext
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import override

from keyturn.connect.asking import Asker, has_decision, schemas_of
from keyturn.connect.gate import Gate
from keyturn.connect.kept_values import defused, kept, recalled
from keyturn.connect.once import CallReport, NotDecided, Work, once
from keyturn.gateway.client.claiming import HeldCall, Unfinished
from keyturn.gateway.errors import BadJson, NotStarted, SettingsError
from keyturn.gateway.protocol import digest, strict_json, texts
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import (
    MAX_PROBLEM,
    Person,
    Reading,
    Result,
    RunRef,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef

Requester = Callable[[RunContext[Any]], Person | None]

METADATA = "keyturn"
"""The key of Keyturn's data in the metadata of tool returns and deferred calls."""

UNSTABLE = (
    "This call did not run: the tool changes these arguments each time it validates "
    "them, so reviewers cannot see the arguments of the run. Tell the user."
)
TAG = "keyturn/v1/pydantic-ai/response"

_RETURN = TypeAdapter(ToolReturn[Any])


class KeyturnApproval(AbstractCapability[Any]):
    """Holds an agent's tool calls for people, as the policy demands.

    Args:
        agent: the agent's name in policy and cards.
        gateway: the gateway, or its URL; by default ``KEYTURN_GATEWAY``.
        api_key: the key for a gateway at a URL; by default ``KEYTURN_API_KEY``.
        durable: end the run instead of waiting; see `results`.
        limit_s: seconds that a call waits for people before it is withdrawn.
        requester: returns the requester of a run, who cannot approve its calls.
        ungated: names of tools and output functions that run without the gateway.

    Raises:
        SettingsError: when an argument cannot be used, or a part of the agent bypasses
            the gate: a tool of the provider, an output function, or a tool that itself
            asks for approval or runs elsewhere.
    """

    def __init__(
        self,
        agent: str,
        *,
        gateway: Gate | str | None = None,
        api_key: str | None = None,
        durable: bool = False,
        limit_s: float = math.inf,
        requester: Requester | None = None,
        ungated: Collection[str] = (),
    ) -> None:
        self.asker = Asker(agent, gateway, api_key, ungated=ungated, limit_s=limit_s)
        self.durable, self.requester = durable, requester

    @override
    def get_ordering(self) -> CapabilityOrdering:
        """Place this capability next to the tool, after all changes of arguments."""
        return CapabilityOrdering(position="innermost")

    @override
    def for_agent(self, agent: AbstractAgent[Any, Any]) -> AbstractCapability[Any]:
        """Refuse an agent with parts that bypass the gate."""
        self._refuse(_functions_of(agent.output_type), "is an output function")
        self._refuse_native(agent.root_capability.get_native_tools())
        for toolset in agent.toolsets:
            if isinstance(toolset, FunctionToolset):
                found = toolset.tools
                asking = [name for name, one in found.items() if one.requires_approval]
                self._refuse_asking(asking)
        return self

    @override
    async def prepare_tools(
        self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """Refuse tools of a run that themselves ask for approval or run elsewhere."""
        self._refuse_asking([one.name for one in tool_defs if one.kind != "function"])
        return tool_defs

    @override
    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Refuse tools of the provider that a run adds."""
        parameters = request_context.model_request_parameters
        self._refuse_native(parameters.native_tools)
        return request_context

    @override
    async def before_output_process(
        self, ctx: RunContext[Any], *, output_context: OutputContext, output: Any
    ) -> Any:
        """Refuse an output function that a run adds."""
        name = output_context.function_name
        self._refuse([name] if name else [], "is an output function")
        return output

    @override
    def get_wrapper_toolset(
        self, toolset: AbstractToolset[Any]
    ) -> AbstractToolset[Any]:
        """Gate every function tool of a run."""
        return _Gated(toolset, self)

    async def results(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """Wait for the decisions on the calls that a durable run deferred.

        Pass the results to ``agent.run(message_history=…, deferred_tool_results=…)``,
        in any process and as often as needed: each call runs once. The results do not
        contain the calls that other tools deferred.
        """
        ours = {
            call_id: data[METADATA]
            for call_id, data in requests.metadata.items()
            if METADATA in data
        }
        for one in ours.values():
            run = RunRef.model_validate(one["run"])
            question = OpenQuestion.model_validate(one["question"])
            await has_decision(self.asker.gate, run, question)
        return requests.build_results(approvals=dict.fromkeys(ours, True))

    def _refuse_asking(self, names: Collection[str]) -> None:
        self._refuse(names, "itself asks for approval or runs elsewhere")

    def _refuse_native(self, tools: Sequence[object]) -> None:
        names = [str(getattr(one, "unique_id", type(one).__name__)) for one in tools]
        # The search for tools only finds tools, and those are gated.
        names = [name for name in names if name != "tool_search"]
        self._refuse(names, "runs at the model's provider")

    def _refuse(self, names: Collection[str], why: str) -> None:
        for name in names:
            if name not in self.asker.ungated:
                raise SettingsError(
                    f"{name!r} of the agent {self.asker.agent!r} bypasses the gate: it "
                    f"{why}. Make it a plain tool of this program, or list it in "
                    "ungated= to run it without approvals."
                )


def _functions_of(output_type: object) -> list[str]:
    """Return the names of the functions in an agent's output type."""
    if isinstance(output_type, list | tuple):
        each = cast("Sequence[object]", output_type)
        return [name for one in each for name in _functions_of(one)]
    for field in ("outputs", "output", "output_function"):
        if hasattr(output_type, field):
            return _functions_of(getattr(output_type, field))
    is_code = inspect.isfunction(output_type) or inspect.ismethod(output_type)
    return [str(getattr(output_type, "__name__", ""))] if is_code else []


@dataclass
class _Gated(WrapperToolset[Any]):
    approval: KeyturnApproval

    @override
    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        approval, asker = self.approval, self.approval.asker
        if name in asker.ungated:
            return await super().call_tool(name, tool_args, ctx, tool)
        turn = _turn(ctx, asker, tool_args)
        by_id = {one.tool_call_id: one for one in turn.calls}
        call = by_id.get(ctx.tool_call_id or "")
        if call is None or call.tool != name:
            # A capability repaired arguments that the tool would have refused, or
            # another tool passed its own id to this call.
            raise ToolFailed(texts.NO_VERDICT)
        requester = approval.requester and approval.requester(ctx)
        verdict = await asker.verdict(turn, call, requester)
        reader = _Reader(tool, ctx)
        held = HeldCall(turn.ref, verdict, call.args, reading=reader.reading)

        async def run(args: JsonObject, _permit: object) -> ToolReturn[Any]:
            found = await reader.checked(args)
            returned = await super(_Gated, self).call_tool(name, found, ctx, tool)
            is_full = isinstance(returned, ToolReturn)
            return cast("Any", returned) if is_full else ToolReturn(returned)

        work = Work(run, _keep, _recall, _raised)
        try:
            report = await (
                once(asker.gate, held, work, limit_s=0)
                if approval.durable
                else asker.run(held, work)
            )
        except NotDecided as waits:
            question = waits.question.model_dump(mode="json")
            run_ref = turn.ref.run_ref.model_dump(mode="json")
            raise ApprovalRequired(
                {METADATA: {"run": run_ref, "question": question}}
            ) from waits
        return _to_model(report, held.item_id)


def _turn(ctx: RunContext[Any], asker: Asker, args: dict[str, Any]) -> Turn:
    """Return the turn of a call: all gated calls of its model response."""
    response = next(
        (one for one in reversed(ctx.messages) if isinstance(one, ModelResponse)), None
    )
    parts = response.tool_calls if response else []
    thread = ctx.conversation_id or ctx.run_id or ""
    name, call_id = ctx.tool_name or "", ctx.tool_call_id or ""
    if response is None or all(part.tool_call_id != call_id for part in parts):
        # Another tool started this call, so it is not in the model's response.
        ref = TurnRef(agent=asker.agent, thread=thread, ns=call_id, message_id=call_id)
        shown = strict_json.accept_object(to_jsonable_python(args))
        alone = ProposedCall(tool=name, args=shown, tool_call_id=call_id)
        return Turn(ref=ref, calls=(alone,), schemas=_schemas(ctx, [name]))
    proposed = [_proposal(part, ctx, asker) for part in parts]
    calls = tuple(one for one in proposed if one is not None)
    # A saved history keeps time and ids; the gateway refuses changed arguments.
    named = [response.timestamp.isoformat(), *(part.tool_call_id for part in parts)]
    message = digest.tagged_hash(TAG, json.dumps(named).encode())
    return Turn(
        ref=TurnRef(agent=asker.agent, thread=thread, message_id=message),
        calls=calls,
        says=response.text or "",
        schemas=_schemas(ctx, [one.tool for one in calls]),
    )


def _schemas(ctx: RunContext[Any], names: Sequence[str]) -> dict[str, JsonObject]:
    tools = _tools(ctx)
    return schemas_of(
        {name: tools[name].tool_def.parameters_json_schema for name in names}
    )


def _tools(ctx: RunContext[Any]) -> Mapping[str, ToolsetTool[Any]]:
    return (ctx.tool_manager and ctx.tool_manager.tools) or {}


def _proposal(
    part: ToolCallPart, ctx: RunContext[Any], asker: Asker
) -> ProposedCall | None:
    """Return a call to propose; None if it never reaches the gate."""
    tool, name = _tools(ctx).get(part.tool_name), part.tool_name
    if tool is None or tool.tool_def.kind == "output" or name in asker.ungated:
        return None
    reader = _Reader(tool, ctx)
    try:
        wrote = strict_json.accept_object(part.args_as_dict(raise_if_invalid=True))
        args = reader.read(wrote)
        problem = "" if digest.same(reader.read(args), args) else UNSTABLE
    except BadJson as error:
        wrote, args, problem = {}, {}, str(error)
    except (ValueError, AssertionError):
        return None  # invalid: the framework asks the model for a correction
    return ProposedCall(
        tool=name,
        args=args,
        tool_call_id=part.tool_call_id,
        original_args=None if digest.same(wrote, args) else wrote,
        problem=problem,
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads arguments as a tool does: its validator converts and completes them."""

    tool: ToolsetTool[Any]
    ctx: RunContext[Any]

    def validated(self, args: JsonObject) -> dict[str, Any]:
        """Return the arguments for the tool's function."""
        context = self.ctx.validation_context
        text = json.dumps(args)
        found = self.tool.args_validator.validate_json(text, context=context)
        return cast("dict[str, Any]", found)

    def read(self, args: JsonObject) -> JsonObject:
        """Return the validated arguments as JSON, without generated defaults.

        Raises:
            ValidationError: when the tool refuses the arguments.
            BadJson: when they cannot be shown as JSON.
        """
        one, other = (self._shown(args) for _ in range(2))
        return {
            name: value
            for name, value in one.items()
            if name in args or (name in other and digest.same(value, other[name]))
        }

    def _shown(self, args: JsonObject) -> JsonObject:
        try:
            return strict_json.accept_object(to_jsonable_python(self.validated(args)))
        except PydanticSerializationError as error:
            raise BadJson(f"They cannot be shown ({error}).") from error

    def reading(self, args: JsonObject) -> Reading | None:
        """Return how the tool reads an edit; None if it keeps the edit unchanged."""
        try:
            found = self.read(args)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            return Reading(problem=f"{place}: {first['msg']}"[:MAX_PROBLEM])
        except BadJson as error:
            return Reading(problem=str(error)[:MAX_PROBLEM])
        return None if digest.same(found, args) else Reading(args=found)

    async def checked(self, args: JsonObject) -> dict[str, Any]:
        """Return authorized arguments for the tool.

        Raises:
            NotStarted: when the validator changes or refuses the arguments.
        """
        misread = self.reading(args)
        if misread is not None:
            why = misread.problem or "it would read the arguments differently"
            raise NotStarted(f"This did not run: {why}.")
        found = self.validated(args)
        if self.tool.args_validator_func is not None:
            # It accepted the model's arguments, but an edit may have changed them.
            try:
                checked = self.tool.args_validator_func(self.ctx, **found)
                if inspect.isawaitable(checked):
                    await checked
            except (ModelRetry, ToolFailed) as error:
                raise NotStarted(f"This did not run: {error}") from error
        return found


def _keep(returned: ToolReturn[Any]) -> Result:
    shown = kept(returned.return_value)
    try:
        plain = _RETURN.dump_python(returned, mode="json", warnings=False)
    except (PydanticSerializationError, ValueError, RecursionError):
        return shown.with_(payload="")
    return kept(plain).with_(summary=shown.summary)


def _recall(payload: str) -> ToolReturn[Any]:
    try:
        return _RETURN.validate_python(recalled(payload))
    except ValidationError as error:
        raise LookupError("The stored value cannot be read.") from error


def _raised(error: BaseException) -> Unfinished | None:
    # The tool has begun, and itself asks its program.
    is_pause = isinstance(error, ApprovalRequired | CallDeferred)
    return Unfinished.PAUSED if is_pause else None


def _to_model(report: CallReport[ToolReturn[Any]], item_id: str) -> ToolReturn[Any]:
    """Return the tool return for the model, with metadata for programs."""
    data: JsonObject = {"item_id": item_id}
    if report.edit is not None:
        data["edit"] = report.edit.model_dump(mode="json")
    if report.value is None:
        text = report.in_words(str)
        if report.is_error:
            raise ToolFailed(text)
        return ToolReturn(text, metadata={METADATA: data})
    returned = report.value.is_
    shown: Any = defused(returned.return_value)
    if report.notice:
        is_text = isinstance(shown, str)
        shown = f"{report.notice}\n\n{shown}" if is_text else [report.notice, shown]
    metadata: Any = returned.metadata or {}
    if isinstance(metadata, dict):
        metadata = {**cast("dict[str, Any]", metadata), METADATA: data}
    return replace(returned, return_value=shown, metadata=metadata)
