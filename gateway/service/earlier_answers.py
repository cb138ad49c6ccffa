"""Attach people's earlier answers to the calls that a run submits next.

Only answers of the same run count, the newest of the last day: an agent that asked
which order is meant and then acts on one is reviewed beside the answer. Nothing is
decided by it.
"""

from __future__ import annotations

from dataclasses import replace

from twokey.gateway.approvals.precedents import DAY_MS
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol.questions import Answered
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.service.proposals import Proposal
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

MOST_SETS = 3
"""Answered sets of questions that a card has at most."""


async def with_answers(
    store: Store, keys: Keys, tenant: str, run_ref: RunRef, proposal: Proposal
) -> Proposal:
    """Return what is to be opened, with the answers beside calls that people decide.

    Raises:
        StoreUnavailable: when the run's approvals cannot be read.
    """
    if not any(map(_is_reviewed, proposal.approvals)):
        return proposal
    listed = await store.approvals.answered_of_run(keys, tenant, run_ref)
    found = await store.approvals.load_each(one.id for one in reversed(listed))
    answered = tuple(one for loaded in found if (one := _answer_in(loaded)))
    approvals = [
        one.with_(answered=answered[:MOST_SETS]) if _is_reviewed(one) else one
        for one in proposal.approvals
    ]
    return replace(proposal, approvals=tuple(approvals))


def _is_reviewed(approval: Approval) -> bool:
    return not (approval.is_auto_approved or approval.is_question)


def _answer_in(loaded: Loaded) -> Answered | None:
    item = loaded.approval.items[0]
    decision = item.decision
    if not item.is_question or decision is None:
        return None
    if decision.at_ms <= loaded.now_ms - DAY_MS:
        return None
    return Answered(text=decision.text, by=decision.by, at_ms=decision.at_ms)
