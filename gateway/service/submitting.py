"""Submit a turn: reserve windows, evaluate the policy, open approvals.

Reading, evaluation and writing are separate steps. The write checks again every input
that can change in between; if one has changed, the turn is evaluated again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import cast

from keyturn.gateway.approvals.precedents import DAY_MS
from keyturn.gateway.approvals.private_text import with_hidden_words
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import BadJson, StoreUnavailable
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import Evaluation, evaluate
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import RunRef, Tier
from keyturn.gateway.protocol.strict_json import MAX_BYTES, JsonObject, parse_object
from keyturn.gateway.protocol.wire import (
    ProposedCall,
    Turn,
    Verdict,
    VerdictKind,
    check_texts,
)
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service import denials, quality_checks
from keyturn.gateway.service.precedents import CallUsage, TurnPrecedents, usage_of
from keyturn.gateway.service.proposals import (
    EvaluatedCall,
    Proposal,
    Source,
    context_of,
    propose,
)
from keyturn.gateway.service.standing import covered
from keyturn.gateway.service.stored_verdicts import (
    StoredVerdicts,
    read_verdicts,
    recheck_verdict,
    totals_with,
)
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.service.turn_evaluation import (
    TurnTriage,
    call_facts,
    evaluate_call,
    evaluated_calls,
    is_returned_unasked,
    requester_of,
    triage_events,
)
from keyturn.gateway.store.agent_load import AgentLoad
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.precedents import Known
from keyturn.gateway.store.run_list import Listed
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.threads import ThreadFacts
from keyturn.gateway.store.turn_opener import Preconditions
from keyturn.gateway.store.windows import Use
from keyturn.gateway.triage.asking import Triage

# Recognise turns whose every call runs by the policy alone, and open them unread.
#
# The verdicts on such a turn depend neither on its arguments, nor on the time, nor on
# earlier calls. So nothing is read before it opens, which saves a round trip. A freeze,
# a pause, a rejection or an earlier submission of the turn would stop a call anyway.
# The step that opens the turn checks for them. If there is one, nothing is written, and
# the turn is evaluated like any other.


def always_auto(policy: Policy, turn: Turn) -> list[Evaluation] | None:
    """Return the evaluation of each call; None unless all of them always run."""
    # The draw of a spot check differs each time.
    if policy.spot_checks is not None or not all(map(_is_plain, turn.calls)):
        return None
    found = [_always(policy, turn.ref.agent, call.tool) for call in turn.calls]
    always = [one for one in found if one is not None]
    return always if len(always) == len(found) else None


def _is_plain(call: ProposedCall) -> bool:
    """Return whether only the policy decides a call."""
    return bool(call.tool) and not (call.hint or call.problem or call.is_question)


def _always(policy: Policy, agent: str, tool: str) -> Evaluation | None:
    """Return the evaluation of every call of a tool; None when calls may differ."""
    rules = EffectiveRules(policy, agent, tool)
    tier, _ = rules.tier()
    may_differ = (
        tier is not Tier.AUTO
        or rules.raising()
        or rules.first.args_schema is not None
        or rules.triage(tier) is not None
        or any(window.covers(tool) for window in policy.windows.values())
    )
    return None if may_differ else evaluate(policy, agent=agent, tool=tool, args={})


@dataclass(frozen=True)
class EvaluatedTurn:
    """A turn, the usage of its calls, and its result.

    ``is_unread`` is True if it was evaluated without the state of its agent.
    """

    same: TurnPrecedents
    known: Sequence[Known]
    usage: Sequence[CallUsage]
    proposal: Proposal
    now_ms: int = 0
    is_unread: bool = False

    def preconditions(self) -> Preconditions:
        """Return the facts that must not change while the turn opens."""
        turn, verdicts = self.same.turn, self.proposal.verdicts
        requests = [use for one in self.usage for use in one.requests]
        protect = self.same.policy.protect
        return Preconditions(
            names=denials.freeze_names(turn.ref.agent, self._open_tools()),
            waiting=protect.pending_per_agent,
            requests_10m=protect.requests_per_10m,
            held={
                verdict.item_id: one.uses
                for verdict, one in zip(verdicts, self.usage, strict=True)
                if verdict.item_id
            },
            counted=[*self._uses(lambda one: one.runs_unclaimed), *requests],
            refused=self._uses(lambda one: one.kind is VerdictKind.DENY),
            reserved=[use for one in self.usage for use in one.reserved],
            run_ref=turn.ref.run_ref,
            auto_runs=self.same.auto_runs(verdicts),
            known=self.known,
            standing=self.proposal.standing,
            now_ms=self.now_ms,
            not_rejected=denials.wanted_of(turn.calls, ()).calls
            if self.is_unread
            else (),
        )

    def _open_tools(self) -> tuple[str, ...]:
        verdicts = self.proposal.verdicts
        return tuple([one.tool for one in verdicts if one.kind is not VerdictKind.DENY])

    def _uses(self, of: Callable[[Verdict], bool]) -> list[Use]:
        pairs = zip(self.proposal.verdicts, self.usage, strict=True)
        return [use for verdict, one in pairs if of(verdict) for use in one.uses]


# An attempt fails if another turn, freeze or reservation came in between. Many agents
# of one tenant may submit at once; a claim has fewer rivals.
_ATTEMPTS = 64

_NO_FACTS = ThreadFacts()
_NO_USAGE = CallUsage()


class Submitter(PolicyService):
    """Evaluate the turns of a tenant's agents.

    Args:
        store: the store.
        policy: returns the policy in force now.
        tenant: the tenant of the agents.
        triage: assesses the calls that the policy selects for it.
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

    async def submit(self, turn: Turn) -> tuple[tuple[Verdict, ...], Sequence[Listed]]:
        """Return a turn's verdicts, and the earlier approvals that it may supersede.

        Raises:
            StoreUnavailable: when nothing was opened.
            CorruptRecord: when the stored verdicts of the turn are damaged.
            TooManySpeakers: when the run has more people than the store can record.
            RefReused: when the turn was submitted before with other calls.
            NotAllowed: when the turn itself cannot be stored.
        """
        check_texts(turn)
        spelled = {call.tool_call_id: call.args for call in turn.calls}
        # Canonical before any evaluation: 1.0 and 1, or another order of keys, are the
        # same call.
        calls = await aside(partial(_canonical, turn.calls), spelled.values())
        turn = turn.with_(calls=calls)
        ref = turn.ref
        keys = self._keys
        turn_key = digest.turn_key(tenant=self._tenant, **ref.names)
        # Before the load, which reads the people of the run that are added here.
        if turn.enclosing_run is not None:
            await self._join(turn)
        opened = await self._open_unread(turn, turn_key)
        if opened is not None:
            return opened
        triage = TurnTriage(self._triage, turn)
        for _ in range(_ATTEMPTS):
            # One policy for a whole attempt: it determines which earlier calls are
            # read.
            of_turn = partial(TurnPrecedents.of, self._policy(), keys)
            same = await aside(partial(of_turn, turn), _args(turn))
            wanted_of = partial(denials.wanted_of, turn.calls)
            wanted = await aside(
                partial(wanted_of, same.effects_read.values()), _args(turn)
            )
            load = await self._store.agent_load.load(
                keys,
                ref.agent,
                ref.thread,
                ref.run_ref,
                turn_key=turn_key,
                wanted=wanted,
            )
            # Submitted before: nothing is evaluated or reserved again, except that
            # freezes count.
            if load.verdicts is not None:
                kept = await self._read(keys, turn_key, turn, load.verdicts)
                kept = kept.halted(load, ref.agent)
                return await self._by_now(same, kept, load), ()
            evaluated = await self._evaluate(same, turn_key, load, triage, spelled)
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
        """Open a turn whose calls always run; None if it needs an evaluation."""
        policy = self._policy()
        evaluations = always_auto(policy, turn)
        if evaluations is None:
            return None
        keys = self._keys
        of_turn = partial(TurnPrecedents.of, policy, keys, turn)
        same = await aside(partial(of_turn, is_unread=True), _args(turn))
        rows = zip(turn.calls, evaluations, same.effects, strict=True)
        evaluated = [EvaluatedCall(*row[:2], effect=row[2]) for row in rows]
        source = self._source(same, turn_key, _NO_FACTS)
        proposal = await aside(partial(propose, evaluated, source), _args(turn))
        usage = [_NO_USAGE] * len(evaluated)
        return await self._open(
            turn_key, EvaluatedTurn(same, (), usage, proposal, is_unread=True)
        )

    async def _by_now(
        self, same: TurnPrecedents, kept: StoredVerdicts, load: AgentLoad
    ) -> tuple[Verdict, ...]:
        """Return known verdicts; revoke those that the current policy refuses."""
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
            evaluation = await aside(partial(evaluate_call, turn, policy, call, facts))
            found.append(recheck_verdict(verdict, evaluation.tier))
        return tuple(found)

    async def _join(self, turn: Turn) -> None:
        """Add the people of the enclosing run to this one.

        They are stored with the thread, because it may be resumed alone later.
        """
        run_ref, enclosing = turn.ref.run_ref, turn.enclosing_run
        threads = self._store.threads
        if enclosing is None or enclosing == run_ref:
            return
        outer = await threads.facts(self._keys, enclosing.agent, enclosing.thread)
        if outer == _NO_FACTS:
            return

        def joined(own: ThreadFacts) -> ThreadFacts:
            both = own.joined(outer.principals)
            both = both.with_(is_partial=own.is_partial or outer.is_partial)
            return both if outer.requester is None else both.asked_by(outer.requester)

        position = (self._keys, run_ref.agent, run_ref.thread)
        await threads.change(*position, joined, why="aside")

    async def _evaluate(
        self,
        same: TurnPrecedents,
        turn_key: str,
        load: AgentLoad,
        triage: TurnTriage,
        spelled: Mapping[str, JsonObject],
    ) -> EvaluatedTurn | None:
        turn, policy, args = same.turn, same.policy, _args(same.turn)
        usage = [
            # A call that returns to the model is not a request, and its amounts are
            # unknown. A question uses nothing: windows count calls that run.
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
        # Another process opened this turn first: the next load finds its verdicts.
        if totals is None:
            return None
        evaluate_all = partial(evaluated_calls, same, load, usage, totals)
        # Evaluated twice, because triage gets the calls as evaluated by the policy
        # alone.
        evaluated = await aside(partial(evaluate_all, {}), args)
        triaged = await triage.assess(evaluated, now_ms=load.now_ms)
        if triaged:
            evaluated = await aside(partial(evaluate_all, triaged), args)
        drawn = await quality_checks.draw(
            self._store, self._keys, policy.spot_checks, evaluated
        )
        if drawn:
            evaluated = await aside(partial(evaluate_all, triaged, drawn), args)
        evaluated = await covered(self._store, same.keys, same, load, evaluated)
        source = replace(
            self._source(same, turn_key, load.thread),
            spelled=spelled,
            requests_10m=load.requests_10m,
            now_ms=load.now_ms,
        )
        proposal = await aside(partial(propose, evaluated, source), args)
        run = turn.ref.run_ref
        proposal = await with_answers(self._store, same.keys, run, proposal)
        events = triage_events(triaged, proposal, source)
        proposal = replace(
            proposal,
            events=(*proposal.events, *events),
            approvals=tuple(
                with_hidden_words(one, policy.privacy.hide)
                for one in proposal.approvals
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
            verdicts=await aside(
                partial(self._stored, turn_key, evaluated), _args(turn)
            ),
            events=proposal.events,
            thread=(turn.ref.agent, turn.ref.thread),
            preconditions=evaluated.preconditions(),
        )
        return None if opened is None else (proposal.verdicts, opened)

    async def _read(
        self, keys: Keys, turn_key: str, turn: Turn, stored: bytes
    ) -> StoredVerdicts:
        found = await read_verdicts(self._store, keys, turn_key, stored, ref=turn.ref)
        if found.is_erased:
            return StoredVerdicts.of_erased(turn)
        return found.about(turn)

    def _source(
        self, same: TurnPrecedents, turn_key: str, facts: ThreadFacts
    ) -> Source:
        numbers = count()
        return Source(
            turn=same.turn,
            tenant=self._tenant,
            new_approval_id=lambda: same.keys.approval_of_turn(turn_key, next(numbers)),
            # With 128 random bits, the hash on a card cannot confirm guessed arguments.
            salt=lambda: secrets.token_hex(16),
            facts=facts,
            policy_digest=same.policy.digest,
        )

    def _stored(self, turn_key: str, evaluated: EvaluatedTurn) -> bytes:
        found = StoredVerdicts(
            policy=evaluated.same.policy.digest, verdicts=evaluated.proposal.verdicts
        )
        return found.dumped(self._store.sealing, turn_key)

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


def _args(turn: Turn) -> list[JsonObject]:
    return [call.args for call in turn.calls]


def _canonical(calls: Sequence[ProposedCall]) -> tuple[ProposedCall, ...]:
    return tuple(map(canonical, calls))


# Attach people's earlier answers to the calls that a run submits next.
#
# Only answers of the same run and the last day count, the newest ones. If an agent asks
# which order to use and then acts on one, the reviewer sees the answer with the call.
# An answer decides nothing.

MOST_SETS = 3
"""Most answered sets of questions on a card."""


async def with_answers(
    store: Store, keys: Keys, run_ref: RunRef, proposal: Proposal
) -> Proposal:
    """Return the proposal, with earlier answers added to its reviewed approvals.

    Raises:
        StoreUnavailable: when the run's approvals cannot be read.
    """
    if not any(map(_is_reviewed, proposal.approvals)):
        return proposal
    listed = await store.approvals.answered_of_run(keys, run_ref)
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


def canonical(call: ProposedCall) -> ProposedCall:
    """Return a call as it would run: with arguments parsed from canonical bytes."""
    try:
        args = cast("JsonObject", digest.parsed(call.args))
    except BadJson:
        return call  # refused with a sentence when its document is made
    return call.with_(args=args, original_args=_original_args(call))


def _original_args(call: ProposedCall) -> JsonObject | None:
    """Return the model's arguments; None if they are absent, invalid or too large."""
    if call.original_args is None:
        return None
    try:
        text = digest.canonical(call.original_args)
    except BadJson:
        return None
    return parse_object(text) if len(text) <= MAX_BYTES else None
