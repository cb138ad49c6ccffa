"""Simulate the gateway in memory, with its records and rules, without store or clock.

The real store is tested elsewhere; here it would only slow the tests down. The tests
control the tier of each tool, people's decisions, leases and failures.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from keyturn.gateway.approvals import editing, lifecycle, resume_value
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import Context, DecisionRecord, Item
from keyturn.gateway.approvals.requirement import (
    Observation,
    Requirement,
    Revocation,
    Vote,
)
from keyturn.gateway.errors import NotAllowed, StoreUnavailable
from keyturn.gateway.policy.evaluate import Evaluation
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.digest import state_in, stateless_hash, with_state
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import (
    EditRecord,
    Finding,
    ItemState,
    Person,
    Result,
    RunRef,
    Tier,
    Verb,
    is_inside,
    join,
)
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    AgentNote,
    Answer,
    Busy,
    CallBegun,
    CallEnd,
    CallOutcome,
    CallProgress,
    CheckState,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Done,
    EditsKnown,
    InDoubt,
    LateReport,
    ProposedCall,
    ReconcileAnswer,
    Refused,
    Reopened,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.service.run.claiming import (
    found_by_people,
    last_finding,
    late_report,
    outcome_of,
    reconcile_answer,
    requested_before,
    told_edit,
)
from keyturn.gateway.service.submit.turn_evaluation import apply_hint

ANNA = Person(team="T1", user="U1", name="Anna")
ALL = (Verb.APPROVE, Verb.EDIT, Verb.REJECT, Verb.RESPOND)


class FakeGateway:
    """A gateway whose every transition a test makes itself."""

    def __init__(
        self,
        tiers: dict[str, Tier] | None = None,
        *,
        default: Tier = Tier.APPROVE,
        allow: tuple[Verb, ...] = ALL,
        lease_s: float = 30.0,
        overridable: frozenset[str] = frozenset(),
    ) -> None:
        self.tiers = tiers or {}
        self.default = default
        self.allow = allow
        self.lease_s = lease_s
        self.overridable = overridable
        self.items: dict[str, Item] = {}
        self.runs: dict[str, RunRef] = {}
        self.turns: dict[str, tuple[Turn, tuple[Verdict, ...]]] = {}
        self.calls: Counter[str] = Counter()
        self.down: set[str] = set()
        self.before: dict[str, Callable[[], None]] = {}
        self.recorded: Callable[[], None] = lambda: None
        self.keeps_results = self.is_keeping = True
        self.ends: list[CallEnd] = []
        self.beats: Counter[str] = Counter()
        self.unbegun = 0
        self.tamper: Callable[[Claimed], Claimed] = lambda claimed: claimed
        self._lock = threading.Lock()

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        with self._entered("submit"):
            key = turn.ref.model_dump_json()
            if key not in self.turns:
                self._supersede_older(turn.ref)
                verdicts = tuple(
                    self._verdict(turn, index) for index in range(len(turn.calls))
                )
                self.turns[key] = (turn, verdicts)
            return self.turns[key][1]

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        with self._entered("claim"):
            item = self.items.get(request.item_id)
            if item is None or not _is_of(item, request):
                return Refused(reason="This call is not the one that was authorized.")
            return self._checked(item, request) or self._replied(item.id)

    def _checked(self, item: Item, request: ClaimRequest) -> ClaimReply | None:
        """Ask for the state of now; put a call in another state to people again."""
        approved = state_in(item.action)
        if item.state is not ItemState.AUTHORIZED or approved is None:
            return None
        seen = request.state
        if seen is None or seen.action_hash != item.action_hash:
            return CheckState(
                action=item.action,
                action_hash=item.action_hash,
                edit=item.edit,
                requested=requested_before(item),
            )
        if not approved.is_same(seen.state):
            document = with_state(item.action, seen.state)
            hash_now = digest.action_hash(document)
            edit = item.edit and item.edit.with_(edited_hash=hash_now)
            self.items[item.id] = item.with_(action=document, edit=edit)
            self.take_back(item.id)
        return None

    def _replied(self, item_id: str) -> ClaimReply:
        item = self.items[item_id]
        if item.is_pending and item.revoked:
            return Reopened(reason=item.revoked.reason)
        match item.state:
            case ItemState.AUTHORIZED:
                return self._claimed(item)
            case ItemState.EXECUTING:
                return Busy(retry_after_s=0.01)
            case ItemState.IN_DOUBT:
                return InDoubt(edit=told_edit(item))
            case ItemState.EXECUTED | ItemState.FAILED:
                return Done(
                    result=item.result or Result(ok=item.state is ItemState.EXECUTED),
                    edit=told_edit(item),
                    reconcile_answer=found_by_people(item),
                    reconciled=last_finding(item),
                )
            case state:
                why = f"This call is {state} and does not run."
                return Refused(reason=why, state=state)

    def keeps_calls(self) -> bool:
        return self.is_keeping

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        with self._entered(progress.verb):
            return CallBegun(keeps_result=self.keeps_results)

    async def ended(self, end: CallEnd) -> None:
        with self._entered("ended"):
            self.ends.append(end)

    async def heartbeat(self, item_id: str, fence: int) -> bool:
        with self._entered("heartbeat"):
            self.beats[item_id] += 1
            return self._is_owner(item_id, fence)

    async def finish(self, item_id: str, fence: int, result: Result) -> bool:
        with self._entered("finish"):
            if not self._is_owner(item_id, fence):
                return False
            transition = Transition.EXECUTE if result.ok else Transition.FAIL
            self._transition(item_id, transition, result=result)
        self.recorded()
        return True

    async def release(
        self, item_id: str, fence: int, *, has_begun: bool = True
    ) -> None:
        with self._entered("release"):
            self.unbegun += not has_begun
            if self._is_owner(item_id, fence):
                self._transition(item_id, Transition.RELEASE)

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        with self._entered("outcomes"):
            return tuple(map(outcome_of, self._of_message(ref)))

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        with self._entered("history"):
            return tuple(
                edit
                for item in self.items.values()
                if (edit := told_edit(item)) is not None
                and item.state in {ItemState.EXECUTED, ItemState.FAILED}
                and self.runs[item.id] == run
                and (
                    not within
                    or item.ctx.ns == within
                    or is_inside(item.ctx.ns, within)
                )
            )

    async def supersede(self, ref: TurnRef) -> None:
        with self._entered("supersede"):
            meant = {item.id for item in self._of_message(ref)}
            for item in list(self.items.values()):
                is_of = item.id in meant or self._is_below(item, ref)
                if is_of and item.is_pending:
                    self._transition(item.id, Transition.SUPERSEDE)

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        with self._entered("edits_known"):
            ids = {each: named.partition(" ")[0] for each, named in edits.items()}
            items = [(each, self.items.get(item_id)) for each, item_id in ids.items()]
            made = {
                each: edit.outcome
                for each, item in items
                if item
                and self.runs[item.id] == ref.run_ref
                and (edit := told_edit(item))
                and edit_hash(edit) == each
            }
            ours = re.compile(r"ap\d+\.\d+")
            gone = [each for each, item in items if item is None]
            unknown = [each for each in gone if ours.fullmatch(ids[each])]
            return EditsKnown(made=made, unknown=frozenset(unknown))

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        with self._entered("late_reports"):
            items = [self.items[each] for each in item_ids if each in self.items]
            mine = [item for item in items if self.runs[item.id] == ref.run_ref]
            reports = [late_report(item) for item in mine]
            return tuple(report for report in reports if report)

    async def note(self, agent: str) -> AgentNote:
        with self._entered("note"):
            gated = sorted(
                tool for tool, tier in self.tiers.items() if tier.needs_people
            )
            return AgentNote(
                gated_tools=tuple(gated),
                other_tools_are_gated=self.default.needs_people,
            )

    # What a test does with it.

    def pending(self) -> list[Item]:
        return [item for item in self.items.values() if item.is_pending]

    def only(self) -> Item:
        (item,) = self.items.values()
        return item

    def approve(self, item_id: str) -> None:
        self._settle(item_id, Transition.AUTHORIZE, Verb.APPROVE)

    def edit(self, item_id: str, args: JsonObject, reason: str = "") -> None:
        item = self.items[item_id]
        document = editing.edited_document(item, args)
        record = editing.edit_record(item, document, by=ANNA, at_ms=1, reason=reason)
        self.items[item_id] = item.with_(action=document, edit=record)
        self._settle(item_id, Transition.AUTHORIZE, Verb.EDIT, reason)

    def reject(self, item_id: str, reason: str = "") -> None:
        self._settle(item_id, Transition.REJECT, Verb.REJECT, reason)

    def respond(self, item_id: str, message: str) -> None:
        self._settle(item_id, Transition.ANSWER, Verb.RESPOND, message)

    def end(self, item_id: str, transition: Transition) -> None:
        self._transition(item_id, transition)

    def take_back(self, item_id: str) -> None:
        """Make the current policy require more people than have approved."""
        revoked = self.items[item_id].revoked
        times = revoked.times + 1 if revoked else 1
        why = Revocation(reason="More people are needed.", at_ms=1, times=times)
        self._transition(item_id, Transition.REOPEN, revoked=why, decision=None)

    def claim_and_die(self, item: Item) -> None:
        """Claim a call as another process, which never finishes it."""
        self._claimed(item)
        self.lose_owner(item.id)

    def lose_owner(self, item_id: str) -> None:
        """Expire the lease of a dead owner."""
        self._transition(item_id, Transition.DOUBT)

    def reconcile(self, item_id: str, finding: str, note: str = "") -> ReconcileAnswer:
        """Reconcile a call; return the value that resumes the thread."""
        item, found = self.items[item_id], Finding(finding)
        vote = Vote(by=ANNA, roles=(), action_hash=item.action_hash, at_ms=1)
        said = Observation(finding=found, vote=vote, note=note, fence=item.fence)
        self.items[item_id] = item.with_(
            finding=found, observations=(*item.observations, said)
        )
        moves = {
            Finding.EXECUTED: Transition.EXECUTE,
            Finding.RERUN: Transition.RETRY,
            Finding.SKIP: Transition.FAIL,
        }
        return reconcile_answer(self._transition(item_id, moves[found]), found.value)

    def answer(self, item_id: str) -> Answer:
        answer = resume_value.answer_for(self.items[item_id])
        assert answer is not None
        return answer

    def _entered(self, name: str) -> threading.Lock:
        self.calls[name] += 1
        if name in self.before:
            self.before[name]()
        if name in self.down:
            raise StoreUnavailable(f"{name} is down; start the store.")
        if f"forbid {name}" in self.down:
            raise NotAllowed(f"{name} is not allowed.")
        return self._lock

    def _verdict(self, turn: Turn, index: int) -> Verdict:
        call = turn.calls[index]
        evaluation = self._evaluation(call)
        tier = evaluation.tier
        base: dict[str, Any] = {
            "tool": call.tool,
            "tool_call_id": call.tool_call_id,
            "tier": tier,
            "args_hash": wire.args_hash(call.args),
        }
        if call.problem:
            return Verdict(kind=VerdictKind.DENY, reason=call.problem, **base)
        if tier is Tier.AUTO:
            return Verdict(kind=VerdictKind.RUN, **base)
        if tier is Tier.DENY:
            return Verdict(kind=VerdictKind.DENY, reason="Policy forbids it.", **base)
        item = self._open(turn, index, evaluation)
        if item.is_auto_approved:
            item = self._transition(item.id, Transition.CLEAR)
        return Verdict(
            kind=VerdictKind.RUN if item.is_auto_approved else VerdictKind.HOLD,
            item_id=item.id,
            action_hash=item.action_hash,
            allow=item.allow,
            args_schema=item.args_schema,
            **base,
        )

    def _evaluation(self, call: ProposedCall) -> Evaluation:
        listed = self.tiers.get(call.tool, self.default)
        is_overridable = call.tool in self.overridable

        def evaluate_at(requested_tier: Tier | None) -> Evaluation:
            asked = requested_tier or listed
            return Evaluation(
                tier=asked if is_overridable else join(listed, asked),
                reasons=(),
                allow=self.allow,
                requirement=Requirement(approvals=1, of=()),
                policy_digest="sha256:fake",
                ttl_ms=1,
                channel="#agents",
                overridable=is_overridable,
            )

        return apply_hint(evaluate_at, call.hint)

    def _open(self, turn: Turn, index: int, evaluation: Evaluation) -> Item:
        call = turn.calls[index]
        ref = turn.ref
        ctx = Context(
            tenant="t",
            agent=ref.agent,
            thread=ref.thread,
            ns=ref.ns,
            message_id=ref.message_id,
            tool_call_id=call.tool_call_id,
        )
        number = len(self.items)
        document = digest.action_document(
            tool=call.tool,
            args=call.args,
            ctx=ctx.as_dict(),
            salt=f"{number:032x}",
        )
        if call.state is not None and evaluation.tier.needs_people:
            document = with_state(document, call.state)
        item = Item(
            id=f"ap{number}.0",
            index=0,
            ctx=ctx,
            tool=call.tool,
            tier=evaluation.tier,
            reasons=evaluation.reasons,
            allow=evaluation.allow,
            requirement=evaluation.requirement,
            requested=document,
            action=document,
            description=evaluation.description,
            agent_description=evaluation.agent_description,
            args_schema=turn.schemas.get(call.tool),
        )
        self.items[item.id] = item
        self.runs[item.id] = ref.run_ref
        return item

    def _claimed(self, item: Item) -> Claimed:
        moved = self._transition(item.id, Transition.CLAIM)
        self.items[item.id] = moved.with_(fence=moved.fence + 1)
        return self.tamper(
            Claimed(
                fence=moved.fence + 1,
                action=item.action,
                action_hash=item.action_hash,
                idempotency_key=digest.claim_key(
                    item.ctx.as_dict(), stateless_hash(item.action)
                ),
                lease_s=self.lease_s,
                edit=item.edit,
                reconciled=last_finding(item),
                requested=requested_before(item),
            )
        )

    def _is_owner(self, item_id: str, fence: int) -> bool:
        item = self.items[item_id]
        return item.state is ItemState.EXECUTING and item.fence == fence

    def _supersede_older(self, ref: TurnRef) -> None:
        for item in list(self.items.values()):
            is_here = (item.ctx.thread, item.ctx.ns) == (ref.thread, ref.ns)
            is_older = is_here or self._is_below(item, ref)
            if is_older and item.is_pending and _ref_of(item) != _named(ref):
                self._transition(item.id, Transition.SUPERSEDE)

    def _of_message(self, ref: TurnRef) -> list[Item]:
        """Return the items of a message: this agent's, else another's of the run."""
        items = self.items.values()
        own = [item for item in items if _ref_of(item) == _named(ref)]
        return own or [
            item
            for item in items
            if item.ctx.message_id == ref.message_id
            and self.runs[item.id] == ref.run_ref
        ]

    def _is_below(self, item: Item, ref: TurnRef) -> bool:
        return self.runs[item.id] == ref.run_ref and is_inside(item.ctx.ns, ref.ns)

    def _settle(
        self, item_id: str, transition: Transition, verb: Verb, text: str = ""
    ) -> None:
        decision = DecisionRecord(verb=verb, by=ANNA, at_ms=1, text=text)
        self._transition(item_id, transition, decision=decision)

    def _transition(
        self, item_id: str, transition: Transition, **changes: object
    ) -> Item:
        item = self.items[item_id]
        state = lifecycle.advance(item.state, transition)
        self.items[item_id] = item.with_(state=state, **changes)
        return self.items[item_id]


def _ref_of(item: Item) -> TurnRef:
    return TurnRef(
        agent=item.ctx.agent,
        thread=item.ctx.thread,
        ns=item.ctx.ns,
        message_id=item.ctx.message_id,
    )


def _named(ref: TurnRef) -> TurnRef:
    return ref.with_(nested_in=None)


def _is_of(item: Item, request: ClaimRequest) -> bool:
    return (
        _ref_of(item) == _named(request.ref)
        and item.tool == request.tool
        and item.ctx.tool_call_id == request.tool_call_id
    )
