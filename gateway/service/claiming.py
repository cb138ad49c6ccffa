"""Ask the policy of now, and for the business state, before a call runs."""

from __future__ import annotations

from collections.abc import Callable

from gateway.approvals import digest
from gateway.approvals.business_state import state_in
from gateway.approvals.changes import Change, Judgement
from gateway.approvals.events import EventName, named_after
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import Approval, Finding, Item, Result
from gateway.approvals.revoking import Revoked, in_another_state, revoked
from gateway.errors import BadJson, StoreUnavailable
from gateway.outcomes import CallOutcome, LateReport
from gateway.policy.rules import Policy
from gateway.service.facts import GATEWAY, item_event
from gateway.service.judging import JudgedNow, judge_now, lapse_ms
from gateway.store.approvals import Loaded
from gateway.store.store import Store
from gateway.wire import (
    CheckState,
    ClaimRequest,
    FindingWord,
    ReconcileAnswer,
    Refused,
    Reopened,
    StateNow,
    answer_for,
    ended,
)

STATE_TOO_LARGE = (
    "What this call depends on changed after it was approved, and the new state is too "
    "large to show to people, so it did not run."
)
_ATTEMPTS = 16


class Claiming:
    """Take authorizations back that do not hold any more.

    Args:
        store: where everything is kept.
        policy: returns the policy in force now.
    """

    def __init__(self, store: Store, policy: Callable[[], Policy]) -> None:
        self._store = store
        self._policy = policy

    async def objection(
        self, approval_id: str, index: int, seen: StateNow | None
    ) -> Refused | Reopened | CheckState | None:
        """Return why an item must not start now; None when it may.

        The policy of now has to let it, and the business state to be as approved.

        Only an authorized item is judged here; of any other the claim itself says how
        it stands. What is taken back is written before this returns.

        Raises:
            StoreUnavailable: when it changes all the time.
            UnreadableRecord: when the record is not what we wrote.
        """
        for _ in range(_ATTEMPTS):
            loaded = await self._store.approvals.load(approval_id)
            if loaded is None:
                return None
            approval, item = loaded.approval, loaded.approval.items[index]
            if item.state is not ItemState.AUTHORIZED:
                return waiting_again(item)
            judged = await judge_now(
                self._store, self._policy(), approval, item, item.args
            )
            if judged is None:
                return None
            back: Revoked | CheckState | None = revoked(
                approval, item, judged.judgement, now_ms=loaded.now_ms
            )
            if back is None:
                try:
                    back = _in_another_state(loaded, item, seen, judged.judgement)
                except BadJson:
                    return Refused(reason=STATE_TOO_LARGE, state=item.state)
            if back is None or isinstance(back, CheckState):
                return back
            if await self._is_written(approval, back, judged):
                return _told(back.item)
        raise StoreUnavailable(
            "This call changed all the time, so it was not started; try again."
        )

    async def is_allowed(self, approval: Approval, item: Item) -> bool:
        """Say whether the policy of now lets an attempt of this call be repeated."""
        judged = await judge_now(self._store, self._policy(), approval, item, item.args)
        if judged is None:
            return False
        authorized = item.with_(state=ItemState.AUTHORIZED)
        return revoked(approval, authorized, judged.judgement, now_ms=0) is None

    async def _is_written(
        self, before: Approval, back: Revoked, judged: JudgedNow
    ) -> bool:
        is_pending = back.item.is_pending
        name = EventName.ITEM_REOPENED if is_pending else named_after(back.item.state)
        reason = back.item.revoked.reason if back.item.revoked else ""
        event = item_event(back.approval, back.item, name, reason=reason).with_(
            actor=GATEWAY, policy_digest=judged.judgement.policy_digest
        )
        word = await self._store.approvals.commit(
            before,
            Change(back.approval, back.item, (event,)),
            job=None,
            lapse_ms=lapse_ms(back.item, None),
            judged=judged.used if is_pending else None,
        )
        return word == "done"


def waiting_again(item: Item) -> Reopened | None:
    """Return the answer to a claim of a call that went back to people."""
    if item.is_pending and item.revoked is not None:
        return Reopened(reason=item.revoked.reason)
    return None


def requested_before(item: Item) -> str:
    """Return the document of the request when only its state is another by now."""
    has_changed = item.edit is None and item.action != item.requested
    return item.requested if has_changed else ""


def _in_another_state(
    loaded: Loaded, item: Item, seen: StateNow | None, judged: Judgement
) -> Revoked | CheckState | None:
    """Return what becomes of a call whose state is not known to be the approved one.

    Raises:
        BadJson: when the document of the call becomes too large by its new state.
    """
    approved = state_in(item.action)
    if approved is None:
        return None
    if seen is None or seen.action_hash != item.action_hash:
        return CheckState(
            action=item.action,
            action_hash=item.action_hash,
            edit=item.edit,
            requested=requested_before(item),
        )
    if approved.is_same(seen.state):
        return None
    return in_another_state(
        loaded.approval, item, seen.state, judged, now_ms=loaded.now_ms
    )


def _told(item: Item) -> Refused | Reopened:
    return waiting_again(item) or Refused(reason=ended(item), state=item.state)


def reconcile_answer(item: Item, word: FindingWord) -> ReconcileAnswer:
    """Return what people found out about an execution in doubt, with their notes."""
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
    if item.found is Finding.EXECUTED and not (result and result.ok):
        return reconcile_answer(item, "executed")
    if item.found is Finding.SKIP and result is None:
        return reconcile_answer(item, "skip")
    return None


def settled_by_people(item: Item) -> ReconcileAnswer | None:
    """Return as what people settled the last doubt; None when there was none."""
    if item.found is None:
        return None
    return reconcile_answer(item, item.found.value)


def late_report(item: Item) -> LateReport | None:
    """Return what was reported after people had settled a doubt; None for nothing."""
    if item.late is None or item.found is None:
        return None
    began_again = item.found is Finding.RERUN and not item.observations_now
    return LateReport(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        ok=item.late.ok,
        summary=item.late.summary,
        is_apart=began_again,
    )


def outcome_of(item: Item) -> CallOutcome:
    """Return what became of a held call, for repairing a turn that was cut off."""
    return CallOutcome(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        tool=item.tool,
        state=item.state,
        answer=answer_for(item),
        edit=item.edit,
        result=item.result,
        found=found_by_people(item),
        settled=settled_by_people(item),
    )


def state_after(item: Item, result: Result | None) -> ItemState:
    """Return where a claim leaves its item; without a result it was not used."""
    if result is None:
        return ItemState.AUTHORIZED
    if result.ok:
        return ItemState.EXECUTED
    return ItemState.IN_DOUBT if item.asks_on_failure else ItemState.FAILED


def is_same_call(request: ClaimRequest, item: Item) -> bool:
    """Return True if a claim is asked for by the call that the item is."""
    ctx, ref = item.ctx, request.ref
    asked = (ref.agent, ref.thread, ref.ns, ref.message_id, request.tool_call_id)
    kept = (ctx.agent, ctx.thread, ctx.ns, ctx.message_id, ctx.tool_call_id)
    return asked == kept and request.tool == item.tool
