"""Gateway service for agents: submit, claim, finish, read results.

`AgentService` is the in-process implementation of
`twokey.gateway.protocol.port.Gateway`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

from twokey.gateway.approvals.ending import end_waiting
from twokey.gateway.approvals.lifecycle import Transition
from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.failures import log_failure
from twokey.gateway.policy.evaluate import listed_tier
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.edits import edit_hash
from twokey.gateway.protocol.records import EditRecord, RunRef, is_inside
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    AgentNote,
    CallOutcome,
    EditsKnown,
    LateReport,
    Turn,
    TurnRef,
    Verdict,
)
from twokey.gateway.service.auto_runs import AutoRunService
from twokey.gateway.service.call_outcomes import (
    late_report,
    outcome_of,
    unproven_outcome,
)
from twokey.gateway.service.claiming import ClaimService
from twokey.gateway.service.claims_ahead import ClaimsAhead
from twokey.gateway.service.proven_words import (
    are_proven,
    is_edit_proven,
    proven_words,
)
from twokey.gateway.service.submitting import Submitter
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.keys import shard_of_approval
from twokey.gateway.store.store import Store
from twokey.gateway.store.turn_opening import Listed
from twokey.gateway.triage.asking import Triage

logger = logging.getLogger(__name__)

# Each one is a reading of its own; a run may have thousands of approvals.
MAX_HISTORY = 64
"""How many approvals of a run one look back reads at most, the newest."""

_RAN = {ItemState.EXECUTED, ItemState.FAILED}


class AgentService(ClaimService, AutoRunService):
    """What agents may ask. Nothing here can approve anything.

    Args:
        store: where everything is kept.
        policy: returns the policy in force now.
        tenant: whose agents these are; never taken from an agent's own word.
        triage: asked about the calls that the policy puts to it.

    Attributes:
        ahead: asks the policy about calls that are claimed next.
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
        self.ahead = ClaimsAhead(store, policy, tenant=tenant)
        self._submitter = Submitter(store, policy, tenant=tenant, triage=triage)

    async def submit(self, turn: Turn) -> tuple[Verdict, ...]:
        """Evaluate all calls of a turn; see `Gateway.submit`."""
        verdicts, older = await self._submitter.submit(turn)
        # After the turn is open: a crash in between leaves older calls waiting, which
        # the next turn or their deadline ends. In the other order it would end calls
        # that nothing has replaced.
        if older:
            ended = [one.id for one in older if _is_at(one, turn.ref)]
            await self.supersede_approvals(ended)
        return verdicts

    async def outcomes(self, ref: TurnRef) -> tuple[CallOutcome, ...]:
        """Return the outcomes of the held calls of one message, in the whole run."""
        approvals = await self._of_message(ref)
        found = [
            outcome_of(proven_words(self._store, one, item))
            if await are_proven(self._store, one, item)
            else unproven_outcome(item)
            for one in approvals
            for item in one.items
        ]
        return tuple(found)

    async def history(self, run: RunRef, within: str = "") -> tuple[EditRecord, ...]:
        """Return edits of calls that ran; see the port `Gateway`."""
        listed = await self._store.approvals.of_run(
            self._keys_of(run.agent), self._tenant, run, newest=MAX_HISTORY
        )
        ids = [one.id for one in listed if _is_within(one.ns, within)]
        found = [
            item.edit
            for loaded in await self._store.approvals.load_each(ids)
            for item in loaded.approval.items
            if item.edit is not None
            and item.state in _RAN
            and await is_edit_proven(self._store, loaded.approval, item)
        ]
        return tuple(found)

    async def supersede(self, ref: TurnRef) -> None:
        """End what still waits of this turn, and inside it: the thread moved on."""

        def is_ended(item: Item) -> bool:
            # Of this agent only this message; of agents inside its tools everything.
            return item.ctx.ns != ref.ns or item.ctx.message_id == ref.message_id

        approvals, run = self._store.approvals, ref.run_ref
        keys = self._keys_of(run.agent)
        listed = await approvals.open_of_run(keys, self._tenant, run)
        listed = [one for one in listed if _is_at(one, ref)]
        for approval_id in await approvals.unfinished(keys, listed):
            await self._end(approval_id, Transition.SUPERSEDE, is_ended)
        # Of another agent's message, which nobody advances any more.
        await self.supersede_approvals(one.id for one in await self._of_message(ref))

    async def supersede_run(self, run: RunRef) -> None:
        """End everything that waits in a run, inside its tools too."""
        approvals = self._store.approvals
        await self.supersede_approvals(
            await approvals.unfinished_of_run(
                self._keys_of(run.agent), self._tenant, run
            )
        )

    async def supersede_approvals(self, approval_ids: Iterable[str]) -> None:
        """End what still waits in these approvals: their thread moved on."""
        for approval_id in approval_ids:
            await self._end(approval_id, Transition.SUPERSEDE)

    async def withdraw(self, item_ids: frozenset[str]) -> None:
        """End pending items that nobody waits for: the agent dropped the call."""
        for approval_id in {approval_of(item_id)[0] for item_id in item_ids}:
            await self._end(
                approval_id, Transition.WITHDRAW, lambda item: item.id in item_ids
            )

    async def edits_known(self, ref: TurnRef, edits: Mapping[str, str]) -> EditsKnown:
        """Return which edits were made in a run, and of which nothing is known.

        An edit was made when our record has it, hash, item and run alike, and the bot
        signed it. Of an item that we have no record of, or no longer, we can say
        neither.
        """
        made, unknown = set[str](), set[str]()
        for each, item_id in edits.items():
            found = await self._found(item_id)
            if found is None:
                # An id that is none of ours was never made by us: such an edit is
                # forged, not unknown.
                if shard_of_approval(item_id.rpartition(".")[0]) is not None:
                    unknown.add(each)
            elif _is_of_run(found[0], ref):
                record = found[1].edit
                # The whole record is compared: who changed it and why may be forged as
                # well.
                is_ours = record is not None and edit_hash(record) == each
                if is_ours and await is_edit_proven(self._store, *found):
                    made.add(each)
        return EditsKnown(made=frozenset(made), unknown=frozenset(unknown))

    async def late_reports(
        self, ref: TurnRef, item_ids: Collection[str]
    ) -> tuple[LateReport, ...]:
        """Return late reports; see `Gateway.late_reports`."""
        found = [await self._found(item_id) for item_id in item_ids]
        mine = [one[1] for one in found if one and _is_of_run(one[0], ref)]
        reports = map(late_report, mine)
        return tuple(report for report in reports if report is not None)

    async def note(self, agent: str) -> AgentNote:
        """Return which tools of an agent need a person."""
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
        """Return agent and tool of an item of this tenant, None where there is none.

        Raises:
            NewerRecord: a newer version wrote it; it may be anybody's.
        """
        # By what is remembered: this does not change, and is asked at each claim.
        found = await self._found(item_id, skips_newer=False, may_be_older=True)
        return None if found is None else (found[0].agent, found[1].tool)

    async def _found(
        self, item_id: str, *, skips_newer: bool = True, may_be_older: bool = False
    ) -> tuple[Approval, Item] | None:
        """Return an item for telling of it."""
        try:
            approval_id, index = approval_of(item_id)
        except ValueError:
            return None
        kept = self._store.approvals
        approval = kept.remembered(approval_id) if may_be_older else None
        try:
            if approval is None and (loaded := await kept.load(approval_id)):
                approval = loaded.approval
        except NewerRecord:
            if skips_newer:
                return None
            raise
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")
            return None
        # An agent may send any id, also that of another tenant's call.
        if approval is None or approval.tenant != self._tenant:
            return None
        return (
            (approval, approval.items[index]) if index < len(approval.items) else None
        )

    async def _of_message(self, ref: TurnRef) -> list[Approval]:
        """Return the approvals of a message: this agent's, else another's of the run.

        Two agents may have messages with one id; then each has its own.
        """
        listed = await self._listed(ref)
        own = await self._made_of([one for one in listed if one.ns == ref.ns], ref)
        # Bounded: for a message that no agent of this run sent, all approvals would be
        # read.
        return own or await self._made_of(listed[-MAX_HISTORY:], ref)

    async def _made_of(self, listed: Sequence[Listed], ref: TurnRef) -> list[Approval]:
        # One of a newer version stops this: what is missing would read as not run.
        found = await self._store.approvals.load_each(
            (one.id for one in listed), skips_newer=False
        )
        approvals = [loaded.approval for loaded in found]
        return [one for one in approvals if one.message_id == ref.message_id]

    async def _listed(self, ref: TurnRef) -> list[Listed]:
        run = ref.run_ref
        keys = self._keys_of(run.agent)
        return await self._store.approvals.of_run(keys, self._tenant, run)

    async def _end(
        self,
        approval_id: str,
        transition: Literal[Transition.SUPERSEDE, Transition.WITHDRAW],
        ends: Callable[[Item], bool] = lambda _: True,
    ) -> None:
        async def compute(loaded: Loaded) -> Write | None:
            found = end_waiting(loaded.approval, transition, loaded.now_ms, ends=ends)
            # Fenced: a holder that was paused must not end what the new holder asks.
            return Write(found, is_fenced=True) if found else None

        try:
            await self._store.approvals.change(approval_id, compute)
        except NewerRecord as error:
            logger.warning("record.newer %s", error)
        except CorruptRecord as error:
            log_failure(logger, error, "record.corrupt")


def _is_of_run(approval: Approval, ref: TurnRef) -> bool:
    """Return whether an approval belongs to the run that a turn is part of.

    One agent may be run by itself now, and then by what brings back the graph around
    it: then one of the two names no run outside.
    """
    is_one_agent = (approval.agent, approval.thread) == (ref.agent, ref.thread)
    is_outermost = approval.nested_in is None or ref.nested_in is None
    return approval.run_ref == ref.run_ref or (is_one_agent and is_outermost)


def _is_within(ns: str, outer: str) -> bool:
    return not outer or ns == outer or is_inside(ns, outer)


def _is_at(one: Listed, ref: TurnRef) -> bool:
    """Return whether an approval stands where this turn does, or inside it."""
    return one.ns == ref.ns or is_inside(one.ns, ref.ns)
