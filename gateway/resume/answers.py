"""Find available answers to a thread's pending interrupts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType
from referencing import Registry
from referencing.exceptions import Unresolvable

from twokey.gateway.approvals.lifecycle import UNEXECUTED
from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.approvals.resume_value import answer_for, unknown_answer
from twokey.gateway.errors import CorruptRecord, GraphError
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.answer_schema import takes
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    Answer,
    FindingWord,
    ReconcileAnswer,
)
from twokey.gateway.resume.runner import PendingInterrupt
from twokey.gateway.service.call_outcomes import reconcile_answer
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

_CORRUPT = "The gateway's record of this call is corrupt."
_LOST = "The gateway has no record of this call, or has it no longer."

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


async def answers_for(
    store: Store,
    agent: str,
    thread: str,
    pending: Sequence[PendingInterrupt],
    read: Mapping[str, Approval] | None = None,
) -> Answers:
    """Collect the answers of all decided items that this thread asks about.

    A question counts only when our own record says that its item belongs to this
    thread's run and to this hash: the question itself is the agent's word.
    ``read`` are approvals by id that were just read.

    Raises:
        GraphError: when the agent gives itself another name than the settings do.
    """
    answers = Answers()
    # The calls of a turn share a card: it is read once, not once for each of them.
    cards: dict[str, Approval | None] = {**(read or {})}
    for one in pending:
        question = question_of(one)
        if question is None:
            continue
        try:
            found = await _item(store, question.item_id, cards)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
            answers.add(question, _unknown(question, _CORRUPT))
            continue
        if found is None:
            # A record is kept while its item is open: this one ended long ago, the
            # store lost it, or it never was. Nobody can decide it, so nobody waits.
            logger.warning("record.unknown item=%s", question.item_id)
            answers.add(question, _unknown(question, _LOST))
            answers.lost.append(question.item_id)
            continue
        # A copied thread asks with the ids of the original, and gets no answer.
        if found[0].thread != thread:
            continue
        run_ref, item = found
        if run_ref.agent != agent:
            raise GraphError(
                f"The graph of the agent {agent!r} calls itself {run_ref.agent!r}; "
                f"write ApprovalMiddleware({agent!r}), or use agent={run_ref.agent!r}."
            )
        # With what was requested: the question stays as it was when people edit the
        # call.
        if question.action_hash != digest.action_hash(item.requested):
            continue
        answer = _answer(question, item)
        if answer is None:
            continue
        if _is_taken(question, answer, one.schema):
            # After a revocation the same answer is a new one, and not a refused one.
            times = item.revoked.times if item.revoked else 0
            answers.add(question, answer, times=times)
        else:
            answers.unfit.append(item.id)
    return answers


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


def _answer(question: Question, item: Item) -> JsonObject | None:
    if question.kind == RECONCILE_INTERRUPT:
        found = _reconciled(item)
        return None if found is None else found.model_dump(mode="json")
    answer = answer_for(item)
    if answer is None:
        return None
    # An agent that waits since before an upgrade does not know these members.
    news = {"has_started": answer.has_started, "answers": answer.answers is not None}
    unsaid = {name for name, is_said in news.items() if not is_said}
    return answer.model_dump(mode="json", exclude=unsaid)


def _unknown(question: Question, why: str) -> JsonObject:
    """Return the answer that lets a thread go on without what nobody knows."""
    about = (question.item_id, question.action_hash)
    if question.kind == APPROVAL_INTERRUPT:
        return unknown_answer(*about, why).model_dump(mode="json")
    item_id, action_hash = about
    found = ReconcileAnswer(
        type="skip", item_id=item_id, action_hash=action_hash, message=why
    )
    return found.model_dump(mode="json")


def _reconciled(item: Item) -> ReconcileAnswer | None:
    """Say what a person found out, from where the item stands now.

    A stored result (the owner that seemed dead came back) is fetched by asking for
    the claim again: it is given back, and nothing runs.
    """
    words: dict[ItemState, FindingWord] = {
        # What people confirmed outweighs a failure that the tool had reported.
        ItemState.EXECUTED: "rerun" if item.result and item.result.ok else "executed",
        ItemState.FAILED: "rerun" if item.result else "skip",
        ItemState.AUTHORIZED: "rerun",
        ItemState.EXECUTING: "rerun",
        # Only an older copy of the store has others than that.
        **dict.fromkeys(UNEXECUTED, "skip"),
    }
    word = words.get(item.state)
    if word is None:
        return None
    return reconcile_answer(item, word)


async def _item(
    store: Store, item_id: str, cards: dict[str, Approval | None]
) -> tuple[RunRef, Item] | None:
    """Return an item and its run; ``cards`` keeps the approvals that were read."""
    try:
        approval_id, index = approval_of(item_id)
    except ValueError:
        return None
    if approval_id not in cards:
        loaded = await store.approvals.load(approval_id)
        cards[approval_id] = loaded.approval if loaded else None
    approval = cards[approval_id]
    if approval is None or index >= len(approval.items):
        return None
    return approval.run_ref, approval.items[index]
