"""Pause with LangGraph's interrupt until a person gives a valid decision."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast, get_args

from langchain.agents.middleware.types import ToolCallRequest
from langgraph.config import get_config
from langgraph.types import interrupt
from pydantic import (
    BaseModel,
    ValidationError,
)

from keyturn.agent import turns
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import edits, strict_json, wire
from keyturn.gateway.protocol.records import Verb
from keyturn.gateway.protocol.strict_json import JsonObject

_SCRATCHPAD = "__pregel_scratchpad"
"""The key under which LangGraph stores the answers to a task's interrupts (private)."""

_A = TypeVar("_A", wire.Answer, wire.ReconcileAnswer)

_ENDINGS = tuple(kind.value for kind in wire.AnswerKind if kind.value not in {*Verb})
"""Kinds of answers without a decision of people."""

_FINDINGS: Final[tuple[str, ...]] = get_args(wire.FindingWord)


@dataclass(frozen=True)
class Expected(Generic[_A]):
    """The requirements on an answer to one interrupt.

    Attributes:
        model: the model of all answers of this kind.
        item_id: the call in question.
        action_hash: hash of the request; answers from before an edit do not match it.
        kinds: the allowed types of answer.
        args_schema: the schema of edited arguments; None when the tool declares none.
    """

    model: type[_A]
    item_id: str
    action_hash: str
    kinds: tuple[str, ...]
    args_schema: JsonObject | None = None

    def parse(self, answer: object) -> _A:
        """Return a valid answer.

        Raises:
            ValueError: when it is invalid.
        """
        # An answer that is already an object may belong to another interrupt.
        members: object = dict(answer) if isinstance(answer, BaseModel) else answer
        try:
            found = self.model.model_validate(members)
        except ValidationError as error:
            rows = error.errors()
            said = (f"{'.'.join(map(str, row['loc']))}: {row['msg']}" for row in rows)
            raise ValueError("; ".join(said)) from error
        if found.item_id != self.item_id or found.action_hash != self.action_hash:
            raise ValueError("the answer is for another call, or predates an edit")
        if found.type not in self.kinds:
            raise ValueError(f"`type` is one of {', '.join(self.kinds)}")
        if isinstance(found, wire.Answer):
            _check(found, self.args_schema)
        return found

    def accepts(self, answer: object) -> bool:
        """Return True if an answer is valid."""
        try:
            self.parse(answer)
        except ValueError:
            return False
        return True


def is_alone(request: ToolCallRequest) -> bool:
    """Return True if this call has a separate task, and therefore its own answers.

    A jump to the tools node runs all calls of a message in one task, where LangGraph
    cannot assign answers to calls.
    """
    # LangChain sends each call to the tools node as a separate task (PUSH); a jump
    # triggers the node through its edge (PULL).
    path = cast("Any", get_config().get("metadata", {})).get("langgraph_path", ())
    if not path or path[0] != "__pregel_pull":
        return True
    asking = turns.requesting_message(request.state, request.tool_call["id"] or "")
    return asking is not None and len(asking.tool_calls) == 1


def request_decision(
    verdict: wire.Verdict, args: JsonObject, *, is_again: bool = False
) -> wire.Answer:
    """Pause until this call is decided; return the decision.

    All code up to the pause is pure, because LangGraph runs it again whenever a sibling
    is answered. If an invalid answer is saved, the question is repeated, in the order
    in which LangGraph replays answers. LangGraph itself must not validate it: answers
    to the tool's interrupts may be saved before this one.

    With ``is_again`` the call went back to reviewers.

    An earlier middleware may handle a call twice in one run of its task, for example to
    retry. The second time gets the same answer: LangGraph would treat the same question
    as a new one.
    """
    expected = expected_answer(verdict)
    if not is_again and (known := _given_here(expected)) is not None:
        return known
    question: JsonObject = {
        "type": wire.APPROVAL_INTERRUPT,
        "v": 1,
        "item_id": verdict.item_id,
        "tool": verdict.tool,
        "tool_call_id": verdict.tool_call_id,
        "args": args,
        "action_hash": verdict.action_hash,
        "allow": [str(verb) for verb in verdict.allow],
    }
    answer = _latest(_interrupt(question, expected), expected)
    _keep_given(expected, answer)
    return answer


_MOST_GIVEN = 1_000
_given: OrderedDict[int, tuple[object, Expected[wire.Answer], wire.Answer]] = (
    OrderedDict()
)
"""The last answer in each run of a task, by scratchpad id: scratchpad, question,
answer. LangGraph creates a scratchpad for each run. A context variable does not work:
LangSmith handles each call in a separate context.
"""


def _keep_given(expected: Expected[wire.Answer], answer: wire.Answer) -> None:
    run = _scratchpad()
    _given[id(run)] = (run, expected, answer)
    if len(_given) > _MOST_GIVEN:
        _given.popitem(last=False)


def _given_here(expected: Expected[wire.Answer]) -> wire.Answer | None:
    """Return the answer that this run of the task already got, or None."""
    here = _scratchpad()
    run, asked, answer = _given.get(id(here), (None, None, None))
    is_here = run is not None and run is here
    return answer if is_here and asked == expected else None


def request_reconciliation(verdict: wire.Verdict) -> wire.ReconcileAnswer:
    """Pause until a person has reconciled an execution in doubt."""
    question: JsonObject = {
        "type": wire.RECONCILE_INTERRUPT,
        "v": 1,
        "item_id": verdict.item_id,
        "tool": verdict.tool,
        "action_hash": verdict.action_hash,
        "allow": ["executed", "rerun", "skip"],
    }
    expected = _expected_finding(verdict)
    return _interrupt(question, expected)


def drop_findings(verdict: wire.Verdict) -> None:
    """Remove findings about this call from the saved answers of the running task.

    A node that asks again after a doubt runs from its start. By then the doubt is
    resolved and the saved finding would stay unread; the next interrupt would consume
    it.
    """
    saved = _saved_answers()
    expected = _expected_finding(verdict)
    # In place: the next `interrupt` reads from this list, which LangGraph owns.
    saved[:] = [each for each in saved if not expected.accepts(each)]


def expected_answer(verdict: wire.Verdict) -> Expected[wire.Answer]:
    """Return the requirements on answers to this interrupt."""
    kinds = (*(verb.value for verb in verdict.allow), *_ENDINGS)
    about = (verdict.item_id, verdict.action_hash)
    return Expected(wire.Answer, *about, kinds, verdict.args_schema)


def _expected_finding(verdict: wire.Verdict) -> Expected[wire.ReconcileAnswer]:
    return Expected(
        wire.ReconcileAnswer, verdict.item_id, verdict.action_hash, _FINDINGS
    )


def _interrupt(question: JsonObject, expected: Expected[_A]) -> _A:
    """Pause until there is a valid answer."""
    errors: list[str] = []
    while True:
        answer: object = interrupt({**question, "errors": list(errors)})
        try:
            return expected.parse(answer)
        except ValueError as error:
            # Not raised: each resume replays a saved invalid answer, and would stop the
            # thread each time.
            errors = [str(error)[:300]]


def _latest(answer: wire.Answer, expected: Expected[wire.Answer]) -> wire.Answer:
    """Return the last answer to this interrupt, and remove its duplicates.

    LangGraph saves the answers to a task even when the task then fails or is cancelled.
    The interrupt stays open, so the answer is sent again, and LangGraph appends it to
    the saved one (`langgraph.pregel._algo._scratchpad`, 1.2). The next interrupt of
    this task would then get the duplicate: a reconciliation, or an interrupt of the
    tool. A call that went back to reviewers has two answers; the last one counts.
    """
    saved = _saved_answers()
    # By content: the same list contains the answers to the tool's interrupts.
    places = [at for at, each in enumerate(saved) if expected.accepts(each)]
    if not places:
        return answer
    saved[places[0]] = saved[places[-1]]
    for at in reversed(places[1:]):
        del saved[at]
    return expected.parse(saved[places[0]])


def _saved_answers() -> list[object]:
    """Return LangGraph's mutable list of the answers to this task."""
    resume: object = getattr(_scratchpad(), "resume", None)
    return cast("list[object]", resume) if isinstance(resume, list) else []


def _scratchpad() -> object:
    return get_config().get("configurable", {}).get(_SCRATCHPAD)


def _check(answer: wire.Answer, schema: JsonObject | None) -> None:
    is_edit = answer.type is wire.AnswerKind.EDIT
    if is_edit != (answer.args is not None):
        raise ValueError("`args` are required for an edit and not allowed otherwise")
    if answer.type is wire.AnswerKind.RESPOND and not answer.message.strip():
        raise ValueError("a response needs a `message`")
    if answer.args is None:
        return
    try:
        args = strict_json.accept_object(answer.args)
    except BadJson as error:
        raise ValueError(str(error)) from error
    errors = edits.argument_errors(schema, args)
    if errors:
        raise ValueError("; ".join(f"{at}: {why}" for at, why in errors.items()))
