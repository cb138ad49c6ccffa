"""Pause with LangGraph's interrupt until a person gives a valid decision."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import (
    Any,
    Final,
    Generic,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
)

from langchain.agents.middleware.types import ToolCallRequest
from langgraph.config import get_config
from langgraph.types import interrupt
from pydantic import (
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from twokey.agent import turns
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import edits, strict_json
from twokey.gateway.protocol.answer_schema import answer_schema
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    Answer,
    AnswerKind,
    FindingWord,
    ReconcileAnswer,
    Verdict,
)

_SCRATCHPAD = "__pregel_scratchpad"
"""Where LangGraph keeps the answers to a task's interrupts (private)."""

_A = TypeVar("_A", Answer, ReconcileAnswer)

_DECISIONS = {
    Verb.APPROVE: AnswerKind.APPROVE,
    Verb.EDIT: AnswerKind.EDIT,
    Verb.REJECT: AnswerKind.REJECT,
    Verb.RESPOND: AnswerKind.RESPOND,
}
_ENDINGS = tuple(kind for kind in AnswerKind if kind not in _DECISIONS.values())
_FINDINGS: Final[tuple[str, ...]] = get_args(FindingWord)


@dataclass(frozen=True)
class Expected(Generic[_A]):
    """What an answer to one interrupt has to be.

    No model for each interrupt: making one takes pydantic milliseconds and about a
    hundred kilobytes, and a process asks about many calls. The one model of all of them
    reads this in its validators.

    Attributes:
        model: of all answers of this kind.
        item_id: the call that was asked about.
        action_hash: of the request: an answer to this call before an edit is none.
        kinds: what the answer may be.
        args_schema: what the arguments of an edit have to fit; None when the tool
            declares nothing.
    """

    model: type[_A]
    item_id: str
    action_hash: str
    kinds: tuple[str, ...]
    args_schema: JsonObject | None = None

    def parse(self, answer: object) -> _A:
        """Return a valid answer.

        Raises:
            ValidationError: when it is none.
        """
        return self.model.model_validate(answer, context=self)

    def accepts(self, answer: object) -> bool:
        """Return whether an answer is valid."""
        try:
            self.parse(answer)
        except ValidationError:
            return False
        return True

    def check(self, answer: Answer | ReconcileAnswer) -> None:
        """Raise ValueError unless this is what was asked for."""
        if answer.item_id != self.item_id or answer.action_hash != self.action_hash:
            raise ValueError("this answers another call, or this one before an edit")
        if answer.type not in self.kinds:
            raise ValueError(f"`type` is one of {', '.join(self.kinds)}")

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema that a client sees."""
        kind = Answer if issubclass(self.model, Answer) else ReconcileAnswer
        schema = answer_schema(
            kind, types=self.kinds, item_id=self.item_id, action_hash=self.action_hash
        )
        # A copy: whoever gets it may change it.
        return copy.deepcopy(schema)

    @contextmanager
    def form(self) -> Generator[type[Any]]:
        """Give what LangGraph validates an answer by and shows as its JSON Schema.

        It is the same type each time and stands for this while the block runs.
        """
        token = _asked.set(self)
        try:
            yield _Form
        finally:
            _asked.reset(token)


_asked: ContextVar[Expected[Any]] = ContextVar("twokey_asked")


def _parsed_now(answer: object) -> object:
    return _asked.get().parse(answer)


class _Form:
    """The answer to the interrupt that is asked or answered right now.

    LangGraph makes a `TypeAdapter` of the type that it is given, at each run of a task
    up to the interrupt, also when the answer is there. One of this type takes a seventh
    of the time, since the type has what pydantic would make.
    """

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: object, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Validate as `Expected.parse` does; what it raises goes on as it is."""
        return core_schema.no_info_plain_validator_function(_parsed_now)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON Schema that a client sees."""
        return _asked.get().json_schema()


def _keep_what_pydantic_makes() -> None:
    made = TypeAdapter(_Form)
    for name in ("core_schema", "validator", "serializer"):
        setattr(_Form, f"__pydantic_{name}__", getattr(made, name))


_keep_what_pydantic_makes()

_Context: TypeAlias = "ValidationInfo[Expected[Any] | None]"


# Without docstrings: pydantic would show them to clients. An answer that is an object
# already is checked like any other, since it may be that to another interrupt.
class _ApprovalAnswer(Answer):
    model_config = ConfigDict(title="ApprovalAnswer", revalidate_instances="always")

    @model_validator(mode="after")
    def _fits(self, info: _Context) -> Self:
        expected = _expected(info)
        expected.check(self)
        _check(self, expected.args_schema)
        return self


class _ReconcileAnswer(ReconcileAnswer):
    model_config = ConfigDict(title="ReconcileAnswer", revalidate_instances="always")

    @model_validator(mode="after")
    def _fits(self, info: _Context) -> Self:
        _expected(info).check(self)
        return self


def _expected(info: _Context) -> Expected[Any]:
    if info.context is None:
        raise ValueError("nothing was asked")
    return info.context


def is_alone(request: ToolCallRequest) -> bool:
    """Return whether this call has a task of its own, so that its answers are its own.

    A jump to the tools node runs all calls of a message in one task, where LangGraph
    cannot tell whose answer is whose.
    """
    # LangChain sends each call to the tools node as a task of its own (PUSH); a jump
    # triggers the node through its edge (PULL).
    path = cast("Any", get_config().get("metadata", {})).get("langgraph_path", ())
    if not path or path[0] != "__pregel_pull":
        return True
    asking = turns.requesting_message(request.state, request.tool_call["id"] or "")
    return asking is not None and len(asking.tool_calls) == 1


def request_decision(
    verdict: Verdict, args: JsonObject, *, is_again: bool = False
) -> Answer:
    """Pause until this call is decided; return the decision.

    Everything here is pure up to the pause, because LangGraph runs it again whenever
    a sibling is answered. LangGraph refuses an invalid answer before it saves it,
    because the model is the interrupt's schema. An invalid answer that was saved all
    the same is asked for again, in the order in which LangGraph replays answers.

    With ``is_again`` the call went back to people. Answers to the tool's own
    interrupts may then be saved before ours and must stay there. So LangGraph gets
    only the JSON Schema of our model, which it does not validate them by.

    A middleware before ours may handle a call twice in one run of its task, as one that
    retries does. The second time gets the same answer: LangGraph would take the same
    question for another one.
    """
    expected = expected_answer(verdict)
    if not is_again and (known := _given_here(expected)) is not None:
        return known
    question: JsonObject = {
        "type": APPROVAL_INTERRUPT,
        "v": 1,
        "item_id": verdict.item_id,
        "tool": verdict.tool,
        "tool_call_id": verdict.tool_call_id,
        "args": args,
        "action_hash": verdict.action_hash,
        "allow": [str(verb) for verb in verdict.allow],
    }
    # With the form, LangGraph would refuse the saved answers of the tool.
    schema = expected.json_schema() if is_again else None
    answer = _latest(_interrupt(question, expected, schema), expected)
    _given.set((_scratchpad(), expected, answer))
    return answer


_given: ContextVar[tuple[object, Expected[Answer], Answer] | None] = ContextVar(
    "twokey_given", default=None
)
"""The last answer that was given here: the run of a task, the question, the answer."""


def _given_here(expected: Expected[Answer]) -> Answer | None:
    """Return the answer that this run of the task was given already, if it was."""
    run, asked, answer = _given.get() or (None, None, None)
    # LangGraph makes a scratchpad for each run of a task.
    return answer if asked == expected and run is _scratchpad() else None


def request_reconciliation(verdict: Verdict) -> ReconcileAnswer:
    """Pause until a person has reconciled an execution in doubt."""
    question: JsonObject = {
        "type": RECONCILE_INTERRUPT,
        "v": 1,
        "item_id": verdict.item_id,
        "tool": verdict.tool,
        "action_hash": verdict.action_hash,
        "allow": ["executed", "rerun", "skip"],
    }
    expected = _expected_finding(verdict)
    return _interrupt(question, expected)


def drop_findings(verdict: Verdict) -> None:
    """Remove findings about this call from the saved answers of the running task.

    A node that asks again after a doubt runs from its start. The doubt is over then,
    so nothing reads the saved finding, and the next interrupt would be given it.
    """
    saved = _saved_answers()
    expected = _expected_finding(verdict)
    # In place: it is LangGraph's own list, from which the next `interrupt` reads.
    saved[:] = [each for each in saved if not expected.accepts(each)]


def expected_answer(verdict: Verdict) -> Expected[Answer]:
    """Return what answers to this interrupt have to be."""
    kinds = (*(_DECISIONS[verb] for verb in verdict.allow), *_ENDINGS)
    return Expected(
        _ApprovalAnswer,
        verdict.item_id,
        verdict.action_hash,
        tuple(kind.value for kind in kinds),
        verdict.args_schema,
    )


def _expected_finding(verdict: Verdict) -> Expected[ReconcileAnswer]:
    return Expected(_ReconcileAnswer, verdict.item_id, verdict.action_hash, _FINDINGS)


def _interrupt(
    question: JsonObject,
    expected: Expected[_A],
    schema: dict[str, Any] | None = None,
) -> _A:
    """Pause; with a ``schema`` LangGraph does not validate the answer, see above."""
    errors: list[str] = []
    while True:
        with expected.form() as form:
            answer: object = interrupt(
                {**question, "errors": list(errors)},
                response_schema=form if schema is None else schema,
            )
        try:
            return expected.parse(answer)
        except ValidationError as error:
            # Not raised: an invalid answer that was saved is replayed by each resume,
            # and would stop the thread each time.
            errors = [str(problem["msg"])[:300] for problem in error.errors()]


def _latest(answer: Answer, expected: Expected[Answer]) -> Answer:
    """Return the last answer to this interrupt, and remove its duplicates.

    LangGraph saves the answers to a task even when the task then fails or is
    cancelled. The interrupt stays open, so the answer is sent again, and LangGraph
    appends it to the saved one (`langgraph.pregel._algo._scratchpad`, 1.2). The next
    interrupt of this task would be given the duplicate: ours after an execution in
    doubt, or one of the tool itself. A call that went back to people is asked about
    twice; then the last answer counts.
    """
    saved = _saved_answers()
    # By content: the answers to the tool's own interrupts are in the same list.
    places = [at for at, each in enumerate(saved) if expected.accepts(each)]
    if not places:
        return answer
    saved[places[0]] = saved[places[-1]]
    for at in reversed(places[1:]):
        del saved[at]
    return expected.parse(saved[places[0]])


def _saved_answers() -> list[object]:
    """Return LangGraph's own, mutable list of the answers to this task."""
    resume: object = getattr(_scratchpad(), "resume", None)
    return cast("list[object]", resume) if isinstance(resume, list) else []


def _scratchpad() -> object:
    return get_config().get("configurable", {}).get(_SCRATCHPAD)


def _check(answer: Answer, schema: JsonObject | None) -> None:
    is_edit = answer.type is AnswerKind.EDIT
    if is_edit != (answer.args is not None):
        raise ValueError("an edit carries `args`, and nothing else does")
    if answer.type is AnswerKind.RESPOND and not answer.message.strip():
        raise ValueError("a response carries a `message`")
    if answer.args is None:
        return
    try:
        args = strict_json.accept_object(answer.args)
    except BadJson as error:
        raise ValueError(str(error)) from error
    errors = edits.argument_errors(schema, args)
    if errors:
        raise ValueError("; ".join(f"{at}: {why}" for at, why in errors.items()))
