"""Open questions of a thread, and which answers fit them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType
from referencing import Registry
from referencing.exceptions import Unresolvable

from twokey.gateway.protocol.answer_schema import takes
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    Answer,
    ReconcileAnswer,
)
from twokey.gateway.resume.runner import PendingInterrupt

_NO_SCHEMA = (
    AttributeError,
    KeyError,
    RecursionError,
    SchemaError,
    TypeError,
    UnknownType,
    Unresolvable,
    ValueError,
)
"""What a validator raises over something that is not a schema."""


@dataclass(frozen=True)
class Question:
    """An open question of ours: which item it is about, and of which kind."""

    interrupt: str
    kind: str
    item_id: str
    action_hash: str


@dataclass
class Answers:
    """What can be sent now, by interrupt id, and what each of them answers.

    ``fingerprint`` is the same for the same answer to the same item, whatever the
    interrupt's id is: an answer that comes back as a question again was refused.
    ``unfit`` are items whose answer the agent's own schema would refuse. One bad
    answer in a map raises after its good siblings ran, so it is never sent.
    ``lost`` are items of which the store has no record.
    """

    ready: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    fingerprint: dict[str, str] = field(default_factory=dict[str, str])
    unfit: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])

    def add(self, question: Question, answer: JsonObject, *, times: int = 0) -> None:
        """Add an answer; ``times`` counts how often the question was asked before."""
        about = [question.kind, question.item_id, times]
        body = json.dumps([*about, answer], sort_keys=True)
        self.ready[question.interrupt] = answer
        self.fingerprint[question.interrupt] = body

    def offer(
        self,
        question: Question,
        answer: JsonObject,
        schema: JsonObject | None,
        *,
        times: int = 0,
    ) -> None:
        """Add an answer, unless the agent's own schema would refuse it."""
        if _is_taken(question, answer, schema):
            self.add(question, answer, times=times)
        else:
            self.unfit.append(question.item_id)

    def without(self, sent: set[str]) -> Answers:
        """Return the answers that were not sent yet."""
        fresh = [one for one in self.ready if self.fingerprint[one] not in sent]
        return Answers(
            ready={one: self.ready[one] for one in fresh},
            fingerprint={one: self.fingerprint[one] for one in fresh},
            unfit=self.unfit,
        )


def question_of(pending: PendingInterrupt) -> Question | None:
    """Read an open question; None when it is not one of ours."""
    given = pending.value
    if not isinstance(given, Mapping):
        return None
    value = cast("Mapping[str, object]", given)
    kind, item_id = value.get("type"), value.get("item_id")
    if kind not in {APPROVAL_INTERRUPT, RECONCILE_INTERRUPT}:
        return None
    if not isinstance(item_id, str):
        return None
    return Question(
        interrupt=pending.id,
        kind=str(kind),
        item_id=item_id,
        action_hash=str(value.get("action_hash", "")),
    )


def asked_items(pending: Sequence[PendingInterrupt]) -> frozenset[str]:
    """Return the ids of the items that a thread still asks about."""
    questions = (question_of(one) for one in pending)
    return frozenset(one.item_id for one in questions if one is not None)


def fits(answer: JsonObject, schema: JsonObject | None) -> bool:
    """Return whether the agent's own schema takes an answer.

    The schema itself is not checked first: that costs more than everything else here,
    and one that is not a schema leaves the check to the agent. An empty registry
    keeps a schema from making us fetch anything.
    """
    if schema is None:
        return True
    validator: Any = Draft202012Validator(schema, registry=Registry())
    try:
        return bool(validator.is_valid(answer))
    except _NO_SCHEMA:
        return True


def _is_taken(
    question: Question, answer: JsonObject, schema: JsonObject | None
) -> bool:
    """Return whether the schema of one of our questions takes an answer to it."""
    is_approval = question.kind == APPROVAL_INTERRUPT
    kind = Answer if is_approval else ReconcileAnswer
    known = None if schema is None else takes(schema, kind, answer)
    return fits(answer, schema) if known is None else known
