"""Pause with LangGraph's interrupt until a person gives a valid decision."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar, cast

from langchain.agents.middleware.types import ToolCallRequest
from langgraph.config import get_config
from langgraph.types import interrupt
from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from twokey.agent import turns
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol import digest, edits, strict_json
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    Answer,
    AnswerKind,
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
KEPT = 1024
"""How many models of answers this process keeps."""

_ENDINGS = tuple(kind for kind in AnswerKind if kind not in _DECISIONS.values())


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
    """
    model = answer_model(verdict)
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
    # With the model itself, LangGraph would refuse the saved answers of the tool.
    schema = _json_schema(model) if is_again else answer_form(model)
    answer = _interrupt(question, model, schema)
    return _latest(answer, model)


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
    model = _reconcile_model(verdict.item_id, verdict.action_hash)
    return _interrupt(question, model, answer_form(model))


def drop_findings(verdict: Verdict) -> None:
    """Remove findings about this call from the saved answers of the running task.

    A node that asks again after a doubt runs from its start. The doubt is over then,
    so nothing reads the saved finding, and the next interrupt would be given it.
    """
    saved = _saved_answers()
    model = _reconcile_model(verdict.item_id, verdict.action_hash)
    # In place: it is LangGraph's own list, from which the next `interrupt` reads.
    saved[:] = [each for each in saved if not _is_valid(each, model)]


def answer_model(verdict: Verdict) -> type[Answer]:
    """Return the model that accepts only answers to this interrupt."""
    schema = verdict.args_schema
    return _answer_model(
        verdict.item_id,
        verdict.action_hash,
        tuple(verdict.allow),
        # As bytes: the arguments of a cached function must be hashable.
        None if schema is None else digest.canonical(schema),
    )


def _interrupt(
    question: JsonObject, model: type[_A], schema: type[Any] | dict[str, Any]
) -> _A:
    errors: list[str] = []
    while True:
        answer: object = interrupt(
            {**question, "errors": list(errors)}, response_schema=schema
        )
        try:
            return model.model_validate(answer)
        except ValidationError as error:
            # Not raised: an invalid answer that was saved is replayed by each resume,
            # and would stop the thread each time.
            errors = [str(problem["msg"])[:300] for problem in error.errors()]


def _latest(answer: Answer, model: type[Answer]) -> Answer:
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
    places = [at for at, each in enumerate(saved) if _is_valid(each, model)]
    if not places:
        return answer
    saved[places[0]] = saved[places[-1]]
    for at in reversed(places[1:]):
        del saved[at]
    return model.model_validate(saved[places[0]])


def _saved_answers() -> list[object]:
    """Return LangGraph's own, mutable list of the answers to this task."""
    scratchpad = get_config().get("configurable", {}).get(_SCRATCHPAD)
    resume: object = getattr(scratchpad, "resume", None)
    return cast("list[object]", resume) if isinstance(resume, list) else []


def _is_valid(answer: object, model: type[Answer | ReconcileAnswer]) -> bool:
    try:
        model.model_validate(answer)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=KEPT)
def _json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a model, made once: each pause shows it again."""
    schema = model.model_json_schema()
    # In place of each reference: pydantic takes no schema with references to its own
    # definitions from a class.
    named: dict[str, Any] = schema.pop("$defs", {})
    return cast("dict[str, Any]", _inlined(schema, named))


def _inlined(schema: object, named: Mapping[str, Any]) -> object:
    if isinstance(schema, list):
        return [_inlined(one, named) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    members = cast("dict[str, object]", schema)
    name = str(members.get("$ref", "")).removeprefix("#/$defs/")
    if name in named:
        return _inlined(named[name], named)
    return {key: _inlined(value, named) for key, value in members.items()}


@lru_cache(maxsize=KEPT)
def answer_form(model: type[BaseModel]) -> type[Any]:
    """Return what LangGraph validates an answer by and shows as its JSON Schema.

    LangGraph makes the JSON Schema of a model at each pause. A turn of many calls
    pauses each of them again whenever one is answered, so this one is made once.
    """

    class Form:
        @classmethod
        def __get_pydantic_core_schema__(
            cls, _source: object, _handler: GetCoreSchemaHandler
        ) -> CoreSchema:
            # What the model raises goes on as it is.
            return core_schema.no_info_plain_validator_function(model.model_validate)

        @classmethod
        def __get_pydantic_json_schema__(
            cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler
        ) -> dict[str, Any]:
            return _json_schema(model)

    return Form


@lru_cache(maxsize=KEPT)
def _answer_model(
    item_id: str, action_hash: str, allow: tuple[Verb, ...], schema: bytes | None
) -> type[Answer]:
    kinds = tuple(_DECISIONS[verb] for verb in allow) + _ENDINGS
    parsed = None if schema is None else strict_json.parse_object(schema)

    class Bound(Answer):
        @model_validator(mode="after")
        def _is_complete(self) -> Self:
            _check(self, parsed)
            return self

    # As literals, so that an answer to another call, or to this one before an edit, is
    # no answer here.
    fields: dict[str, Any] = {
        "type": (Literal[kinds], ...),
        "item_id": (Literal[item_id], ...),
        "action_hash": (Literal[action_hash], ...),
    }
    return create_model("ApprovalAnswer", __base__=Bound, **fields)


@lru_cache(maxsize=KEPT)
def _reconcile_model(item_id: str, action_hash: str) -> type[ReconcileAnswer]:
    fields: dict[str, Any] = {
        "item_id": (Literal[item_id], ...),
        "action_hash": (Literal[action_hash], ...),
    }
    return create_model("ReconcileAnswer", __base__=ReconcileAnswer, **fields)


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
