"""Submit a turn: reserve windows, evaluate the policy, open approvals.

What is evaluated by and what is written are apart, and everything that could move in
between is checked again in the step that writes; then the turn is evaluated once more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.turn_texts import check_texts
from twokey.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    Verdict,
)
from twokey.gateway.service import denials, spot_checks
from twokey.gateway.service.always_auto import AlwaysAuto
from twokey.gateway.service.covering import covered
from twokey.gateway.service.earlier_answers import with_answers
from twokey.gateway.service.evaluated_turn import EvaluatedTurn
from twokey.gateway.service.hidden_words import with_hidden_words
from twokey.gateway.service.precedents import TurnPrecedents
from twokey.gateway.service.proposals import (
    EvaluatedCall,
    Source,
    context_of,
    propose,
)
from twokey.gateway.service.stored_verdicts import (
    StoredVerdicts,
    read_verdicts,
    recheck_verdict,
    totals_with,
)
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.service.turn_evaluation import (
    call_facts,
    evaluate_call,
    evaluated_calls,
    is_returned_unasked,
    requester_of,
)
from twokey.gateway.service.turn_triage import TurnTriage, triage_events
from twokey.gateway.service.turn_validation import canonical, check_agent
from twokey.gateway.service.window_usage import CallUsage, usage_of
from twokey.gateway.store import keys as store_keys
from twokey.gateway.store.agent_load import AgentLoad
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.opened_records import read_opened
from twokey.gateway.store.store import Store
from twokey.gateway.store.threads import ThreadFacts
from twokey.gateway.store.turn_opening import Listed
from twokey.gateway.triage.asking import Triage

# Each attempt that fails had somebody else's turn, freeze or reservation in between.
# Many agents of one tenant may submit at once; a claim has fewer rivals.
_ATTEMPTS = 64

_NO_FACTS = ThreadFacts()
_NO_USAGE = CallUsage()


class Submitter(PolicyService):
    """Evaluate the turns of a tenant's agents.

    Args:
        store: where everything is kept.
        policy: returns the policy in force now.
        tenant: whose agents these are.
        triage: asked about the calls that the policy puts to it.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        *,
        tenant: str,
        triage: Triage | None = None,
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._triage = triage
        self._always_auto = AlwaysAuto()

    async def submit(self, turn: Turn) -> tuple[tuple[Verdict, ...], Sequence[Listed]]:
        """Return a turn's verdicts, and the earlier approvals that it may supersede.

        Raises:
            StoreUnavailable: when nothing was opened.
            NewerRecord: when a newer version opened the turn.
            CorruptRecord: when what is stored of the turn is damaged.
            TooManySpeakers: when nobody could say later who asked for these calls.
            NotAllowed: when the turn itself cannot be stored.
        """
        check_texts(turn)
        if self._store.is_split(self._tenant):
            check_agent(turn, self._tenant)
        # Before anything evaluates them: 1.0 and 1, or another order of keys, are one
        # call.
        turn = turn.with_(calls=tuple(canonical(call) for call in turn.calls))
        ref = turn.ref
        keys = self._keys_of(ref.run_ref.agent)
        turn_key = digest.turn_key(tenant=self._tenant, **ref.names)
        # Before the load, which reads the people of the run that are added here.
        if turn.enclosing_run is not None:
            await self._join(turn)
        opened = await self._open_unread(turn, turn_key)
        if opened is not None:
            return opened
        triage = TurnTriage(self._triage, turn)
        for _ in range(_ATTEMPTS):
            # One policy for a whole attempt: it says what is read of earlier calls.
            same = TurnPrecedents.of(self._policy(), keys, self._tenant, turn)
            load = await self._store.agent_load.load(
                keys,
                self._tenant,
                ref.agent,
                ref.thread,
                ref.run_ref,
                turn_key=turn_key,
                wanted=denials.wanted_of(turn.calls, same.effects_read.values()),
            )
            # Submitted before. Nothing is evaluated or reserved again, but a freeze
            # counts.
            if load.verdicts is not None:
                kept = await self._read(keys, turn_key, turn, load.verdicts)
                kept = kept.halted(load, ref.agent)
                return await self._by_now(same, kept, load), ()
            evaluated = await self._evaluate(same, turn_key, load, triage)
            if evaluated is None:
                continue
            opened = await self._open(turn_key, evaluated)
            if opened is not None:
                return opened
        raise StoreUnavailable(
            "Too much was asked at once to evaluate this turn; nothing was opened. "
            "Submit it again."
        )

    async def _open_unread(
        self, turn: Turn, turn_key: str
    ) -> tuple[tuple[Verdict, ...], Sequence[Listed]] | None:
        """Open a turn whose calls run whatever is read; None: evaluate it."""
        policy = self._policy()
        evaluations = self._always_auto.evaluations(policy, turn)
        if evaluations is None:
            return None
        keys = self._keys_of(turn.ref.run_ref.agent)
        same = TurnPrecedents.of(policy, keys, self._tenant, turn, is_unread=True)
        rows = zip(turn.calls, evaluations, same.effects, strict=True)
        evaluated = [EvaluatedCall(*row[:2], effect=row[2]) for row in rows]
        proposal = propose(evaluated, self._source(same, _NO_FACTS))
        usage = [_NO_USAGE] * len(evaluated)
        return await self._open(
            turn_key, EvaluatedTurn(same, (), usage, proposal, is_unread=True)
        )

    async def _by_now(
        self, same: TurnPrecedents, kept: StoredVerdicts, load: AgentLoad
    ) -> tuple[Verdict, ...]:
        """Return known verdicts without those that the policy of now refuses."""
        turn, policy = same.turn, same.policy
        if kept.is_of(policy):
            return kept.verdicts
        calls = {one.tool_call_id: at for at, one in enumerate(turn.calls)}
        found: list[Verdict] = []
        for verdict in kept.verdicts:
            position = calls.get(verdict.tool_call_id)
            if position is None or not verdict.runs_unclaimed:
                found.append(verdict)
                continue
            call = turn.calls[position]
            one = self._usage(same, call, load)
            totals = await totals_with(self._store, same.keys.head(""), one)
            facts = same.facts(position, call_facts(load, one, totals, held=0), load)
            evaluation = evaluate_call(turn, policy, call, facts)
            found.append(recheck_verdict(verdict, evaluation.tier))
        return tuple(found)

    async def _join(self, turn: Turn) -> None:
        """Let the people of the run around this one count as its own.

        They are kept with the thread: it may be resumed by itself later.
        """
        run_ref, enclosing = turn.ref.run_ref, turn.enclosing_run
        tenant = self._tenant
        threads = self._store.threads
        if enclosing is None or enclosing == run_ref:
            return
        outer = await threads.facts(
            self._keys_of(enclosing.agent), tenant, enclosing.agent, enclosing.thread
        )
        if outer == _NO_FACTS:
            return

        def joined(own: ThreadFacts) -> ThreadFacts:
            both = own.joined(outer.principals)
            both = both.with_(is_partial=own.is_partial or outer.is_partial)
            return both if outer.requester is None else both.asked_by(outer.requester)

        position = (self._keys_of(run_ref.agent), tenant, run_ref.agent, run_ref.thread)
        await threads.change(*position, joined, why="aside")

    async def _evaluate(
        self, same: TurnPrecedents, turn_key: str, load: AgentLoad, triage: TurnTriage
    ) -> EvaluatedTurn | None:
        turn, policy = same.turn, same.policy
        usage = [
            # What goes back to the model is not a request; its amounts are unknown.
            # A question uses nothing: windows are about calls that run.
            CallUsage()
            if call.is_question or is_returned_unasked(policy, call)
            else self._usage(same, call, load)
            for call in turn.calls
        ]
        totals: Sequence[Mapping[str, int]] | None = [{} for _ in usage]
        if any(one.reserved for one in usage):
            totals = await self._store.windows.reserve(
                same.keys, turn_key, [one.reserved for one in usage]
            )
        # Another process opened this turn meanwhile: the next load finds its verdicts.
        if totals is None:
            return None
        evaluate_all = partial(evaluated_calls, same, load, usage, totals)
        # Evaluated twice: triage is asked about the calls as the policy alone sees
        # them.
        evaluated = evaluate_all({})
        triaged = await triage.assess(evaluated, now_ms=load.now_ms)
        if triaged:
            evaluated = evaluate_all(triaged)
        drawn = await spot_checks.draw(
            self._store, self._own, self._tenant, policy.spot_checks, evaluated
        )
        if drawn:
            evaluated = evaluate_all(triaged, drawn)
        evaluated = await covered(self._store, same.keys, same, load, evaluated)
        source = replace(
            self._source(same, load.thread),
            requests_10m=load.requests_10m,
            now_ms=load.now_ms,
        )
        proposal = propose(evaluated, source)
        run = turn.ref.run_ref
        proposal = await with_answers(
            self._store, same.keys, self._tenant, run, proposal
        )
        events = triage_events(triaged, proposal, source)
        proposal = replace(
            proposal,
            events=(*proposal.events, *events),
            approvals=tuple(
                with_hidden_words(one, policy) for one in proposal.approvals
            ),
        )
        return EvaluatedTurn(same, same.known(load), usage, proposal, load.now_ms)

    async def _open(
        self, turn_key: str, evaluated: EvaluatedTurn
    ) -> tuple[tuple[Verdict, ...], Sequence[Listed]] | None:
        turn, proposal = evaluated.same.turn, evaluated.proposal
        opened = await self._store.approvals.open_turn(
            evaluated.same.keys,
            turn_key,
            proposal.approvals,
            verdicts=self._stored(turn_key, evaluated),
            events=proposal.events,
            thread=(turn.ref.agent, turn.ref.thread),
            preconditions=evaluated.preconditions(),
        )
        # What an earlier submit was answered may not be what counts now.
        if opened is None or (evaluated.is_unread and opened.kept is not None):
            return None
        if opened.kept is None:
            return proposal.verdicts, opened.older
        keys = evaluated.same.keys
        kept = await self._read(keys, turn_key, turn, opened.kept)
        return kept.verdicts, opened.older

    async def _read(
        self, keys: Keys, turn_key: str, turn: Turn, stored: bytes
    ) -> StoredVerdicts:
        if not stored:
            opened = await read_opened(self._store, keys, keys.first_of_turn(turn_key))
            return StoredVerdicts.of_record(opened)
        found = await read_verdicts(
            self._store, keys, turn_key, stored, tenant=self._tenant, ref=turn.ref
        )
        if found.is_erased:
            return StoredVerdicts.of_erased(turn)
        return await found.with_schemas(self._store, keys)

    def _source(self, same: TurnPrecedents, facts: ThreadFacts) -> Source:
        return Source(
            turn=same.turn,
            tenant=self._tenant,
            shard_approval_id=partial(next, self._approval_ids(same)),
            # 128 random bits keep the hash that a card shows from confirming a guess at
            # arguments.
            salt=lambda: secrets.token_hex(16),
            facts=facts,
            policy_digest=same.policy.digest,
        )

    def _approval_ids(self, same: TurnPrecedents) -> Iterator[str]:
        # Random only from the second on: submitted again, a turn finds the first.
        yield same.keys.first_of_turn(
            digest.turn_key(tenant=self._tenant, **same.turn.ref.names)
        )
        while True:
            yield store_keys.approval_id(same.keys.shard, secrets.token_hex(16))

    def _stored(self, turn_key: str, evaluated: EvaluatedTurn) -> bytes:
        """Return the verdicts to store; nothing where they follow from the record."""
        proposal = evaluated.proposal
        found = StoredVerdicts(
            policy=evaluated.same.policy.digest, verdicts=proposal.verdicts
        )
        if not proposal.approvals:
            return found.dumped(self._store.sealing, turn_key)
        # Each has another id: with several, one is not the turn's first.
        first = evaluated.same.keys.first_of_turn(turn_key)
        is_whole = all(
            one.id == first and found == StoredVerdicts.of_record(one)
            for one in proposal.approvals
        )
        return (
            b""
            if is_whole
            else found.dumped(self._store.sealing, turn_key, proposal.approvals)
        )

    def _usage(
        self, same: TurnPrecedents, call: ProposedCall, load: AgentLoad
    ) -> CallUsage:
        turn = same.turn
        return usage_of(
            same.policy,
            same.keys,
            context_of(self._tenant, turn.ref, call),
            call.tool,
            call.args,
            requester=requester_of(load),
            declared_schema=turn.schemas.get(call.tool),
        )
