"""Claim, heartbeat, release and finish executions, and answer agents' questions.

Each execution happens at most once. The answers come from the recorded decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import NamedTuple, TypeVar

from keyturn.gateway import tracing
from keyturn.gateway.approvals import executing
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.ending import end_restored
from keyturn.gateway.approvals.evidence import with_hidden_summary, without_reviewers
from keyturn.gateway.approvals.executing import (
    is_asked_again_since,
    knowing,
    next_attempt,
)
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.approvals.resume_value import (
    ENDS_WITHOUT_REVIEW,
    answer_for,
    end_reason,
    unknown_answer,
)
from keyturn.gateway.approvals.revoking import ask_as_read, ask_in_new_state, revoke
from keyturn.gateway.approvals.standing import RESTORED
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.approvals.waiting_changes import attended
from keyturn.gateway.background import begun, waited_for
from keyturn.gateway.errors import (
    AlreadySpent,
    BadJson,
    CorruptRecord,
    GraphError,
    NotVerified,
)
from keyturn.gateway.failures import log_failure
from keyturn.gateway.instruments import DECISION_TO_RUN
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.digest import state_in
from keyturn.gateway.protocol.http_api import Attendance, Attended, OpenQuestion
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    Finding,
    ItemState,
    Result,
    RunRef,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.run import proving
from keyturn.gateway.service.submit.call_evaluation import (
    CurrentEvaluation,
    WaitingCall,
    evaluate_now,
)
from keyturn.gateway.service.submit.proposals import freeze_message
from keyturn.gateway.service.submit.quality_checks import with_spot_check
from keyturn.gateway.service.submit.standing import end_standing, standing_of
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.limits.freezes import names_of
from keyturn.gateway.store.records.approval_indexes import Timer
from keyturn.gateway.store.records.atomic_write import Loaded, Write, spend_again
from keyturn.gateway.store.scripts.fences import holding
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

TOO_LARGE = (
    "What the tool would run with now differs from what people approved, and is too "
    "large to show to them, so it did not run."
)
_NOT_AUTHORIZED = "This call must not run: it is not authorized."
_NOT_AGAIN = (
    "Its hand-over broke off, and it may not be repeated now: a freeze or the policy "
    "forbids it. Whether its program took the decision is not known."
)
_NOT_OURS = "The gateway knows no such call in this thread, so it must not run."


class _Attempt(NamedTuple):
    """A claim of one call, and the records of this moment.

    ``standing`` is the standing approval that covered the call, if any.
    """

    loaded: Loaded
    item: Item
    request: wire.ClaimRequest
    standing: Approval | None = None


class ClaimService(PolicyService):
    """Grant executions of authorized calls, and record their results.

    Time passes between a decision and the execution. A claim evaluates the call by the
    current policy, which can only make it stricter, and compares the business state. An
    authorization that is no longer valid is revoked in the step that refuses the claim.
    """

    @property
    def hides_reviewers(self) -> bool:
        """Return whether agents get no names of reviewers, by the policy."""
        return not self._policy().privacy.name_reviewers

    async def claim(self, request: wire.ClaimRequest) -> wire.ClaimReply:
        """Grant one execution of an authorized call, checked against the record.

        A repeated claim by one owner gets the same grant; other owners wait until this
        one ends.

        Raises:
            StoreUnavailable: when it is not known to be granted, or the record changes
                too often.
        """
        began_ns = time_ns()
        approval_id, index = approval_of(request.item_id)
        compute = partial(self._claimed, request=request)
        try:
            found = await self._change(request.item_id, compute)
        except AlreadySpent as spent:
            if spent.item and spent.approval != approval_id:
                # Another call spent this use before, so an older copy of the standing
                # approval was restored.
                await end_standing(self._store, self._keys, spent.approval, RESTORED)
            try:
                # The ledger refused it: this round starts nothing.
                found = await self._change(
                    request.item_id, partial(compute, spent=spent)
                )
            except AlreadySpent:
                return _busy(self._store.lease_ms)
        if found is None:
            return wire.Refused(reason=_NOT_OURS)
        if isinstance(found, proving.Unproven):
            return await proving.refuse_unproven(self._store, found)
        if not isinstance(found, Write):
            return found
        _observe(found.approval, found.approval.items[index], began_ns)
        return self._reply(found.approval, index, request.owner, found.standing)

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        """Extend a claim; False when it no longer belongs to this fence."""
        return await self._store.approvals.heartbeat(*approval_of(item_id), fence)

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        """Release a claim: the tool paused, or did not start."""
        await self.finish(item_id, fence, None, has_begun=has_begun)

    async def finish(
        self, item_id: str, fence: int, result: Result | None, *, has_begun: bool = True
    ) -> bool:
        """Record the result of an execution; without a result, release its claim.

        The write completes even if the caller is cancelled, because only the caller has
        the result. Returns False when the claim belongs to another fence, or when
        people have reconciled the call before.
        """

        async def compute(loaded: Loaded, item: Item) -> Write | bool:
            approval, now_ms = loaded.approval, loaded.now_ms
            ended = result and with_hidden_summary(
                result, item, self._policy().privacy.hide
            )
            found = executing.finish(
                approval, item, fence, ended, now_ms=now_ms, has_begun=has_begun
            )
            if isinstance(found, bool):
                return found
            checked = await with_spot_check(
                self._store, self._policy(), found, item.index, now_ms
            )
            return Write(checked)

        # The report of a former holder of the thread's lease is still true.
        with holding(None):
            found = await waited_for(begun(self._change(item_id, compute)))
        if isinstance(found, Write):
            return not executing.is_late(found.change)
        return bool(found)

    async def hand_over(self, end: wire.HandOverEnd) -> bool:
        """Record how a hand-over ended; return False when the claim is lost."""

        async def compute(loaded: Loaded, item: Item) -> Write | bool:
            kept = end.with_(detail=self._hidden(end.detail, item))
            now_ms = loaded.now_ms
            found = executing.hand_over(loaded.approval, item, kept, now_ms=now_ms)
            return found if isinstance(found, bool) else Write(found)

        return bool(await waited_for(begun(self._change(end.item_id, compute))))

    async def report_outcome(self, report: wire.ReportedOutcome) -> bool:
        """Record a program's first report of a call that it took; else return False."""

        async def compute(loaded: Loaded, item: Item) -> Write | bool:
            kept = report.with_(summary=self._hidden(report.summary, item))
            found = executing.report_outcome(loaded.approval, item, kept)
            return found if isinstance(found, bool) else Write(found)

        return bool(await self._change(report.item_id, compute))

    async def report_asked_again(self, report: wire.AskedAgain) -> bool:
        """Record that an agent asked again; return False if nobody wanted that."""

        async def compute(loaded: Loaded, item: Item) -> Write | bool:
            kept = report.with_(detail=self._hidden(report.detail, item))
            found = executing.report_asked_again(
                loaded.approval, item, kept, now_ms=loaded.now_ms
            )
            return found if isinstance(found, bool) else Write(found)

        return bool(await self._change(report.item_id, compute))

    async def attend(self, asked: Attendance) -> Attended:
        """Record until when a caller waits for a call that may still run.

        The time is a timer: at its end, the card shows that the caller has gone.
        """
        approval_id, _ = approval_of(asked.item_id)
        timer = Timer(approval=approval_id, kind=TimerKind.CALLER)

        async def compute(loaded: Loaded, item: Item) -> Write | bool:
            is_due = await self._store.timers.is_due(self._keys, timer)
            is_gone = loaded.approval.caller_gone or is_due
            if not item.may_run or (asked.joins and not is_gone):
                return False
            until_ms = loaded.now_ms + int(asked.wait_s * 1000)
            if is_gone and asked.wait_s:
                # By the revision, only one of two callers joins.
                return Write(attended(loaded.approval, until_ms))
            if not is_gone:
                await self._store.timers.put(self._keys, timer, until_ms)
            return True

        if not await self._change(asked.item_id, compute):
            return Attended()
        url = await self._store.cards.url(self._keys, approval_id)
        return Attended(has_call=True, card_url=url)

    def _hidden(self, text: str, item: Item) -> str:
        """Return a program's text about a call, without private data."""
        told, kinds = Result(ok=False, summary=text), self._policy().privacy.hide
        return with_hidden_summary(told, item, kinds).summary

    async def _change(
        self, item_id: str, compute: Callable[[Loaded, Item], Awaitable[T]]
    ) -> T | None:
        """Change one of the tenant's items; None for any other id."""
        approval_id, index = approval_of(item_id)

        async def computed(loaded: Loaded) -> T | None:
            approval = loaded.approval
            if approval.tenant != self._tenant or index >= len(approval.items):
                return None
            return await compute(loaded, approval.items[index])

        try:
            return await self._store.approvals.change(approval_id, computed)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
            return None

    async def _claimed(
        self,
        loaded: Loaded,
        item: Item,
        request: wire.ClaimRequest,
        spent: AlreadySpent | None = None,
    ) -> Write | wire.ClaimReply | proving.Unproven:
        # With the item id alone, a call could run with the approval of another one.
        if item.is_standing or not is_same_call(request, item):
            return wire.Refused(reason=_NOT_OURS, state=item.state)
        if item.state not in {ItemState.AUTHORIZED, *executing.CLAIMED}:
            unproven = proving.unproven_end(self._store, loaded.approval, item)
            return unproven or unclaimable(self._told(loaded.approval, item))
        standing = await standing_of(self._store, item)
        try:
            proving.check_authorized(
                self._store, self._policy(), loaded.approval, item, standing
            )
        except NotVerified as error:
            return proving.Unproven(loaded.approval, item, error)
        attempt = _Attempt(loaded, item, request, standing)
        if spent is not None:
            return await self._after(spent, attempt)
        if item.state is ItemState.AUTHORIZED:
            return await self._start(attempt)
        return await self._take_over(attempt)

    async def _after(
        self, spent: AlreadySpent, of: _Attempt
    ) -> Write | wire.ClaimReply:
        """Decide how a call continues whose attempt is spent in the ledger.

        Another process may be about to write the attempt to the record. Otherwise that
        process died before it did, or an older copy of the record was restored: the
        call may have run.
        """
        loaded, item, request, standing = of
        if spent.approval != loaded.approval.id:
            # The standing approval ended, or another call spent its use. If it is in
            # force again, or has the use again, an older copy was restored.
            is_back = standing and standing.items[0].state is ItemState.AUTHORIZED
            valid = None if is_back or spent.item else standing
            return await self._start(of._replace(standing=valid))
        known = knowing(item, spent.number)
        if is_asked_again_since(item, spent.at_ms):
            return await self._start(of._replace(item=known))
        is_newer = next_attempt(loaded.approval, item).number > spent.number
        left_ms = self._store.lease_ms - abs(loaded.now_ms - spent.at_ms)
        if left_ms > 0 or (is_newer and item.owner != request.owner):
            return _busy(max(left_ms, 0))
        if not item.handed_to:
            return _in_doubt(loaded, known)
        return await self._hand_again(spent, of._replace(item=known))

    async def _hand_again(
        self, spent: AlreadySpent, of: _Attempt
    ) -> Write | wire.ClaimReply:
        """Decide whether a call is handed over whose attempt is spent in the ledger."""
        loaded, item = of.loaded, of.item
        if not spent.owner:  # it ended, so an older copy was restored
            return Write(end_restored(loaded.approval, item, loaded.now_ms))
        # That attempt has no end, and the program takes a decision only once.
        if item.state is ItemState.AUTHORIZED:
            return await self._start(of)
        return await self._why_stopped(of) or self._granted(of)

    async def _start(self, of: _Attempt) -> Write | wire.ClaimReply:
        """Start an authorized call, unless its authorization is no longer valid."""
        loaded, item, request, standing = of
        approval, now_ms = loaded.approval, loaded.now_ms
        # Refused from this moment on, even if the sweep writes the lapse later.
        if 0 < item.lapses_at_ms <= now_ms:
            return unclaimable(item.with_(state=ItemState.LAPSED))
        evaluated = await self._evaluate_now(loaded, item)
        now = evaluated.policy_now
        back: Change | wire.CheckState | None
        back = revoke(approval, item, now, now_ms=now_ms, standing=standing)
        try:
            # The policy first: the state of a forbidden tool need not be read.
            back = back or _in_another_state(loaded, item, request.state, now)
            if back is None and request.reading is not None:
                back = ask_as_read(approval, item, request.reading, now, now_ms=now_ms)
        except BadJson:
            return wire.Refused(reason=TOO_LARGE, state=item.state)
        if isinstance(back, wire.CheckState):
            return back.with_(edit=self._told(approval, item).edit)
        if back is not None:
            is_pending = back.approval.items[item.index].is_pending
            used = {item.index: evaluated.used} if is_pending else {}
            return Write(back, inputs=used)
        # The freeze last, so that a frozen call can still return to its reviewers. The
        # script repeats the check, because a freeze may be set right now.
        if evaluated.freeze is not None:
            return wire.Refused(
                reason=freeze_message(evaluated.freeze, self._policy()),
                state=item.state,
            )
        return self._granted(of)

    def _granted(self, of: _Attempt) -> Write:
        """Return the write that gives one attempt the right to run the call."""
        approval = of.loaded.approval
        change = executing.claim(
            approval,
            of.item,
            owner=of.request.owner,
            lease_ms=self._store.lease_ms,
            now_ms=of.loaded.now_ms,
        )
        names = names_of(approval.agent, of.item.tool)
        # The script checks both again, because either may change right now.
        return Write(change, unfrozen=names, is_fenced=True, standing=of.standing)

    async def _take_over(self, of: _Attempt) -> Write | wire.ClaimReply:
        """Decide how a call that was started before continues."""
        loaded, item, request, standing = of
        approval, now_ms = loaded.approval, loaded.now_ms
        # A repeated claim of the same attempt.
        if item.owner == request.owner:
            stopped = await self._why_stopped(of)
            if stopped is None:
                # The reply to the first claim was lost.
                ledger = self._store.conn.ledger
                await spend_again(ledger, loaded, standing, item)
                return self._reply(approval, item.index, request.owner, standing)
            return stopped
        cut = executing.shorten_claim(
            approval, item, lease_ms=self._store.lease_ms, now_ms=now_ms
        )
        if cut is not None:
            return Write(cut)
        # Even an idempotent call has only one owner at a time.
        if now_ms < item.claimed_until_ms:
            return _busy(item.claimed_until_ms - now_ms)
        if item.idempotent or item.handed_to:
            return await self._why_stopped(of) or self._granted(of)
        return _in_doubt(loaded, item)

    async def _why_stopped(self, of: _Attempt) -> Write | wire.ClaimReply | None:
        """Return why a started call may not run again; None if it may.

        Freezes and the current policy count. The call may have started: for one that
        runs here, a refusal would suggest that nothing ran.
        """
        item, is_handed = of.item, bool(of.item.handed_to)
        if is_handed and 0 < item.lapses_at_ms <= of.loaded.now_ms:
            return unclaimable(item.with_(state=ItemState.LAPSED))
        evaluated = await self._evaluate_now(of.loaded, of.item)
        back = revoke(
            of.loaded.approval,
            of.item.with_(state=ItemState.AUTHORIZED),
            evaluated.policy_now,
            now_ms=0,
            standing=of.standing,
        )
        if evaluated.freeze is None and back is None:
            return None
        if is_handed:
            return wire.Refused(reason=_NOT_AGAIN, state=item.state)
        return _in_doubt(of.loaded, item)

    def _told(self, approval: Approval, item: Item) -> Item:
        """Return what an agent gets to know of an item."""
        told = proving.proven_words(self._store, approval, item)
        return without_reviewers(told) if self.hides_reviewers else told

    async def _evaluate_now(self, loaded: Loaded, item: Item) -> CurrentEvaluation:
        call = WaitingCall(loaded.approval, item, item.args)
        return await evaluate_now(self._store, self._policy(), call)

    def _reply(
        self, approval: Approval, index: int, owner: str, standing: Approval | None
    ) -> wire.ClaimReply:
        """Return the reply to a claim after it was written."""
        item = approval.items[index]
        told = self._told(approval, item)
        if item.state not in executing.CLAIMED:
            return unclaimable(told)
        # The claim of another owner was only cut to the length of a lease.
        if item.owner != owner:
            return _busy(self._store.lease_ms)
        return wire.Claimed(
            fence=item.fence,
            action=item.action,
            action_hash=item.action_hash,
            idempotency_key=proving.claim_key(item),
            lease_s=self._store.lease_ms / 1000,
            edit=told.edit,
            asks_on_failure=item.asks_on_failure,
            reconciled=last_finding(told),
            requested=requested_before(item),
            trace=approval.trace,
            receipt=""
            if item.handed_to
            else proving.receipt_of(
                self._store, self._policy(), approval, item, standing
            ),
        )


def _observe(approval: Approval, item: Item, began_ns: int) -> None:
    """Measure and trace a claim that was written."""
    if item.state not in executing.CLAIMED:
        return
    if item.decision and item.fence == 1:
        after_ms = max(0, item.changed_at_ms - item.decision.at_ms)
        DECISION_TO_RUN.observe(after_ms / 1000)
    call = tracing.about(item.tool, item.ctx.tool_call_id, item.tier, item.id)
    tracing.record("keyturn.claim", approval.trace, call, began_ns)


def unclaimable(item: Item) -> wire.ClaimReply:
    """Return the answer to a claim of a call that cannot be started now."""
    match item.state:
        case ItemState.EXECUTED | ItemState.FAILED:
            # A reconciliation sets the state without a result.
            return wire.Done(
                result=item.result or Result(ok=item.state is ItemState.EXECUTED),
                edit=told_edit(item),
                reconcile_answer=found_by_people(item),
                reconciled=last_finding(item),
            )
        case ItemState.IN_DOUBT:
            return wire.InDoubt(edit=told_edit(item))
        case ItemState.HANDED_OVER | ItemState.NOT_TAKEN:
            is_taken = item.state is ItemState.HANDED_OVER
            return wire.HandedOver(
                taken=is_taken, problem=item.handed.problem, edit=told_edit(item)
            )
        case ItemState.PENDING if item.revoked is not None:
            return wire.Reopened(reason=item.revoked.reason)
        case state if state in ENDS_WITHOUT_REVIEW:
            return wire.Refused(reason=end_reason(item), state=state)
        case state:
            return wire.Refused(reason=_NOT_AUTHORIZED, state=state)


def _in_another_state(
    loaded: Loaded, item: Item, seen: wire.StateNow | None, evaluated: PolicyDecision
) -> Change | wire.CheckState | None:
    """Return the next step for a call whose business state may differ; else None.

    Raises:
        BadJson: when the new state makes the document of the call too large.
    """
    approved = state_in(item.action)
    if approved is None:
        return None
    # A state that was read for other arguments, before an edit, does not count.
    if seen is None or seen.action_hash != item.action_hash:
        return wire.CheckState(
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


def is_same_call(request: wire.ClaimRequest, item: Item) -> bool:
    """Return True if the claim is for the item's call."""
    ctx, ref = item.ctx, request.ref
    asked = (ref.agent, ref.thread, ref.ns, ref.message_id, request.tool_call_id)
    kept = (ctx.agent, ctx.thread, ctx.ns, ctx.message_id, ctx.tool_call_id)
    return asked == kept and request.tool == item.tool


def _in_doubt(loaded: Loaded, item: Item) -> Write:
    change = executing.put_in_doubt(loaded.approval, item, now_ms=loaded.now_ms)
    return Write(change, is_fenced=True)


def _busy(left_ms: int) -> wire.Busy:
    # A fifth of the time left: soon enough after a live owner ends, and rare enough for
    # the store.
    return wire.Busy(retry_after_s=min(0.5, max(0.05, left_ms / 5000)))


def reconcile_answer(item: Item, word: wire.FindingWord) -> wire.ReconcileAnswer:
    """Return the finding about an execution in doubt, with the reviewers' notes."""
    # Not `observations_now`: the fence rises with the next start, and the observations
    # are about the start before.
    latest = max((one.fence for one in item.observations), default=0)
    seen = [one for one in item.observations if one.fence == latest]
    return wire.ReconcileAnswer(
        type=word,
        item_id=item.id,
        action_hash=digest.action_hash(item.requested),
        message=" / ".join(one.note for one in seen if one.note),
        by=seen[-1].by if seen else None,
    )


def found_by_people(item: Item) -> wire.ReconcileAnswer | None:
    """Return the finding, unless the executor's result replaces it."""
    result, is_skipped = item.result, item.finding is Finding.SKIP
    is_replaced = result is not None and (result.ok or is_skipped)
    runs_again = item.finding is Finding.RERUN
    return None if is_replaced or runs_again else last_finding(item)


def last_finding(item: Item) -> wire.ReconcileAnswer | None:
    """Return the finding of the last reconciliation; None without one."""
    if item.finding is None:
        return None
    return reconcile_answer(item, item.finding.value)


def late_report(item: Item) -> wire.LateReport | None:
    """Return the result that arrived after a reconciliation of the call, or None."""
    if item.late_result is None or item.finding is None:
        return None
    began_again = item.finding is Finding.RERUN and not item.observations_now
    return wire.LateReport(
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


def outcome_of(item: Item) -> wire.CallOutcome:
    """Return the outcome of a recorded call, to repair an interrupted turn."""
    return unproven_outcome(item).with_(
        answer=answer_for(item),
        edit=told_edit(item),
        result=item.result,
        reconcile_answer=found_by_people(item),
        reconciled=last_finding(item),
    )


def unproven_outcome(item: Item) -> wire.CallOutcome:
    """Return the outcome of a call whose record could not be verified."""
    return wire.CallOutcome(
        item_id=item.id,
        tool_call_id=item.ctx.tool_call_id,
        tool=item.tool,
        state=item.state,
        answer=unknown_answer(
            item.id, digest.action_hash(item.requested), proving.NOT_TOLD
        ),
    )


def requested_before(item: Item) -> str:
    """Return the document of the request when only its state has changed."""
    has_changed = item.edit is None and item.action != item.requested
    return item.requested if has_changed else ""


_LOST = "The gateway has no record of this call that it can read."


@dataclass(frozen=True)
class Found:
    """An answer to a question; ``is_lost`` where the store has no record of its call.

    ``times`` counts how often the call's authorization was revoked: an equal answer
    with a higher count is a new answer. ``trace`` is the context of its submission.
    """

    answer: JsonObject
    times: int = 0
    trace: str = ""
    is_lost: bool = False


async def find_answers(
    store: Store,
    run: RunRef,
    questions: Iterable[OpenQuestion],
    concerns: Callable[[Approval], bool] = lambda _: True,
    *,
    hides_reviewers: bool,
) -> dict[OpenQuestion, Found]:
    """Return the answers to a run's questions that have one.

    The questions come from the agent and are not trusted. One is answered only if the
    gateway's record has its item for this run and this hash.

    Args:
        store: where the records are.
        run: the run that asks.
        questions: its open questions.
        concerns: returns whether an approval may be revealed to the run; a caller in
            the gateway's process may read every approval.
        hides_reviewers: the answers do not name the people who decided.

    Raises:
        GraphError: when the agent's name differs from the one in its record.
        StoreUnavailable: when the store does not answer.
    """
    asks = {one: approval_of(one.item_id) for one in questions}
    # The calls of a turn share a record.
    ids = dict.fromkeys(approval_id for approval_id, _ in asks.values())
    found = [one.approval for one in await store.approvals.load_each(ids)]
    known = {one.id: one for one in found if concerns(one)}
    answers: dict[OpenQuestion, Found] = {}
    for asked, (approval_id, index) in asks.items():
        approval = known.get(approval_id)
        if approval is not None and index < len(approval.items):
            told = (approval, approval.items[index], hides_reviewers)
            answer = await _told(store, run, asked, *told)
        else:
            # A record is kept while its item is open. This item ended long ago, was
            # lost by the store, or never existed. It cannot be decided, so the thread
            # goes on.
            logger.warning("record.unknown item=%.100r", asked.item_id)
            answer = Found(_unknown(asked, _LOST), is_lost=True)
        if answer is not None:
            answers[asked] = answer
    return answers


async def _told(
    store: Store,
    run: RunRef,
    asked: OpenQuestion,
    approval: Approval,
    item: Item,
    hides_reviewers: bool,  # noqa: FBT001 - passed on
) -> Found | None:
    """Return the answer to a question about an item; None while there is none."""
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
    words = proving.proven_words(store, approval, item)
    answer = _answer(asked, without_reviewers(words) if hides_reviewers else words)
    if answer is None:
        return None
    if not await proving.are_proven(store, approval, item):
        return Found(_unknown(asked, proving.NOT_TOLD))
    times = item.revoked.times if item.revoked else 0
    return Found(answer, times, approval.trace)


def _answer(asked: OpenQuestion, item: Item) -> JsonObject | None:
    is_doubt = asked.kind == wire.RECONCILE_INTERRUPT
    found = _reconciled(item) if is_doubt else answer_for(item)
    return None if found is None else found.model_dump(mode="json")


def _unknown(asked: OpenQuestion, why: str) -> JsonObject:
    """Return an answer without a decision, so that the thread can continue."""
    item_id, action_hash = asked.item_id, asked.action_hash
    found: wire.Answer | wire.ReconcileAnswer = wire.ReconcileAnswer(
        type="skip", item_id=item_id, action_hash=action_hash, message=why
    )
    if asked.kind == wire.APPROVAL_INTERRUPT:
        found = unknown_answer(item_id, action_hash, why)
    return found.model_dump(mode="json")


def _reconciled(item: Item) -> wire.ReconcileAnswer | None:
    """Return the answer to a reconciliation, from the item's current state.

    "rerun" makes the agent claim again. If the owner that seemed dead has stored a
    result by then, that claim returns the result and nothing runs.
    """
    words: dict[ItemState, wire.FindingWord] = {
        # A confirmation by people outweighs a failure that the tool reported.
        ItemState.EXECUTED: "rerun" if item.result and item.result.ok else "executed",
        ItemState.FAILED: "rerun" if item.result else "skip",
        ItemState.AUTHORIZED: "rerun",
        ItemState.EXECUTING: "rerun",
        # These states occur only after a restore of an older copy of the store.
        **dict.fromkeys(UNEXECUTED, "skip"),
    }
    word = words.get(item.state)
    return None if word is None else reconcile_answer(item, word)
