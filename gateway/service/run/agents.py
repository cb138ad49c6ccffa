"""Gateway service for agents: submit, claim, finish, read results, drive runs.

`AgentService` is the in-process implementation of
`keyturn.gateway.protocol.http_api.Gateway`. `RunCalls` and `RemoteRunService` serve
runs that are driven by programs, in the gateway's process or another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import ValidationError
from typing_extensions import override

from keyturn.gateway import tracing
from keyturn.gateway.approvals.ending import end_waiting
from keyturn.gateway.approvals.events import Event, EventName, call_event
from keyturn.gateway.approvals.evidence import SOMEBODY, redacted
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import Approval, Item, Origin, approval_of
from keyturn.gateway.approvals.timing import end_of, is_late
from keyturn.gateway.clock import now_s
from keyturn.gateway.errors import CorruptRecord, GraphError, LeaseLost, NotAllowed
from keyturn.gateway.failures import log_failure
from keyturn.gateway.policy.evaluate import is_idempotent, listed_tier, may_raise
from keyturn.gateway.protocol import digest, http_api, wire
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import (
    NO_SLACK_ID,
    EditOutcome,
    EditRecord,
    ItemState,
    RunRef,
    is_inside,
)
from keyturn.gateway.service.report.event_feed import EventFeed
from keyturn.gateway.service.run import claiming
from keyturn.gateway.service.run.proving import are_proven, is_edit_proven
from keyturn.gateway.service.submit.submitting import StoredVerdicts, Submitter
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.keys import tenant_of_approval
from keyturn.gateway.store.records.approval_indexes import Listed
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.store.runs.auto_runs import Note
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.threads import REACH, ThreadFacts, Why
from keyturn.gateway.store.scripts.fences import Lease
from keyturn.gateway.store.sealing.sealing import Sealed
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

# Each approval is a separate reading; a run may have thousands.
MAX_HISTORY = 64
"""Most approvals of a run that one reading goes back, the newest ones."""

_RAN = {ItemState.EXECUTED, ItemState.FAILED}


class AgentService(claiming.ClaimService, Submitter):
    """The operations for agents. None of them can approve a call for people.

    Args:
        store: the store.
        policy: returns the policy in force now.
        tenant: the tenant of the agents, never taken from their requests.
        triage: assesses the calls that the policy selects for it.
    """

    async def submit(self, turn: wire.Turn) -> tuple[wire.Verdict, ...]:
        """Evaluate all calls of a turn; see `Gateway.submit`."""
        with tracing.span("keyturn.submit", {"gen_ai.agent.name": turn.ref.agent}):
            verdicts, older = await self.submit_turn(turn)
        # After the turn is open: a crash in between leaves older calls waiting until
        # the next turn or their deadline. In the other order it would end calls without
        # a replacement.
        if older:
            ended = [one.id for one in older if _is_at(one, turn.ref)]
            await self.supersede_approvals(ended)
        return verdicts

    @override
    async def claim(self, request: wire.ClaimRequest) -> wire.ClaimReply:
        """Grant one execution; see `ClaimService.claim`."""
        reply = await super().claim(request)
        if (
            isinstance(reply, wire.Claimed | wire.Done | wire.InDoubt | wire.HandedOver)
            and reply.edit is not None
        ):
            return reply.with_(edit=self._sealed(reply.edit, request.ref.run_ref))
        return reply

    async def outcomes(self, ref: wire.TurnRef) -> tuple[wire.CallOutcome, ...]:
        """Return the outcomes of the recorded calls of one message in the whole run."""
        approvals = await self._of_message(ref)
        found = [
            claiming.outcome_of(self._told(one, item))
            if await are_proven(self._store, one, item)
            else claiming.unproven_outcome(item)
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
            if (edit := claiming.told_edit(self._told(loaded.approval, item)))
            and item.state in _RAN
            and await is_edit_proven(self._store, loaded.approval, item)
        ]
        return tuple(found)

    async def supersede(self, ref: wire.TurnRef) -> None:
        """End the waiting calls of a turn and inside it: the thread moved on."""

        def is_ended(item: Item) -> bool:
            # Of this agent only this message; of agents inside its tools everything.
            return item.ctx.ns != ref.ns or item.ctx.message_id == ref.message_id

        runs = self._store.approvals
        listed = await runs.open_of_run(self._keys, ref.run_ref)
        for one in listed:
            if _is_at(one, ref):
                await self._end(one.id, Transition.SUPERSEDE, is_ended)
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

    async def withdraw_items(self, item_ids: frozenset[str]) -> None:
        """End waiting items whose calls the agent has dropped."""
        for approval_id in {approval_of(item_id)[0] for item_id in item_ids}:
            await self._end(
                approval_id, Transition.WITHDRAW, lambda item: item.id in item_ids
            )

    async def edits_known(
        self, ref: wire.TurnRef, edits: Mapping[str, str]
    ) -> wire.EditsKnown:
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
                told = claiming.told_edit(found[1])
                # The whole record is compared, because editor and reason may be forged
                # as well. It was told with or without the name, by the policy then.
                is_ours = told is not None and each in {
                    edit_hash(told),
                    edit_hash(told.with_(by=SOMEBODY)),
                }
                if told and is_ours and await is_edit_proven(self._store, *found):
                    made[each] = told.outcome
            elif found[0].agent != ref.agent:
                # The same as for an id without a record: calls of other agents stay
                # hidden.
                unknown.add(each)
        return wire.EditsKnown(made=made, unknown=frozenset(unknown))

    def _sealed(self, edit: EditRecord, run: RunRef) -> EditRecord:
        """Return an edit with its seal for its run."""
        place = self._place(edit.item_id, run)
        body = edit_hash(edit).encode()
        keys = self._store.sealing.keys
        return edit.with_(seal=keys.make(Sealed.EDIT, place, body).hex())

    def _is_sealed(self, name: str, item_id: str, run: RunRef, seal: str) -> bool:
        try:
            given = bytes.fromhex(seal)
        except ValueError:
            return False
        place, keys = self._place(item_id, run), self._store.sealing.keys
        return keys.is_valid(given, Sealed.EDIT, place, name.encode())

    def _place(self, item_id: str, run: RunRef) -> tuple[str, ...]:
        return self._tenant, run.agent, run.thread, item_id

    # Tool definitions of other servers. A server may change what its tools say about
    # themselves, and with that what a model does with them. The approval is an ordinary
    # call (`DEFINITIONS_TOOL`): people see it on a card, and its claim is the only way
    # to a kept definition.

    async def definitions(
        self, asked: http_api.DefinitionsQuestion
    ) -> http_api.Definitions:
        """Return the approved definitions of a server's tools."""
        store = self._store.definitions
        return await store.read(self._keys, asked.agent, asked.server)

    async def keep_definitions(self, item_id: str, fence: int) -> bool:
        """Keep the definitions of a claimed call; False when the claim is lost.

        They come from the record that people decided on, never from the request.

        Raises:
            NotAllowed: it is another call, or there are too many definitions.
        """
        known = await self._found(item_id)
        if known is None:
            return False
        approval, item = known
        if (item.state, item.fence) != (ItemState.EXECUTING, fence):
            return False
        refused = NotAllowed(f"The call {item_id!r} approves no definitions of tools.")
        if item.tool != http_api.DEFINITIONS_TOOL:
            raise refused
        try:
            found = http_api.DefinitionsToApprove.model_validate(item.args)
        except ValidationError as error:
            raise refused from error
        await self._store.definitions.approve(
            self._keys, approval.agent, found.server, found.tools
        )
        return True

    # At-most-once guard of auto-approved calls, across lease owners. All other calls
    # are items of an approval.

    def keeps_calls(self) -> bool:
        """Return whether a lease applies: one in use, or one that must be free."""
        return self._store.auto_runs.is_checked

    async def report_progress(self, progress: wire.CallProgress) -> wire.CallBegun:
        """Return whether a call may run, or note its progress.

        Raises:
            LeaseLost: when another process runs the thread now.
        """
        calls = self._store.auto_runs
        if not calls.is_kept:
            if progress.verb == "begin":
                await calls.check_unheld()
            return wire.CallBegun(keeps_result=False)
        turn_key = self._turn_key(progress.ref)
        call = progress.tool_call_id
        if progress.verb != "begin":
            await calls.note(self._keys, turn_key, progress.verb, call)
            return wire.CallBegun()
        agent, tool = progress.ref.agent, progress.tool
        # By the current policy, because the tool would run again now.
        repeats = is_idempotent(self._policy(), agent=agent, tool=tool)
        begun = await calls.begin(self._keys, turn_key, call, repeats=repeats)
        if not begun.may_run and begun.result is None:
            logger.warning("call.cut_off agent=%s tool=%s", agent, tool)
        return begun

    async def ended(self, end: wire.CallEnd) -> None:
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

    async def tools_of(self, ref: wire.TurnRef, tool_call_id: str) -> frozenset[str]:
        """Return the tools of the calls with this id in a turn; empty for none."""
        verdicts = await self._verdicts(self._turn_key(ref))
        return frozenset(it.tool for it in verdicts if it.tool_call_id == tool_call_id)

    async def _verdicts(self, turn_key: str) -> tuple[wire.Verdict, ...]:
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

    def _turn_key(self, ref: wire.TurnRef) -> str:
        return digest.turn_key(tenant=self._tenant, **ref.names)

    async def late_reports(
        self, ref: wire.TurnRef, item_ids: Collection[str]
    ) -> tuple[wire.LateReport, ...]:
        """Return late reports; see `Gateway.late_reports`."""
        found = [await self._found(item_id) for item_id in item_ids]
        mine = [one[1] for one in found if one and _is_of_run(one[0], ref)]
        reports = map(claiming.late_report, mine)
        return tuple(report for report in reports if report is not None)

    async def note(self, agent: str) -> wire.AgentNote:
        """Return the tools of an agent that need a person."""
        policy = self._policy()
        rule = policy.agents.get(agent)
        names = sorted({*policy.tools, *(rule.tools if rule else ())})
        tiers = {it: listed_tier(policy, agent=agent, tool=it) for it in names}
        return wire.AgentNote(
            gated_tools=tuple(it for it, tier in tiers.items() if tier.needs_people),
            other_tools_are_gated=policy.defaults.tier.needs_people,
            tiers=tiers,
            other_tier=listed_tier(policy, agent=agent, tool=""),
            varying=tuple(it for it in names if may_raise(policy, agent, it)),
        )

    async def owner_of(self, item_id: str) -> tuple[str, str] | None:
        """Return agent and tool of an item of this tenant; None if it is unknown."""
        found = await self._found(item_id)
        return None if found is None else (found[0].agent, found[1].tool)

    async def _found(self, item_id: str) -> tuple[Approval, Item] | None:
        """Return an item of this tenant for display; None if missing or corrupt."""
        approval_id, index = approval_of(item_id)
        # An agent may send any id, even one of another tenant's call.
        for loaded in await self._load_each([approval_id]):
            if index < len(loaded.approval.items):
                return loaded.approval, loaded.approval.items[index]
        return None

    async def _of_message(self, ref: wire.TurnRef) -> list[Approval]:
        """Return the approvals of a message: this agent's, else another's of the run.

        Two agents may have messages with the same id; then each gets its approvals.
        """
        listed = await self._store.approvals.of_run(self._keys, ref.run_ref)
        own = await self._made_of([one for one in listed if one.ns == ref.ns], ref)
        # Bounded: a message of no agent in this run would need all approvals.
        return own or await self._made_of(listed[-MAX_HISTORY:], ref)

    async def _made_of(
        self, listed: Sequence[Listed], ref: wire.TurnRef
    ) -> list[Approval]:
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


def _is_of_run(approval: Approval, ref: wire.TurnRef) -> bool:
    """Return whether an approval belongs to the run that a turn is part of.

    The same agent may run alone once and inside its outer graph another time. Then one
    of the two names no outer run.
    """
    is_one_agent = (approval.agent, approval.thread) == (ref.agent, ref.thread)
    is_outermost = approval.nested_in is None or ref.nested_in is None
    return approval.run_ref == ref.run_ref or (is_one_agent and is_outermost)


def _is_within(ns: str, outer: str) -> bool:
    return not outer or ns == outer or is_inside(ns, outer)


def _is_at(one: Listed, ref: wire.TurnRef) -> bool:
    """Return whether an approval has the turn's namespace or one inside it."""
    return one.ns == ref.ns or is_inside(one.ns, ref.ns)


LOOK_S = 15.0
"""Seconds without an event after which the records are read anyway. A wait may end
without an event, for example after a restore of the store."""

_LONGEST = 200
"""Most characters of an id or name from Slack: it is read and stored with each call of
the thread."""

_REQUEST_S = 3600.0
"""Most seconds that one request may rely on a lease; its real end is in the store."""

_UNSTARTED = {ItemState.PENDING, ItemState.AUTHORIZED}

MayBe = Callable[[str], bool]
"""Returns whether the caller may act for an agent."""


class RunCalls(TenantService):
    """The calls of a tenant's runs that have not started.

    Args:
        store: where the approvals are.
        agents: ends the calls.
        tenant: whose runs these are.
    """

    _why: Why = "begin"

    def __init__(
        self, store: Store, agents: AgentService, *, tenant: str = "default"
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._agents = agents

    async def remember(self, facts: http_api.RunFacts) -> None:
        """Record the requester of a run and its place; earlier people stay recorded.

        Raises:
            NotAllowed: when only half of a Slack place is given, the requester has no
                Slack user id, or a name is too long.
            TooManySpeakers: when the thread has more people than the store can record.
        """
        if bool(facts.channel) is not bool(facts.thread_ts):
            raise NotAllowed("Give both 'channel' and 'thread_ts', or neither.")
        asker = facts.requester
        if asker is None and not facts.channel:
            return
        if asker is not None and not asker.has_slack_id:
            raise NotAllowed(f"'requester' is {asker.user!r}. {NO_SLACK_ID}")
        names = (asker.team, asker.user, asker.name) if asker is not None else ()
        if any(len(it) > _LONGEST for it in (*names, facts.channel, facts.thread_ts)):
            raise NotAllowed(
                f"Ids and names of a person and a place have {_LONGEST} characters at "
                "most."
            )
        origin = Origin(channel=facts.channel, thread_ts=facts.thread_ts)

        def asked(before: ThreadFacts) -> ThreadFacts:
            after = before.asked_by(asker) if asker is not None else before
            return after.with_(origin=origin) if facts.channel else after

        run = facts.run
        place = (self._keys, run.agent, run.thread)
        await self._store.threads.change(*place, asked, why=self._why)

    async def pending(self, run: RunRef) -> tuple[http_api.PendingCall, ...]:
        """Return the calls of a run that wait for people, oldest first."""
        return tuple(
            _shown(loaded.approval, item)
            for loaded in await self._unfinished(run)
            for item in loaded.approval.items
            # An overdue call cannot be decided, even before a sweep has ended it.
            if item.is_pending and not is_late(loaded.approval, item, loaded.now_ms)
        )

    async def withdraw(
        self,
        run: RunRef,
        item_ids: Collection[str] | None = None,
        *,
        resumes: bool = True,
    ) -> tuple[str, ...]:
        """End calls of a run that wait or have not started.

        The agent's result is that they were withdrawn and did not run.

        Args:
            run: the run.
            item_ids: the calls to end; None ends all that wait for people or that
                people approved. Ids of other calls are ignored.
            resumes: queue a job that resumes the agent.

        Returns:
            The ids of the calls that were withdrawn; of ``item_ids`` also those that
            were withdrawn before, so that a repeated request gets the same answer.
        """
        chosen = [
            item.id
            for loaded in await self._unfinished(run)
            for item in loaded.approval.items
            if (item.state in _UNSTARTED or item.is_left_at(loaded.now_ms))
            and not is_late(loaded.approval, item, loaded.now_ms)
            and (not item.is_auto_approved if item_ids is None else item.id in item_ids)
        ]
        if chosen:
            await self._agents.withdraw_items(frozenset(chosen))
        if chosen and resumes:
            job = Job.to_resume(self._tenant, run.agent, run.thread)
            # Queued after the calls have ended, so that the agent is not resumed too
            # early. A second job for the same thread is harmless.
            await self._store.queue(self._keys).put(job)
        return await self._ended_of(run, chosen if item_ids is None else item_ids)

    async def settle(
        self, run: RunRef, asked: Collection[str], *, is_finished: bool
    ) -> None:
        """Withdraw the calls that a paused thread no longer asks about.

        Another middleware dropped them. While the thread waits for an answer, an
        authorized item may belong to a tool that asks the question inside, so only
        pending items end.
        """
        ends = _UNSTARTED if is_finished else {ItemState.PENDING}
        dropped = frozenset(
            item.id
            for approval in await self.droppable(run, asked)
            for item in approval.items
            if item.state in ends and item.id not in asked
        )
        await self._agents.withdraw_items(dropped)

    async def droppable(self, run: RunRef, asked: Collection[str]) -> list[Approval]:
        """Return the run's unfinished approvals, except those a paused task may need.

        A task that runs several agents at once shows the question of one; the others
        ask when it is entered again.
        """
        found = [one.approval for one in await self._unfinished(run)]
        asking = {one.ns for one in found if any(i.id in asked for i in one.items)}
        paused = {_task(ns) for ns in asking if ns}
        return [one for one in found if one.ns in asking or _task(one.ns) not in paused]

    async def _unfinished(self, run: RunRef) -> list[Loaded]:
        approvals = self._store.approvals
        ids = await approvals.unfinished_of_run(self._keys, run)
        return await approvals.load_each(ids)

    async def _ended_of(self, run: RunRef, chosen: Collection[str]) -> tuple[str, ...]:
        """Return the chosen calls of a run that are withdrawn.

        A call that was approved and started concurrently is not among them.
        """
        # Read from the records: a call that no longer waits may have been approved.
        ids = dict.fromkeys(approval_of(item_id)[0] for item_id in chosen)
        ended = {
            item.id
            for loaded in await self._load_each(ids)
            if loaded.approval.run_ref == run
            for item in loaded.approval.items
            if item.state is ItemState.WITHDRAWN
        }
        return tuple(one for one in chosen if one in ended)


def _task(ns: str) -> str:
    """Return the task of the run's outermost graph that contains a namespace."""
    return ns.partition("|")[0]


def _shown(approval: Approval, item: Item) -> http_api.PendingCall:
    return http_api.PendingCall(
        item_id=item.id,
        tool=item.tool,
        args=redacted(item.args, item.redact),
        description=item.summary,
        agent=approval.agent,
        tier=item.tier,
        channel=approval.channel,
        opened_at=datetime.fromtimestamp(approval.created_at_ms / 1000, UTC),
        expires_at=datetime.fromtimestamp(end_of(approval, item) / 1000, UTC),
    )


class RemoteRunService(RunCalls):
    """The runs of agents in other processes: their calls, leases and answers.

    A reply covers only the run that the question names. The caller checks before that
    the process may act for that run's agent.

    Args:
        store: the store.
        agents: the service that ends calls.
        feed: the tenant's events.
        tenant: the tenant of the agents.
    """

    # The gateway gets no notice when a run in another process ends, so its data
    # expires. Open approvals keep their requester.
    _why = "aside"

    def __init__(
        self, store: Store, agents: AgentService, feed: EventFeed, *, tenant: str
    ) -> None:
        super().__init__(store, agents, tenant=tenant)
        self._feed = feed

    async def answers(
        self, asked: http_api.AnswersQuestion, may_be: MayBe
    ) -> tuple[http_api.Answered, ...]:
        """Return the answers to questions of a run; wait for the first one.

        Args:
            asked: which run and questions, and how long to wait.
            may_be: returns whether the caller may act for an agent. Calls of other
                agents are answered as if they had no record.

        Raises:
            NotAllowed: when the agent's name differs from the one in the record.
            StoreUnavailable: when the store does not answer.
        """
        if not asked.wait_s:
            return await self._answers(asked, may_be)

        def wants(event: Event) -> bool:
            return event.run_ref == asked.run

        clock = asyncio.get_running_loop().time
        ends = clock() + asked.wait_s
        async with self._feed.following(wants) as follower:
            found = await self._answers(asked, may_be)
            while (
                not found and not self._feed.is_closing and (left := ends - clock()) > 0
            ):
                await follower.wait(min(left, LOOK_S))
                found = await self._answers(asked, may_be)
            return found

    async def _answers(
        self, asked: http_api.AnswersQuestion, may_be: MayBe
    ) -> tuple[http_api.Answered, ...]:
        def concerns(approval: Approval) -> bool:
            # A missing call and a call of another agent get the same answer.
            is_ours = approval.tenant == self._tenant
            return is_ours and may_be(approval.run_ref.agent)

        try:
            found = await claiming.find_answers(
                self._store,
                asked.run,
                asked.questions,
                concerns,
                hides_reviewers=self._agents.hides_reviewers,
            )
        except GraphError as error:
            raise NotAllowed(str(error)) from error
        return tuple(
            http_api.Answered(
                **one.model_dump(), answer=answer.answer, times=answer.times
            )
            for one, answer in found.items()
        )

    async def thread_lease(self, asked: http_api.LeaseQuestion) -> http_api.LeaseReply:
        """Take, extend, renumber or release a lease."""
        agent, thread = asked.run.agent, asked.run.thread
        keys = self._keys
        reply = await self._store.threads.lease_step(
            keys, keys.lease(agent, thread),
            asked.verb, asked.token, asked.above, reach=REACH
        )  # fmt: skip
        return reply.with_(name=reply.name.rpartition(":")[2])

    def held(self, ref: http_api.LeaseRef) -> Lease:
        """Return the lease that a request is made under, for its fenced writes.

        The lease is not checked here: each write compares its fence.
        """
        return Lease(
            self.lease_key(ref.run),
            ref.token,
            fence=ref.fence,
            ends_s=now_s() + _REQUEST_S,
            renumber=_cannot_renumber,
        )

    def lease_key(self, run: RunRef) -> str:
        """Return the key of the lease on a thread."""
        return self._keys.lease(run.agent, run.thread)


async def _cannot_renumber(_lease: Lease, _above: int) -> int:
    # Only the process with the checkpoint database requests another fence.
    raise LeaseLost
