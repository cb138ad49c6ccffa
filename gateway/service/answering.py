"""Answer an agent's open questions from the records of what people decided."""

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
    """Return what people found out about an execution in doubt, with their notes."""
    # Not `observations_now`: after "run it again" the fence rises with the next start,
    # and what people found is about the start before.
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
    """Return what people found out, unless the executor's own result is to be read."""
    result = item.result
    if item.finding is Finding.EXECUTED and not (result and result.ok):
        return reconcile_answer(item, "executed")
    if item.finding is Finding.SKIP and result is None:
        return reconcile_answer(item, "skip")
    return None


def last_finding(item: Item) -> ReconcileAnswer | None:
    """Return what people found at the last reconciliation; None without one."""
    if item.finding is None:
        return None
    return reconcile_answer(item, item.finding.value)


def late_report(item: Item) -> LateReport | None:
    """Return what was reported after people had reconciled the call, or None."""
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
    """Return the edit of a call as its agent is told: with what became of the call."""
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
    """Return the outcome of a held call, for repairing a turn that was cut off."""
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
    """Return the outcome of a call of which the record says what nobody has proven."""
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
"""Returns whether who asks may hear of an approval at all."""


@dataclass(frozen=True)
class Found:
    """An answer to a question; ``is_lost`` where the store has no record of its call.

    ``times`` counts how often an authorization of the call was taken back: the same
    answer after that is a new one.
    """

    answer: JsonObject
    times: int = 0
    is_lost: bool = False


def everybody(_: Approval) -> bool:
    """Let who asks hear of every approval: they run in the gateway's process."""
    return True


async def find_answers(
    store: Store,
    run: RunRef,
    questions: Iterable[OpenQuestion],
    concerns: Concerns = everybody,
) -> dict[OpenQuestion, Found]:
    """Return the answers to those questions of a run that have one; see `find_answer`.

    Raises:
        GraphError: when the agent gives itself another name than in its record.
        StoreUnavailable: when the store does not answer.
    """
    found: dict[OpenQuestion, Found] = {}
    # The calls of a turn share a card: it is read once, not once for each of them.
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

    A question counts only when our own record says that its item belongs to this run
    and to this hash: the question itself is the agent's word.

    Args:
        store: where the records are.
        run: asks.
        asked: the question.
        cards: approvals by id that were just read; what is read is added.
        concerns: says of which approvals the run may hear.

    Raises:
        GraphError: when the agent gives itself another name than in its record.
        StoreUnavailable: when the store does not answer.
    """
    try:
        found = await _item(store, asked.item_id, cards, concerns)
    except CorruptRecord as error:
        log_failure(logger, error, "record.corrupt")
        return Found(_unknown(asked, _CORRUPT))
    if found is None:
        # A record is kept while its item is open: this one ended long ago, the store
        # lost it, or it never was. Nobody can decide it, so nobody waits.
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
    # With what was requested: the question stays as it was when people edit the call.
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
    """Return the answer that lets a thread go on without what nobody knows."""
    about = (asked.item_id, asked.action_hash)
    if asked.kind == APPROVAL_INTERRUPT:
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
    store: Store, item_id: str, cards: dict[str, Approval | None], concerns: Concerns
) -> tuple[Approval, Item] | None:
    """Return an item and its record; ``cards`` keeps the approvals that were read."""
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
