"""Open questions of a thread, and which answers fit them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType
from referencing import Registry
from referencing.exceptions import Unresolvable

from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import APPROVAL_INTERRUPT, RECONCILE_INTERRUPT
from keyturn.gateway.resume.runner import PendingInterrupt

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


class AnswerFound(Protocol):
    """What people answered; ``times`` counts how often it was taken back before."""

    @property
    def answer(self) -> JsonObject:
        """Return what the agent's run is resumed with."""
        ...

    @property
    def times(self) -> int:
        """Return how often an authorization of the call was taken back."""
        ...


@dataclass
class Answers:
    """What can be sent now, by interrupt id, and what each of them answers.

    ``fingerprint`` is the same for the same answer to the same item, whatever the
    interrupt's id is: an answer that comes back as a question again was refused.
    ``unfit`` are items whose answer the agent's own schema would refuse. One bad
    answer in a map raises after its good siblings ran, so it is never sent.
    """

    ready: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    fingerprint: dict[str, str] = field(default_factory=dict[str, str])
    unfit: list[str] = field(default_factory=list[str])

    @classmethod
    def to(
        cls,
        pending: Iterable[PendingInterrupt],
        found: Mapping[OpenQuestion, AnswerFound],
    ) -> Answers:
        """Return the answers that were found to open questions of a thread."""
        answers = cls()
        for one in pending:
            question = question_of(one)
            if question is not None and question in found:
                answers.offer(one, question, found[question])
        return answers

    def offer(
        self, pending: PendingInterrupt, question: OpenQuestion, found: AnswerFound
    ) -> None:
        """Add an answer, unless the agent's own schema would refuse it."""
        if not fits(found.answer, pending.schema):
            self.unfit.append(question.item_id)
            return
        # After a revocation the same answer is a new one, and not a refused one.
        about = [question.kind, question.item_id, found.times]
        body = json.dumps([*about, found.answer], sort_keys=True)
        self.ready[pending.id] = found.answer
        self.fingerprint[pending.id] = body

    def without(self, sent: set[str]) -> Answers:
        """Return the answers that were not sent yet."""
        fresh = [one for one in self.ready if self.fingerprint[one] not in sent]
        return Answers(
            ready={one: self.ready[one] for one in fresh},
            fingerprint={one: self.fingerprint[one] for one in fresh},
            unfit=self.unfit,
        )


def question_of(pending: PendingInterrupt) -> OpenQuestion | None:
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
    return OpenQuestion(
        kind="keyturn.approval" if kind == APPROVAL_INTERRUPT else "keyturn.reconcile",
        item_id=item_id,
        action_hash=str(value.get("action_hash", "")),
    )


def questions_of(pending: Iterable[PendingInterrupt]) -> tuple[OpenQuestion, ...]:
    """Return the questions of ours among a thread's, each once."""
    questions = (question_of(one) for one in pending)
    return tuple(dict.fromkeys(one for one in questions if one is not None))


def asked_items(pending: Sequence[PendingInterrupt]) -> frozenset[str]:
    """Return the ids of the items that a thread still asks about."""
    return frozenset(one.item_id for one in questions_of(pending))


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
