"""Answer an agent's open questions from the records of what people decided."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from twokey.gateway.approvals.lifecycle import UNEXECUTED
from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.approvals.resume_value import answer_for, unknown_answer
from twokey.gateway.errors import CorruptRecord, GraphError
from twokey.gateway.failures import log_failure
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    APPROVAL_INTERRUPT,
    RECONCILE_INTERRUPT,
    FindingWord,
    ReconcileAnswer,
)
from twokey.gateway.service.call_outcomes import reconcile_answer
from twokey.gateway.service.proven_words import NOT_TOLD, are_proven, proven_words
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

_CORRUPT = "The gateway's record of this call is corrupt."
_LOST = "The gateway has no record of this call, or has it no longer."

Concerns = Callable[[Approval], bool]
"""Returns whether who asks may hear of an approval at all."""


@dataclass(frozen=True)
class Asked:
    """What an agent asks: which item it is about, its hash, and of which kind."""

    kind: str
    item_id: str
    action_hash: str


@dataclass(frozen=True)
class Found:
    """An answer to a question.

    Attributes:
        answer: what the agent's run is resumed with.
        times: how often an authorization of the call was taken back: the same answer
            after that is a new one.
        is_unknown: nobody knows, since the record is lost or damaged.
        is_lost: there is no record.
    """

    answer: JsonObject
    times: int = 0
    is_unknown: bool = False
    is_lost: bool = False


def everybody(_: Approval) -> bool:
    """Let who asks hear of every approval: they run in the gateway's process."""
    return True


async def find_answer(
    store: Store,
    run: RunRef,
    asked: Asked,
    cards: dict[str, Approval | None],
    concerns: Concerns = everybody,
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
        return Found(_unknown(asked, _CORRUPT), is_unknown=True)
    if found is None:
        # A record is kept while its item is open: this one ended long ago, the store
        # lost it, or it never was. Nobody can decide it, so nobody waits.
        logger.warning("record.unknown item=%.100r", asked.item_id)
        return Found(_unknown(asked, _LOST), is_unknown=True, is_lost=True)
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
        return Found(_unknown(asked, NOT_TOLD), is_unknown=True)
    times = item.revoked.times if item.revoked else 0
    return None if answer is None else Found(answer, times)


def _answer(asked: Asked, item: Item) -> JsonObject | None:
    if asked.kind == RECONCILE_INTERRUPT:
        found = _reconciled(item)
        return None if found is None else found.model_dump(mode="json")
    answer = answer_for(item)
    if answer is None:
        return None
    # An agent that waits since before an upgrade does not know these members.
    news = {"has_started": answer.has_started, "answers": answer.answers is not None}
    unsaid = {name for name, is_said in news.items() if not is_said}
    return answer.model_dump(mode="json", exclude=unsaid)


def _unknown(asked: Asked, why: str) -> JsonObject:
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
