"""Gateway service for agents: submit, claim, finish, read results.

`AgentService` is the in-process implementation of
`keyturn.gateway.protocol.port.Gateway`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

from typing_extensions import override

from keyturn.gateway.approvals.ending import end_waiting
from keyturn.gateway.approvals.events import EventName, call_event
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.policy.evaluate import is_idempotent, listed_tier
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import (
    EditOutcome,
    EditRecord,
    ItemState,
    RunRef,
    is_inside,
)
from keyturn.gateway.protocol.wire import (
    AgentNote,
    CallBegun,
    CallEnd,
    CallOutcome,
    CallProgress,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Done,
    EditsKnown,
    InDoubt,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.service.answering import (
    late_report,
    outcome_of,
    told_edit,
    unproven_outcome,
)
from keyturn.gateway.service.claiming import ClaimService
from keyturn.gateway.service.proving import are_proven, is_edit_proven, proven_words
from keyturn.gateway.service.stored_verdicts import StoredVerdicts
from keyturn.gateway.service.submitting import Submitter
from keyturn.gateway.store.atomic_write import Loaded, Write
from keyturn.gateway.store.auto_runs import Note
from keyturn.gateway.store.keys import tenant_of_approval
from keyturn.gateway.store.run_list import Listed
from keyturn.gateway.store.sealing import Sealed
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.asking import Triage

logger = logging.getLogger(__name__)

# Each approval is a separate reading; a run may have thousands.
MAX_HISTORY = 64
"""Most approvals of a run that one reading goes back, the newest ones."""

_RAN = {ItemState.EXECUTED, ItemState.FAILED}


class AgentService(ClaimService):
    """The operations for agents. None of them can approve a call for people.

    Args:
        store: the store.
        policy: returns the policy in force now.
        tenant: the tenant of the agents, never taken from their requests.
        triage: assesses the calls that the policy selects for it.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        *,
        tenant: str = "default",
        triage: Triage | None = None,
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._submitter = Submitter(store, policy, tenant=tenant, triage=triage)

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate all calls of a turn; see `Gateway.submit`."""
        verdicts, older = await self._submitter.submit(turn)
        # After the turn is open: a crash in between leaves older calls waiting until
        # the next turn or their deadline. In the other order it would end calls without
        # a replacement.
        if older:
            ended = [one.id for one in older if _is_at(one, turn.ref)]
            await self.supersede_approvals(ended)
        return verdicts

    @override
    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """Grant one execution; see `ClaimService.claim`."""
        reply = await super().claim(request)
        if isinstance(reply, Claimed | Done | InDoubt) and reply.edit is not None:
            return reply.with_(edit=self._sealed(reply.edit, request.ref.run_ref))
        return reply

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return the outcomes of the recorded calls of one message in the whole run."""
        approvals = await self._of_message(ref)
        found = [
            outcome_of(proven_words(self._store, one, item))
            if await are_proven(self._store, one, item)
            else unproven_outcome(item)
            for one in approvals
            for item in one.items
        ]
        return tuple(
            one.with_(edit=self._sealed(one.edit, ref.run_ref)) if one.edit else one
            for one in found
        )

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return edits of calls that ran; see the port `Gateway`."""
        listed = await self._store.approvals.of_run(self._keys, run, newest=MAX_HISTORY)
        ids = [one.id for one in listed if _is_within(one.ns, within)]
        found = [
            self._sealed(edit, run)
            for loaded in await self._store.approvals.load_each(ids)
            for item in loaded.approval.items
            if (edit := told_edit(item)) is not None
            and item.state in _RAN
            and await is_edit_proven(self._store, loaded.approval, item)
        ]
        return tuple(found)

    async def supersede(self, ref: TurnRef) -> None:
        """End the waiting calls of a turn and inside it: the thread moved on."""

        def is_ended(item: Item) -> bool:
            # Of this agent only this message; of agents inside its tools everything.
            return item.ctx.ns != ref.ns or item.ctx.message_id == ref.message_id

        approvals = self._store.approvals
        listed = await approvals.open_of_run(self._keys, ref.run_ref)
        listed = [one for one in listed if _is_at(one, ref)]
        for approval_id in await approvals.unfinished(self._keys, listed):
            await self._end(approval_id, Transition.SUPERSEDE, is_ended)
        # Also another agent's calls in this message: nothing resumes them any more.
        await self.supersede_approvals(one.id for one in await self._of_message(ref))

    async def supersede_run(self, run: RunRef) -> None:
        """End all waiting calls of a run, including those inside its tools."""
        ids = await self._store.approvals.unfinished_of_run(self._keys, run)
        await self.supersede_approvals(ids)

    async def supersede_approvals(self, approval_ids: Iterable[str]) -> None:
        """End the waiting calls of these approvals, because their thread moved on."""
        for approval_id in approval_ids:
            await self._end(approval_id, Transition.SUPERSEDE)

    async def withdraw(self, item_ids: frozenset[str]) -> None:
        """End waiting items whose calls the agent has dropped."""
        for approval_id in {approval_of(item_id)[0] for item_id in item_ids}:
            await self._end(
                approval_id, Transition.WITHDRAW, lambda item: item.id in item_ids
            )

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return the edits that were made in a run, and the unknown ones.

        An edit was made if the bot signed it and the gateway's record has it with the
        same hash, item and run. For an item without a record, a valid seal of the edit
        suffices; without a seal the edit is unknown.
        """
        made, unknown = dict[str, EditOutcome](), set[str]()
        for each, reference in edits.items():
            item_id, _, seal = reference.partition(" ")
            found = await self._found(item_id)
            if found is None and self._is_sealed(each, item_id, ref.run_ref, seal):
                made[each] = EditOutcome.UNKNOWN
            elif found is None:
                # The gateway never issued an id of another form: such an edit is
                # forged, not unknown.
                if tenant_of_approval(item_id.rpartition(".")[0]) is not None:
                    unknown.add(each)
            elif _is_of_run(found[0], ref):
                told = told_edit(found[1])
                # The whole record is compared, because editor and reason may be forged
                # as well.
                is_ours = told is not None and edit_hash(told) == each
                if told and is_ours and await is_edit_proven(self._store, *found):
                    made[each] = told.outcome
            elif found[0].agent != ref.agent:
                # The same as for an id without a record: calls of other agents stay
                # hidden.
                unknown.add(each)
        return EditsKnown(made=made, unknown=frozenset(unknown))

    def _sealed(self, edit: EditRecord, run: RunRef) -> EditRecord:
        """Return an edit with its seal for its run."""
        place = self._place(edit.item_id, run)
        body = edit_hash(edit).encode()
        return edit.with_(seal=self._store.sealing.seal(Sealed.EDIT, place, body).hex())

    def _is_sealed(self, name: str, item_id: str, run: RunRef, seal: str) -> bool:
        try:
            given = bytes.fromhex(seal)
        except ValueError:
            return False
        place, sealing = self._place(item_id, run), self._store.sealing
        return sealing.is_valid(Sealed.EDIT, place, name.encode(), given)

    def _place(self, item_id: str, run: RunRef) -> tuple[str, ...]:
        return self._tenant, run.agent, run.thread, item_id

    # At-most-once guard of auto-approved calls, across lease owners. All other calls
    # are items of an approval.

    def keeps_calls(self) -> bool:
        """Return whether a lease applies: one in use, or one that must be free."""
        return self._store.auto_runs.is_checked

    async def report_progress(self, progress: CallProgress) -> CallBegun:
        """Return whether a call may run, or note its progress.

        Raises:
            LeaseLost: when another process runs the thread now.
        """
        calls = self._store.auto_runs
        if not calls.is_kept:
            if progress.verb == "begin":
                await calls.check_unheld()
            return CallBegun(keeps_result=False)
        turn_key = self._turn_key(progress.ref)
        call = progress.tool_call_id
        if progress.verb != "begin":
            await calls.note(self._keys, turn_key, progress.verb, call)
            return CallBegun()
        agent, tool = progress.ref.agent, progress.tool
        # By the current policy, because the tool would run again now.
        repeats = is_idempotent(self._policy(), agent=agent, tool=tool)
        begun = await calls.begin(self._keys, turn_key, call, repeats=repeats)
        if begun.word == "cut_off":
            logger.warning("call.cut_off agent=%s tool=%s", agent, tool)
        return CallBegun(
            may_run=begun.word == "run", result=begun.result, keeps_result=begun.is_kept
        )

    async def ended(self, end: CallEnd) -> None:
        """Record the end of a call, and count a failure once."""
        calls, turn_key = self._store.auto_runs, self._turn_key(end.ref)
        verb: Note = "end" if end.is_over else "give_back"
        await calls.note(self._keys, turn_key, verb, end.tool_call_id, end.result)
        if end.result.ok:
            return
        ref = end.ref
        reported = (end.tool, end.tool_call_id)
        # An agent's report is not trusted: only failures of cleared calls count.
        if not any(
            one.runs_unclaimed and (one.tool, one.tool_call_id) == reported
            for one in await self._verdicts(turn_key)
        ):
            logger.warning("call.unknown_failure agent=%s", ref.agent)
            return
        event = call_event(EventName.CALL_FAILED, self._tenant, ref, end.tool)
        # Stable for a call, so that a repeated report counts once.
        name = f"{turn_key.removeprefix('sha256:')} {end.tool_call_id}"
        await self._store.agent_load.count_failure(self._keys, name, event)

    async def tools_of(self, ref: TurnRef, tool_call_id: str) -> frozenset[str]:
        """Return the tools of the calls with this id in a turn; empty for none."""
        verdicts = await self._verdicts(self._turn_key(ref))
        return frozenset(it.tool for it in verdicts if it.tool_call_id == tool_call_id)

    async def _verdicts(self, turn_key: str) -> tuple[Verdict, ...]:
        stored = await self._store.agent_load.verdicts(self._keys, turn_key)
        try:
            if not stored:
                return ()
            sealing = self._store.sealing
            return StoredVerdicts.read(sealing, turn_key, stored).verdicts
        except CorruptRecord as error:
            # The record of the call stays; only its failure is not counted.
            log_failure(logger, error, "turn.unread")
            return ()

    def _turn_key(self, ref: TurnRef) -> str:
        return digest.turn_key(tenant=self._tenant, **ref.names)

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return late reports; see `Gateway.late_reports`."""
        found = [await self._found(item_id) for item_id in item_ids]
        mine = [one[1] for one in found if one and _is_of_run(one[0], ref)]
        reports = map(late_report, mine)
        return tuple(report for report in reports if report is not None)

    async def note(self, agent: str) -> AgentNote:
        """Return the tools of an agent that need a person."""
        policy = self._policy()
        rule = policy.agents.get(agent)
        names = sorted({*policy.tools, *(rule.tools if rule else ())})
        return AgentNote(
            gated_tools=tuple(
                name
                for name in names
                if listed_tier(policy, agent=agent, tool=name).needs_people
            ),
            other_tools_are_gated=policy.defaults.tier.needs_people,
        )

    async def owner_of(self, item_id: str) -> tuple[str, str] | None:
        """Return agent and tool of an item of this tenant; None if it is unknown."""
        found = await self._found(item_id)
        return None if found is None else (found[0].agent, found[1].tool)

    async def _found(self, item_id: str) -> tuple[Approval, Item] | None:
        """Return an item of this tenant for display; None if missing or corrupt."""
        try:
            approval_id, index = approval_of(item_id)
        except ValueError:
            return None
        try:
            loaded = await self._store.approvals.load(approval_id)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
            return None
        # An agent may send any id, even one of another tenant's call.
        if loaded is None or loaded.approval.tenant != self._tenant:
            return None
        items = loaded.approval.items
        return (loaded.approval, items[index]) if index < len(items) else None

    async def _of_message(self, ref: TurnRef) -> list[Approval]:
        """Return the approvals of a message: this agent's, else another's of the run.

        Two agents may have messages with the same id; then each gets its approvals.
        """
        listed = await self._store.approvals.of_run(self._keys, ref.run_ref)
        own = await self._made_of([one for one in listed if one.ns == ref.ns], ref)
        # Bounded: a message of no agent in this run would need all approvals.
        return own or await self._made_of(listed[-MAX_HISTORY:], ref)

    async def _made_of(self, listed: Sequence[Listed], ref: TurnRef) -> list[Approval]:
        found = await self._store.approvals.load_each(one.id for one in listed)
        approvals = [loaded.approval for loaded in found]
        return [one for one in approvals if one.message_id == ref.message_id]

    async def _end(
        self,
        approval_id: str,
        transition: Literal[Transition.SUPERSEDE, Transition.WITHDRAW],
        ends: Callable[[Item], bool] = lambda _: True,
    ) -> None:
        async def compute(loaded: Loaded) -> Write | None:
            found = end_waiting(loaded.approval, transition, loaded.now_ms, ends=ends)
            # Fenced: a paused lease owner must not end calls of its successor.
            return Write(found, is_fenced=True) if found else None

        try:
            await self._store.approvals.change(approval_id, compute)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")


def _is_of_run(approval: Approval, ref: TurnRef) -> bool:
    """Return whether an approval belongs to the run that a turn is part of.

    The same agent may run alone once and inside its outer graph another time. Then one
    of the two names no outer run.
    """
    is_one_agent = (approval.agent, approval.thread) == (ref.agent, ref.thread)
    is_outermost = approval.nested_in is None or ref.nested_in is None
    return approval.run_ref == ref.run_ref or (is_one_agent and is_outermost)


def _is_within(ns: str, outer: str) -> bool:
    return not outer or ns == outer or is_inside(ns, outer)


def _is_at(one: Listed, ref: TurnRef) -> bool:
    """Return whether an approval has the turn's namespace or one inside it."""
    return one.ns == ref.ns or is_inside(one.ns, ref.ns)
