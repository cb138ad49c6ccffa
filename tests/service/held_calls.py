"""Request one call as an agent that people have to decide."""

from __future__ import annotations

from keyturn.gateway.approvals.decisions import Click
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.protocol.wire import (
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.service.run.agents import AgentService


async def held_call(
    agents: AgentService,
    reviews: ReviewService,
    ref: TurnRef,
    tool: str = "process_refund",
) -> tuple[Click, ClaimRequest]:
    """Submit a turn of one call; return a click on it and its claim."""
    call = ProposedCall(tool=tool, args={"amount": 1}, tool_call_id="c1")
    (verdict,) = await agents.submit(Turn(ref=ref, calls=(call,)))
    assert verdict.kind is VerdictKind.HOLD
    approval_id, index = approval_of(verdict.item_id)
    item = (await read(reviews, approval_id)).items[index]
    click = Click(
        approval=approval_id, index=index, version=1, action_hash=item.action_hash
    )
    claim = ClaimRequest(
        item_id=verdict.item_id,
        ref=ref,
        tool=verdict.tool,
        tool_call_id=verdict.tool_call_id,
        owner="0" * 32,
    )
    return click, claim


async def read(reviews: ReviewService, approval_id: str) -> Approval:
    """Read an approval that there is."""
    loaded = await reviews.read(approval_id)
    assert loaded
    return loaded.approval
