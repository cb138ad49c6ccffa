"""Answer an agent's open questions from the recorded decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.approvals.resume_value import answer_for, unknown_answer
from keyturn.gateway.errors import CorruptRecord, GraphError
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    Finding,
    ItemState,
    RunRef,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    CallOutcome,
    FindingWord,
    LateReport,
    ReconcileAnswer,
)
from keyturn.gateway.service.proving import NOT_TOLD, are_proven, proven_words
from keyturn.gateway.store.store import Store


def reconcile_answer(item: Item, word: FindingWord) -> ReconcileAnswer:
    """Return the finding about an execution in doubt, with the reviewers' notes."""
    # Not `observations_now`: the fence rises with the next start, and the observations
    # are about the start before.
    latest = max((one.fence for one in item.observations), default=0)
    seen = [one for one in item.observations if one.fence == latest]
    return ReconcileAnswer(
        type=word,
        item_id=item.id,
        action_hash=digest.action_hash(item.requested),
        message=" / ".join(one.note for one in seen if one.note),
        by=seen[-1].by if seen else None,
    )


def found_by_people(item: Item) -> ReconcileAnswer | None:
    """Return the finding, unless the executor's result replaces it."""
    result = item.result
    if item.finding is Finding.EXECUTED and not (result and result.ok):
        return reconcile_answer(item, "executed")
    if item.finding is Finding.SKIP and result is None:
        return reconcile_answer(item, "skip")
    return None


def last_finding(item: Item) -> ReconcileAnswer | None:
    """Return the finding of the last reconciliation; None without one."""
    if item.finding is None:
        return None
    return reconcile_answer(item, item.finding.value)


def late_report(item: Item) -> LateReport | None:
    """Return the result that arrived after a reconciliation of the call, or None."""
    if item.late_result is None or item.finding is None:
        return None
    began_again = item.finding is Finding.RERUN and not item.observations_now
    return LateReport(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        ok=item.late_result.ok,
        summary=item.late_result.summary,
        is_apart=began_again,
    )


def told_edit(item: Item) -> EditRecord | None:
    """Return the edit of a call for its agent, with the outcome of the call."""
    if item.edit is None:
        return None
    outcome = EditOutcome.UNKNOWN
    if item.state is ItemState.EXECUTED:
        outcome = EditOutcome.EXECUTED
    elif item.state is ItemState.FAILED and item.result and item.finding is None:
        outcome = item.result.edit_outcome
    elif item.state in UNEXECUTED and not (item.has_started or item.is_restored):
        outcome = EditOutcome.NOT_RUN
    return item.edit.with_(outcome=outcome)


def outcome_of(item: Item) -> CallOutcome:
    """Return the outcome of a recorded call, to repair an interrupted turn."""
    return CallOutcome(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        tool=item.tool,
        state=item.state,
        answer=answer_for(item),
        edit=told_edit(item),
        result=item.result,
        reconcile_answer=found_by_people(item),
        reconciled=last_finding(item),
    )


def unproven_outcome(item: Item) -> CallOutcome:
    """Return the outcome of a call whose record could not be verified."""
    return CallOutcome(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        tool=item.tool,
        state=item.state,
        answer=unknown_answer(item.id, digest.action_hash(item.requested), NOT_TOLD),
    )


def requested_before(item: Item) -> str:
    """Return the document of the request when only its state has changed."""
    has_changed = item.edit is None and item.action != item.requested
    return item.requested if has_changed else ""


logger = logging.getLogger(__name__)

_CORRUPT = "The gateway's record of this call is corrupt."
_LOST = "The gateway has no record of this call, or has it no longer."

Concerns = Callable[[Approval], bool]
"""Returns whether an approval may be revealed to the caller."""


@dataclass(frozen=True)
class Found:
    """An answer to a question; ``is_lost`` where the store has no record of its call.

    ``times`` counts how often the call's authorization was revoked: an equal answer
    with a higher count is a new answer.
    """

    answer: JsonObject
    times: int = 0
    is_lost: bool = False


def everybody(_: Approval) -> bool:
    """Return True: a caller in the gateway's process may read every approval."""
    return True


async def find_answers(
    store: Store,
    run: RunRef,
    questions: Iterable[OpenQuestion],
    concerns: Concerns = everybody,
) -> dict[OpenQuestion, Found]:
    """Return the answers to a run's questions that have one; see `find_answer`.

    Raises:
        GraphError: when the agent's name differs from the one in its record.
        StoreUnavailable: when the store does not answer.
    """
    found: dict[OpenQuestion, Found] = {}
    # The calls of a turn share a card; read it once.
    cards: dict[str, Approval | None] = {}
    for asked in questions:
        answer = await find_answer(store, run, asked, cards, concerns)
        if answer is not None:
            found[asked] = answer
    return found


async def find_answer(
    store: Store,
    run: RunRef,
    asked: OpenQuestion,
    cards: dict[str, Approval | None],
    concerns: Concerns,
) -> Found | None:
    """Return the answer to a question of a run; None while there is none.

    The question comes from the agent and is not trusted. It is answered only if the
    gateway's record has the item for this run and this hash.

    Args:
        store: where the records are.
        run: the run that asks.
        asked: the question.
        cards: cache of approvals by id; approvals that are read are added.
        concerns: returns whether an approval may be revealed to the run.

    Raises:
        GraphError: when the agent's name differs from the one in its record.
        StoreUnavailable: when the store does not answer.
    """
    try:
        found = await _item(store, asked.item_id, cards, concerns)
    except CorruptRecord as error:
        log_failure(logger, error, "record.corrupt")
        return Found(_unknown(asked, _CORRUPT))
    if found is None:
        # A record is kept while its item is open. This item ended long ago, was lost by
        # the store, or never existed. It cannot be decided, so the thread goes on.
        logger.warning("record.unknown item=%.100r", asked.item_id)
        return Found(_unknown(asked, _LOST), is_lost=True)
    approval, item = found
    run_ref = approval.run_ref
    # A copied thread asks with the ids of the original, and gets no answer.
    if run_ref.thread != run.thread:
        return None
    if run_ref.agent != run.agent:
        raise GraphError(
            f"The graph of the agent {run.agent!r} calls itself {run_ref.agent!r}; "
            f"write ApprovalMiddleware({run.agent!r}), or use agent={run_ref.agent!r}."
        )
    # Compared with the request: an edit of the call does not change the question.
    if asked.action_hash != digest.action_hash(item.requested):
        return None
    answer = _answer(asked, proven_words(store, approval, item))
    if answer is not None and not await are_proven(store, approval, item):
        return Found(_unknown(asked, NOT_TOLD))
    times = item.revoked.times if item.revoked else 0
    return None if answer is None else Found(answer, times)


def _answer(asked: OpenQuestion, item: Item) -> JsonObject | None:
    if asked.kind == RECONCILE_INTERRUPT:
        found = _reconciled(item)
        return None if found is None else found.model_dump(mode="json")
    answer = answer_for(item)
    if answer is None:
        return None
    return answer.model_dump(mode="json")


def _unknown(asked: OpenQuestion, why: str) -> JsonObject:
    """Return an answer without a decision, so that the thread can continue."""
    about = (asked.item_id, asked.action_hash)
    if asked.kind == APPROVAL_INTERRUPT:
        return unknown_answer(*about, why).model_dump(mode="json")
    item_id, action_hash = about
    found = ReconcileAnswer(
        type="skip", item_id=item_id, action_hash=action_hash, message=why
    )
    return found.model_dump(mode="json")


def _reconciled(item: Item) -> ReconcileAnswer | None:
    """Return the answer to a reconciliation, from the item's current state.

    "rerun" makes the agent claim again. If the owner that seemed dead has stored a
    result by then, that claim returns the result and nothing runs.
    """
    words: dict[ItemState, FindingWord] = {
        # A confirmation by people outweighs a failure that the tool reported.
        ItemState.EXECUTED: "rerun" if item.result and item.result.ok else "executed",
        ItemState.FAILED: "rerun" if item.result else "skip",
        ItemState.AUTHORIZED: "rerun",
        ItemState.EXECUTING: "rerun",
        # These states occur only after a restore of an older copy of the store.
        **dict.fromkeys(UNEXECUTED, "skip"),
    }
    word = words.get(item.state)
    if word is None:
        return None
    return reconcile_answer(item, word)


async def _item(
    store: Store, item_id: str, cards: dict[str, Approval | None], concerns: Concerns
) -> tuple[Approval, Item] | None:
    """Return an item and its record; approvals that are read are added to ``cards``."""
    try:
        approval_id, index = approval_of(item_id)
    except ValueError:
        return None
    if approval_id not in cards:
        loaded = await store.approvals.load(approval_id)
        cards[approval_id] = loaded.approval if loaded else None
    approval = cards[approval_id]
    if approval is None or index >= len(approval.items) or not concerns(approval):
        return None
    return approval, approval.items[index]
