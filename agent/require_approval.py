"""Ask people from a plain LangGraph node, without an agent: for approval, or questions.

    outcome = await arequire_approval("wire_money", {"amount": 90}, run=wire_money)

The node pauses until a reviewer has decided. Then ``run`` is called once, with the
authorized arguments as keywords: ``wire_money(amount=90)``. LangGraph runs a node again
from its start after a pause: code before this call must have no effects.

`aask_questions` pauses the node in the same way, until its questions are answered.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Generic, Literal, NoReturn, TypedDict, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.config import get_config

from keyturn.agent import auto_approved, canonical, grants, interrupts, turns
from keyturn.agent.canonical import argument_model
from keyturn.agent.execution import Interrupts, Work, execute, state_reader
from keyturn.agent.grants import Recheck
from keyturn.gateway import errors
from keyturn.gateway.arguments import is_a, require
from keyturn.gateway.client import claiming
from keyturn.gateway.client.bridge import Awaiting, Blocking, Shell, ask_or_wait, drive
from keyturn.gateway.client.http_gateway import (
    agent_name,
    current_gateway,
    given_gateway,
)
from keyturn.gateway.protocol import digest, run_context, strict_json, texts, wire
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.parameters import signature_of
from keyturn.gateway.protocol.questions import ASK_USER, QuestionSet
from keyturn.gateway.protocol.records import (
    MAX_PROBLEM,
    EditRecord,
    FailureKind,
    Person,
    Reading,
    Result,
)
from keyturn.gateway.protocol.strict_json import JsonObject

# Check before submission that a function accepts an action's arguments as keywords.
#
# A step is approved and then called with keyword arguments. A mistake in the signature
# must be found before the step is submitted, not after the approval.


def _refuse(tool: str, problem: str) -> NoReturn:
    raise errors.BadStep(f"The step {tool!r} was not submitted: {problem}")


def check_synchronous(run: Callable[..., Any], tool: str) -> None:
    """Refuse a coroutine function, which this call would not await.

    Raises:
        BadStep: names the function to use instead.
    """
    # An object with an asynchronous `__call__` is not itself a coroutine function.
    called = getattr(run, "__call__", run)  # noqa: B004 - its kind is asked, not whether there is one
    if inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(called):
        _refuse(
            tool,
            f"{_name(run)} is a coroutine function, which `require_approval` does not "
            "await. Use `await arequire_approval(...)` in an async node.",
        )


def binding_problem(run: Callable[..., Any], args: JsonObject) -> str:
    """Return why a function cannot be called with these keywords; "" if it can."""
    if not callable(run):
        return f"{run!r} is not a function"
    try:
        signature = signature_of(run)
    except (TypeError, ValueError):
        return ""  # a built-in without a signature; the call itself may fail
    try:
        signature.bind(**args)
    except TypeError as error:
        return f"{_name(run)} does not take these arguments ({error})"
    return ""


def _name(run: Callable[..., Any]) -> str:
    return str(getattr(run, "__qualname__", type(run).__qualname__))


# Canonicalize the arguments of a gated action in a plain LangGraph node.
#
# A step of a plain node has no tool, but its function may have annotations. They are
# applied like a tool's schema: the function receives exactly the approved values.


def declared(run: Callable[..., Any], tool: str) -> BaseTool | None:
    """Return a tool with the schema of a function; None without annotations."""
    try:
        parameters = inspect.signature(run).parameters.values()
        is_open = any(one.kind is one.VAR_KEYWORD for one in parameters)
        annotated = [one for one in parameters if one.annotation is not one.empty]
        # A function with **kwargs accepts any argument: there is no schema to apply.
        if is_open or not annotated:
            return None
        return StructuredTool.from_function(func=run, name=tool, description=tool)
    except Exception:  # noqa: BLE001 - annotations may be anything; then nothing is read
        return None


def canonical_step(
    run: Callable[..., Any], args: dict[str, Any], tool: str
) -> JsonObject:
    """Return the arguments of a step as its function reads them.

    They are canonical: a step runs the same with and without approval.

    Defaults are not filled in: a node runs again after a pause, and a generated default
    would differ each time and change the call's hash.

    Raises:
        BadJson: when they are not strict JSON.
        BadStep: when the function does not accept them; nothing was submitted.
    """
    if problem := binding_problem(run, args):
        _refuse(
            tool,
            f"{problem}. `run` is called with one keyword argument for each member of "
            "`args`; give both the same names, or take them all: run=lambda **args: "
            "...",
        )
    try:
        read = _read(run, canonical.plain(args), tool)
        return cast("JsonObject", digest.in_spelling_of(args, read))
    except canonical.ArgumentMismatch as error:
        _refuse(tool, f"{error}. Give arguments that fit the annotations of `run`.")


def step_reading(
    run: Callable[..., Any], args: JsonObject, tool: str
) -> Reading | None:
    """Return how a function reads arguments that it would change; otherwise None."""
    problem, made = binding_problem(run, args), args
    try:
        made = made if problem else _read(run, args, tool)
    except canonical.ArgumentMismatch as error:
        problem = f"the arguments do not fit ({error})"
    if problem:
        return Reading(problem=problem[:MAX_PROBLEM])
    return None if digest.same(made, args) else Reading(args=made)


def _read(run: Callable[..., Any], args: JsonObject, tool: str) -> JsonObject:
    reader = declared(run, tool)
    if reader is None:
        return args
    made = canonical.function_args(reader, args)
    return {name: value for name, value in made.items() if name in args}


def values(run: Callable[..., Any], args: JsonObject, tool: str) -> dict[str, Any]:
    """Return canonical arguments as values of the function's declared types."""
    reader = declared(run, tool)
    if reader is None:
        return dict(args)
    read = argument_model(reader).read(args)
    # Only the given arguments: the function fills in its defaults.
    return {name: getattr(read, name) for name in args}


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Approved(Generic[R]):
    """The step ran with ``args``; ``edit`` is a reviewer's edit or None.

    ``reasons`` contains the reviewers' reasons for approving, each with a name, or "".
    """

    result: R
    args: JsonObject
    edit: EditRecord | None = None
    reasons: str = ""


@dataclass(frozen=True, slots=True)
class NotApproved:
    """The step did not run. ``message`` is a sentence with the reason.

    ``kind`` is the answer's type (reject, respond, expired, …), ``deny`` when policy or
    the gateway refused, or ``misfit`` when ``run`` does not accept a reviewer's edited
    arguments. ``said`` is a person's reason or response, unchanged.
    """

    kind: str
    message: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Unsure:
    """The step started, but its effect or its result is unknown."""

    message: str


Outcome = Approved[R] | NotApproved | Unsure
_Work = Callable[[JsonObject], Awaitable[R]]
"""Calls the caller's function with authorized arguments."""


class AskerOptions(TypedDict, total=False):
    """Options of a node that asks people.

    Attributes:
        agent: the asker's name in policy and card; ``agent`` if unset.
        key: names this step within its node. Without a key, a step is identified by its
            position in the node's order of requests, which must not change between runs
            of the node. Give keys to steps that threads request in any order.
        says: the asker's reason, shown as unverified.
        gateway: the gateway, or its URL. Defaults to the one `connected`, then to that
            of the environment.
        api_key: the key for a remote gateway. Defaults to that of the environment.
    """

    agent: str
    key: str
    says: str
    gateway: Gateway | str | None
    api_key: str | None


class StepOptions(AskerOptions, total=False):
    """Options of a step that needs approval.

    Attributes:
        task: the task of this step; steps of one task may share a card, if the policy
            has ``batch: {by: task, …}``.
        evidence: sources for the reviewer, shown as unverified: up to ten mappings with
            a ``title`` and a ``url`` or a ``text``.
        schema: JSON Schema of the arguments, for the edit form and its checks.
        recheck: reads the state that must not change until the step runs; see
            `guarded`.
    """

    task: str
    evidence: Sequence[Mapping[str, str]]
    schema: JsonObject | None
    recheck: Recheck | None


@dataclass(frozen=True, kw_only=True)
class _Asker:
    """The options of `StepOptions`, checked."""

    agent: str = "agent"
    key: str = ""
    says: str = ""
    gateway: Gateway | str | None = None
    api_key: str | None = None
    task: str = ""
    evidence: Sequence[Mapping[str, str]] = ()
    schema: JsonObject | None = None
    recheck: Recheck | None = None

    def __post_init__(self) -> None:
        """Check values that pydantic would refuse late or with an unclear message."""
        agent_name(self.agent)
        texts = {"key": self.key, "says": self.says, "task": self.task}
        for name, text in texts.items():
            require(is_a(text, str), name, text, "give a text")
        is_schema = self.schema is None or is_a(self.schema, Mapping)
        require(is_schema, "schema", self.schema, "give a JSON Schema as a mapping")
        is_recheck = self.recheck is None or callable(self.recheck)
        require(is_recheck, "recheck", self.recheck, "give a function")
        _ = self.hint

    @cached_property
    def hint(self) -> wire.CallHint:
        """Return the hint about the step."""
        given = {"task": self.task, "evidence": self.evidence}
        return wire.CallHint.model_validate(given)

    @cached_property
    def port(self) -> Gateway:
        """Return the gateway."""
        return given_gateway(self.gateway, self.api_key) or current_gateway()


@dataclass(frozen=True)
class _Step:
    """The caller's request, with its canonical arguments."""

    tool: str
    args: JsonObject
    run: Callable[..., Any]
    asker: _Asker


def require_approval(
    tool: str,
    args: dict[str, Any],
    *,
    run: Callable[..., R],
    **options: Unpack[StepOptions],
) -> Outcome[R]:
    """Submit one step of a node, wait, and run it once; for synchronous graphs.

    Args:
        tool: the step's name in policy and card.
        args: its arguments by name, strict JSON.
        run: executes the step; called with the authorized arguments as keywords. If it
            has annotations, they are applied to the arguments before submission. The
            return value is stored for recovery after a crash, so it should be plain
            JSON. `grant` and `guarded` tools work in it.
        options: see `StepOptions`.

    Raises:
        BadJson: when the arguments are not strict JSON.
        BadStep: when ``run`` does not accept these arguments; nothing was submitted.
        SettingsError: when another argument has a wrong type; nothing was submitted.
        NotAllowed: when no gateway is connected, or the graph has no persistent thread.
        ThreadUnavailable: when the gateway does not answer. Either nothing ran, or the
            answer is kept: run the thread again later.
        StateUnknown: when ``recheck`` fails before the approved step runs; likewise.
    """
    check_synchronous(run, tool)

    async def work(given: JsonObject) -> R:
        return run(**values(run, given, tool))

    return drive(_require(_step(tool, args, run, options), work, Blocking()))


async def arequire_approval(
    tool: str,
    args: dict[str, Any],
    *,
    run: Callable[..., Awaitable[R]],
    **options: Unpack[StepOptions],
) -> Outcome[R]:
    """Submit one step of a node, wait, and run it once; see `require_approval`."""

    async def work(given: JsonObject) -> R:
        # Synchronous functions are accepted too.
        returned = cast("Any", run(**values(run, given, tool)))
        return cast("R", await returned if inspect.isawaitable(returned) else returned)

    return await _require(_step(tool, args, run, options), work, Awaiting())


def _step(
    tool: str, args: dict[str, Any], run: Callable[..., Any], options: StepOptions
) -> _Step:
    require(is_a(tool, str) and tool, "tool", tool, "give a name")
    return _Step(tool, canonical_step(run, args, tool), run, _Asker(**options))


async def _require(step: _Step, work: _Work[R], shell: Shell) -> Outcome[R]:
    ref = turn_ref(step.asker.agent, step.tool, step.asker.key)
    verdict = await _submit(step, ref, shell)
    if verdict.kind is wire.VerdictKind.DENY:
        return NotApproved("deny", texts.denial_text(verdict.reason))
    held, why = claiming.HeldCall(ref, verdict, step.args), ""

    def reading(args: JsonObject) -> Reading | None:
        return step_reading(step.run, args, step.tool)

    if verdict.kind is wire.VerdictKind.HOLD:
        answer = interrupts.request_decision(verdict, step.args)
        if answer.type not in {wire.AnswerKind.APPROVE, wire.AnswerKind.EDIT}:
            return _closed(answer)
        why = answer.why_approved
        held = replace(
            held,
            people=Interrupts(verdict, step.args),
            state=state_reader(shell, step.asker.recheck, step.tool),
            reading=reading,
        )

    async def run_step(args: JsonObject) -> Approved[R] | NotApproved | Unsure:
        found = reading(args)
        if found is None:
            return Approved(await work(args), args)
        shown = digest.canonical(found.args).decode("utf-8")
        problem = found.problem or f"the function would read the arguments as {shown}"
        return NotApproved("misfit", f"This did not run: {problem}.")

    way: Work[Outcome[R]] = Work(run_step, _to_result, Unsure)
    run_free = partial(auto_approved.run_auto_approved, is_replayed=True)
    end = (
        await run_free(held, way, gateway=lambda: step.asker.port, shell=shell)
        if verdict.runs_unclaimed
        else await execute(held, step.asker.port, shell, way)
    )
    return _outcome(end, why)


def _closed(answer: wire.Answer) -> NotApproved:
    said = answer.message if answer.by else ""
    return NotApproved(str(answer.type), texts.ended_text(answer), said)


def _outcome(end: claiming.End[Outcome[R]], why: str) -> Outcome[R]:
    match end:
        case claiming.Closed():
            return _closed(end.answer)
        case claiming.NotRun():
            return NotApproved("deny", end.reason)
        case claiming.CutOff():
            return Unsure(texts.CUT_OFF)
        case claiming.Reconciled():
            return Unsure(texts.reconciled_text(end.finding))
        case claiming.RanBefore():
            found: Outcome[Any] = _from_result(end.result)
        case claiming.Ran():
            found = end.result
            if end.failure is not None and isinstance(found, Unsure):
                found = _failed(end.failure, found.message)
    if isinstance(found, Approved):
        found = replace(found, edit=end.edit, reasons=why)
    elif isinstance(found, Unsure) and end.reconciled is not None:
        note = texts.reconciliation_note(end.reconciled)
        found = Unsure(f"{note} {found.message}" if note else found.message)
    return found


def _failed(kind: FailureKind, said: str) -> NotApproved | Unsure:
    """Return the outcome of a step that returned nothing, with advice."""
    if kind is FailureKind.NOT_STARTED:
        return NotApproved("misfit", said)
    return Unsure(texts.failure_text(kind, said))


async def _submit(step: _Step, ref: wire.TurnRef, shell: Shell) -> wire.Verdict:
    asker = step.asker
    call = wire.ProposedCall(
        tool=step.tool,
        args=step.args,
        tool_call_id=asker.key or step.tool,
        hint=asker.hint if asker.task or asker.evidence else None,
    )
    if asker.recheck is not None:
        try:
            state = await grants.read(shell, asker.recheck, step.tool, step.args)
        except errors.StateUnknown:
            return turns.denial(step.tool, call.tool_call_id, texts.STATE_UNREADABLE)
        call = call.with_(state=state)
    schemas = {} if asker.schema is None else {step.tool: asker.schema}
    turn = wire.Turn(ref=ref, calls=(call,), says=asker.says, schemas=schemas)
    return await submit(turn, asker.port, shell)


def _to_result(
    outcome: Approved[R] | NotApproved | Unsure, inside: list[EditRecord]
) -> Result:
    del inside  # a plain node has no history in which to report them
    if isinstance(outcome, Unsure | NotApproved):
        # The failure kind of `Unsure` comes from the error.
        is_misfit = isinstance(outcome, NotApproved)
        failure = FailureKind.NOT_STARTED if is_misfit else None
        return Result(ok=False, summary=outcome.message[:500], failure=failure)
    try:
        row = {"v": 1, "result": outcome.result, "args": outcome.args}
        payload = json.dumps(row, allow_nan=False)
    except (TypeError, ValueError):
        # After a crash the step can still be reported as done, but without its value.
        payload = ""
    # Never empty: an empty summary marks a reconciled result.
    return Result(ok=True, summary=str(outcome.result)[:500] or "-", payload=payload)


def _from_result(result: Result) -> Approved[Any] | NotApproved | Unsure:
    if result.failure is not None:
        return _failed(result.failure, result.summary)
    try:
        row = strict_json.parse_object(result.payload)
        return Approved(row["result"], cast("JsonObject", row["args"]))
    except (errors.KeyturnError, KeyError):
        return Unsure(texts.lost_result_text(result))


Asked = Sequence[str | Mapping[str, Any]]
"""Questions in the form of the tool `ask_user`; a plain text asks for free text."""

# Count how often a node's body has reached a step, to number repeated steps.
#
# A step is submitted as a turn, which is identified by its position. LangGraph runs a
# body again from its start after each pause, and counts its interrupts the same way.
# Each new run, and each retry by the node's retry policy, starts at 1, so a step has
# the same number whenever the body reaches it.
_SCRATCHPAD = "__pregel_scratchpad"
_RUNTIME = "__pregel_runtime"
"""Keys of LangGraph's data about a running task and its current attempt (private)."""

_lock = threading.Lock()
_counts: WeakKeyDictionary[object, tuple[int, int]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to a set of questions.

    Attributes:
        status: ``answered``; ``cancelled`` when a person declined or the time ran out;
            ``error`` when the questions could not be asked.
        answers: one text per question, in order; choices of one question are joined by
            ", ". Empty without answers.
        text: questions and answers as "Q: …" and "A: …", or the reason without answers.
        by: the person who answered or declined.
    """

    status: Literal["answered", "cancelled", "error"]
    answers: tuple[str, ...]
    text: str
    by: Person | None = None


def ask_questions(questions: Asked, **options: Unpack[AskerOptions]) -> Answers:
    """Ask people and wait for their answers; for synchronous graphs.

    Args:
        questions: at least one; they are answered together.
        options: see `AskerOptions`.

    Raises:
        ValueError: when these are not questions.
        SettingsError: when the agent has no usable name.
        NotAllowed: when no gateway is connected, or the graph has no persistent thread.
        ThreadUnavailable: when the gateway does not answer: run the thread again later.
    """
    return drive(_ask(questions, _Asker(**options), Blocking()))


async def aask_questions(questions: Asked, **options: Unpack[AskerOptions]) -> Answers:
    """Ask people and wait for their answers; see `ask_questions`."""
    return await _ask(questions, _Asker(**options), Awaiting())


def _turn(questions: Asked, asker: _Asker) -> wire.Turn:
    # A text is a sequence of texts: each letter would become a question.
    if not is_a(questions, Sequence) or is_a(questions, (str, bytes)):
        raise ValueError(
            f"questions={questions!r} is not a list of questions; write "
            "['Which one?'], also for a single one."
        )
    rows = [
        {"question": one} if isinstance(one, str) else dict(one) for one in questions
    ]
    args = QuestionSet.model_validate({"questions": rows}).model_dump(mode="json")
    call = wire.ProposedCall(
        tool=ASK_USER, args=args, tool_call_id=asker.key or ASK_USER, is_question=True
    )
    ref = turn_ref(asker.agent, ASK_USER, asker.key)
    return wire.Turn(ref=ref, calls=(call,), says=asker.says)


async def _ask(questions: Asked, asker: _Asker, shell: Shell) -> Answers:
    turn = _turn(questions, asker)
    verdict = await submit(turn, asker.port, shell)
    if verdict.kind is not wire.VerdictKind.HOLD:
        return Answers("error", (), texts.denial_text(verdict.reason))
    answer = interrupts.request_decision(verdict, turn.calls[0].args)
    return Answers(
        texts.question_status(answer),
        (answer.type is wire.AnswerKind.RESPOND and answer.answers) or (),
        texts.ended_text(answer),
        answer.by,
    )


def next_number() -> int:
    """Return how often this attempt of the running task asked, including now."""
    configurable: dict[str, Any] = get_config().get("configurable", {})
    scratchpad: Any = configurable.get(_SCRATCHPAD)
    # LangGraph creates this closure for each run of the body. The scratchpad itself has
    # slots and does not support weak references.
    body = getattr(scratchpad, "get_null_resume", None)
    if body is None:
        return 1
    attempt = _attempt(configurable)
    with _lock:
        last, count = _counts.get(body, (attempt, 0))
        count = count + 1 if last == attempt else 1
        _counts[body] = (attempt, count)
    return count


def _attempt(configurable: dict[str, Any]) -> int:
    info: Any = getattr(configurable.get(_RUNTIME), "execution_info", None)
    return int(getattr(info, "node_attempt", 1))


def turn_ref(agent: str, tool: str, key: str) -> wire.TurnRef:
    """Identify the turn by its position: node, step number, place among siblings.

    A node that runs again after a pause or a crash has the same position, and so finds
    its item again. It has a separate namespace, so that it does not supersede other
    turns.

    Raises:
        NotAllowed: when the graph has no persistent thread.
    """
    here = turns.turn_ref(agent, "?")
    if here is None:
        raise errors.NotAllowed(
            f"The step {tool!r} cannot wait for people without a thread; run the graph "
            "with a checkpointer and a thread_id."
        )
    metadata = get_config().get("metadata", {})
    node = [metadata.get("langgraph_node"), *metadata.get("langgraph_path", ())]
    name = "|".join([here.ns, *(str(part) for part in node)])
    # The first step without a key has no suffix, for compatibility with single-step
    # nodes.
    step_id = key or str(next_number())
    name += "" if step_id == "1" else f"#{step_id}"
    number = metadata.get("langgraph_step")
    return here.with_(ns=name, message_id=f"{name}@{number}/{key or tool}")


async def submit(turn: wire.Turn, gateway: Gateway, shell: Shell) -> wire.Verdict:
    """Return the verdict on the one call of a turn.

    Raises:
        ThreadUnavailable: when the gateway does not answer.
        KeyRefused: when it refuses the API key of this process.
    """
    call = turn.calls[0]
    turn = turn.with_(enclosing_run=run_context.enclosing_run(turn.ref.run_ref))
    try:
        found = await ask_or_wait(shell, lambda: gateway.submit(turn), repr(call.tool))
    except errors.KeyRefused:
        raise
    except errors.FINAL_ERRORS as error:
        return turns.denial(call.tool, call.tool_call_id, str(error))
    about = (call.tool, call.tool_call_id, call.args)
    if len(found) == 1 and turns.is_about(found[0], *about):
        return found[0]
    return turns.denial(call.tool, call.tool_call_id, texts.NO_VERDICT)
