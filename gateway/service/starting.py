"""Start an authorized call, if its authorization still holds: what claims come to."""

from __future__ import annotations

from twokey.gateway.approvals import executing
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.resume_value import ENDS_WITHOUT_REVIEW, end_reason
from twokey.gateway.approvals.revoking import ask_in_new_state, revoke
from twokey.gateway.errors import BadJson
from twokey.gateway.protocol.business_state import state_in
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    CheckState,
    ClaimReply,
    ClaimRequest,
    Done,
    InDoubt,
    Refused,
    Reopened,
    StateNow,
)
from twokey.gateway.service.call_evaluation import CurrentEvaluation
from twokey.gateway.service.call_outcomes import (
    found_by_people,
    last_finding,
    requested_before,
)
from twokey.gateway.service.denials import freeze_message
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.freezes import names_of

STATE_TOO_LARGE = (
    "What this call depends on changed after it was approved, and the new state is too "
    "large to show to people, so it did not run."
)
_NOT_AUTHORIZED = "Nobody authorized this call, so it must not run."


def start(
    loaded: Loaded,
    item: Item,
    evaluated: CurrentEvaluation,
    *,
    owner: str,
    lease_ms: int,
    state: StateNow | None = None,
    standing: Approval | None = None,
) -> Write | ClaimReply:
    """Start an authorized call, unless its authorization holds no more.

    Args:
        loaded: the record as it stands.
        item: of it.
        evaluated: what the policy of now says of the call.
        owner: the attempt, unique.
        lease_ms: how long the claim stands without a heartbeat.
        state: that the call depends on, as it is now; None where nobody looked.
        standing: the standing approval that covered it, if any.
    """
    approval, now_ms = loaded.approval, loaded.now_ms
    back: Change | CheckState | None = revoke(
        approval,
        item,
        evaluated.policy_now,
        now_ms=now_ms,
        standing=standing,
    )
    # The policy first: a tool that it forbids need not be asked for its state.
    if back is None:
        try:
            back = _in_another_state(loaded, item, state, evaluated.policy_now)
        except BadJson:
            return Refused(reason=STATE_TOO_LARGE, state=item.state)
    if isinstance(back, CheckState):
        return back
    if back is not None:
        is_pending = back.approval.items[item.index].is_pending
        return Write(back, inputs={item.index: evaluated.used} if is_pending else {})
    # Last, so that a frozen call goes back to people when it has to. The script
    # compares the freezes once more, because one may be set right now.
    if evaluated.freeze is not None:
        return Refused(reason=freeze_message(evaluated.freeze), state=item.state)
    return grant(loaded, item, owner=owner, lease_ms=lease_ms, standing=standing)


def grant(
    loaded: Loaded, item: Item, *, owner: str, lease_ms: int, standing: Approval | None
) -> Write:
    """Give one attempt the right to run a call that may run."""
    change = executing.claim(
        loaded.approval, item, owner=owner, lease_ms=lease_ms, now_ms=loaded.now_ms
    )
    names = names_of(loaded.approval.agent, item.tool)
    # The script compares both once more: somebody may stop it right now.
    return Write(change, unfrozen=names, is_fenced=True, standing=standing)


def has_lapsed(item: Item, now_ms: int) -> bool:
    """Return whether an authorization has ended, also if nobody wrote that down."""
    return 0 < item.lapses_at_ms <= now_ms


def unclaimable(item: Item) -> ClaimReply:
    """Return the answer to a claim of a call that cannot be started now."""
    match item.state:
        case ItemState.EXECUTED | ItemState.FAILED:
            # After a reconciliation there is a state and no result.
            return Done(
                result=item.result or Result(ok=item.state is ItemState.EXECUTED),
                edit=item.edit,
                reconcile_answer=found_by_people(item),
                reconciled=last_finding(item),
            )
        case ItemState.IN_DOUBT:
            return InDoubt(edit=item.edit)
        case ItemState.PENDING if item.revoked is not None:
            return Reopened(reason=item.revoked.reason)
        case state if state in ENDS_WITHOUT_REVIEW:
            return Refused(reason=end_reason(item), state=state)
        case state:
            return Refused(reason=_NOT_AUTHORIZED, state=state)


def _in_another_state(
    loaded: Loaded, item: Item, seen: StateNow | None, evaluated: PolicyDecision
) -> Change | CheckState | None:
    """Return the result for a call whose state is not known to be the approved one.

    Raises:
        BadJson: when the document of the call becomes too large by its new state.
    """
    approved = state_in(item.action)
    if approved is None:
        return None
    # A state that was read for other arguments, before an edit, says nothing of these.
    if seen is None or seen.action_hash != item.action_hash:
        return CheckState(
            action=item.action,
            action_hash=item.action_hash,
            edit=item.edit,
            requested=requested_before(item),
        )
    if approved.is_same(seen.state):
        return None
    return ask_in_new_state(
        loaded.approval, item, seen.state, evaluated, now_ms=loaded.now_ms
    )


def is_same_call(request: ClaimRequest, item: Item) -> bool:
    """Return True if a claim is asked for by the call that the item is."""
    ctx, ref = item.ctx, request.ref
    asked = (ref.agent, ref.thread, ref.ns, ref.message_id, request.tool_call_id)
    kept = (ctx.agent, ctx.thread, ctx.ns, ctx.message_id, ctx.tool_call_id)
    return asked == kept and request.tool == item.tool
