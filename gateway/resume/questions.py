"""Open questions of a thread, and the answers that fit them."""

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
"""Exceptions of a validator for a value that is not a schema."""


class AnswerFound(Protocol):
    """Reviewers' answer; ``times`` counts the earlier revocations."""

    @property
    def answer(self) -> JsonObject:
        """Return the value to resume the agent's run with."""
        ...

    @property
    def times(self) -> int:
        """Return the number of times that the call's authorization was revoked."""
        ...


@dataclass
class Answers:
    """Answers that can be sent now, by interrupt id.

    ``fingerprint`` depends on the answer and its item, not on the interrupt's id: a
    repeated question with the same fingerprint means that its answer was refused.
    ``unfit`` are items whose answer the agent's own schema would refuse. One bad answer
    in a map raises after the good ones have run, so it is never sent.
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
        """Return the available answers to a thread's open questions."""
        answers = cls()
        for one in pending:
            question = question_of(one)
            if question is not None and question in found:
                answers.offer(one, question, found[question])
        return answers

    def offer(
        self, pending: PendingInterrupt, question: OpenQuestion, found: AnswerFound
    ) -> None:
        """Add an answer, unless the agent's schema would refuse it."""
        if not fits(found.answer, pending.schema):
            self.unfit.append(question.item_id)
            return
        # After a revocation an equal answer is new, not refused.
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
    """Read an open question; None for a question of another library."""
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
    """Return Keyturn's questions of a thread, each once."""
    questions = (question_of(one) for one in pending)
    return tuple(dict.fromkeys(one for one in questions if one is not None))


def asked_items(pending: Sequence[PendingInterrupt]) -> frozenset[str]:
    """Return the ids of the items that a thread still asks about."""
    return frozenset(one.item_id for one in questions_of(pending))


def fits(answer: JsonObject, schema: JsonObject | None) -> bool:
    """Return True if the agent's schema accepts an answer.

    The schema itself is not checked first, because that is the most expensive step. An
    invalid schema leaves the check to the agent. An empty registry prevents a schema
    from fetching anything.
    """
    if schema is None:
        return True
    validator: Any = Draft202012Validator(schema, registry=Registry())
    try:
        return bool(validator.is_valid(answer))
    except _NO_SCHEMA:
        return True
