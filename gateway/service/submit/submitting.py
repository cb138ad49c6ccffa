"""Submit a turn: reserve windows, evaluate the policy, open approvals.

Reading, evaluation and writing are separate steps. The write checks again every input
that can change in between; if one has changed, the turn is evaluated again.

A turn is evaluated once. A process that takes the turn over may submit it again. Then
its stored verdicts count; a freeze or another policy can revoke auto-approved calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from keyturn.gateway import tracing
from keyturn.gateway.approvals.evidence import with_hidden_words
from keyturn.gateway.approvals.precedents import DAY_MS
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.errors import BadJson, CorruptRecord, RefReused, StoreUnavailable
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import Record, RunRef, Tier
from keyturn.gateway.protocol.strict_json import MAX_BYTES, JsonObject, parse_object
from keyturn.gateway.protocol.work import aside
from keyturn.gateway.service.submit import proposals, quality_checks, turn_evaluation
from keyturn.gateway.service.submit.call_evaluation import CallUsage, usage_of
from keyturn.gateway.service.submit.standing import covered
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.erasing import turn_key_of
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import names_of, paused
from keyturn.gateway.store.limits.history import AgentLoad, Known, Use
from keyturn.gateway.store.records.approval_indexes import Listed
from keyturn.gateway.store.records.atomic_write import Loaded, Preconditions
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.sealing.encryption import packed, unpacked
from keyturn.gateway.store.sealing.sealing import Sealed, Sealing
from keyturn.gateway.store.store import Store
from keyturn.gateway.triage.asking import Triage

T = TypeVar("T")

# An attempt fails if another turn, freeze or reservation came in between. Many agents
# of one tenant may submit at once; a claim has fewer rivals.
_ATTEMPTS = 64

_NO_FACTS = ThreadFacts()

Opened = tuple[tuple[wire.Verdict, ...], Sequence[Listed]]
"""A turn's verdicts, and the earlier approvals that it may supersede."""


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
        tenant: str = "default",
        triage: Triage | None = None,
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._triage = triage

    async def submit_turn(self, turn: wire.Turn) -> Opened:
        """Return a turn's verdicts, and the earlier approvals that it may supersede.

        Raises:
            StoreUnavailable: when nothing was opened.
            CorruptRecord: when the stored verdicts of the turn are damaged.
            TooManySpeakers: when the run has more people than the store can record.
            RefReused: when the turn was submitted before with other calls.
            NotAllowed: when the turn itself cannot be stored.
        """
        wire.check_texts(turn)
        spelled = {call.tool_call_id: call.args for call in turn.calls}
        # Canonical before any evaluation: 1.0 and 1, or another order of keys, are the
        # same call.
        turn = await _aside(turn, _canonical, turn)
        ref, keys = turn.ref, self._keys
        # Before the load, which reads the people of the run that are added here.
        if turn.enclosing_run is not None and turn.enclosing_run != ref.run_ref:
            await self._join(ref.run_ref, turn.enclosing_run)
        opened = await self._open_unread(turn)
        if opened is not None:
            return opened
        triage = turn_evaluation.TurnTriage(self._triage, turn)
        for _ in range(_ATTEMPTS):
            # One policy for a whole attempt: it determines which earlier calls are
            # read.
            same = await _aside(
                turn, proposals.TurnPrecedents.of, self._policy(), keys, turn
            )
            load = await self._store.agent_load.load(
                keys,
                ref.agent,
                ref.thread,
                ref.run_ref,
                turn_key=same.turn_key,
                effects=same.effects_read.values(),
                tools=[call.tool for call in turn.calls],
                calls=await _aside(turn, proposals.fingerprints, turn.calls),
            )
            # Submitted before: nothing is evaluated or reserved again, except that
            # freezes count.
            if load.verdicts is not None:
                kept = await read_verdicts(
                    self._store, keys, same.turn_key, load.verdicts, ref=ref
                )
                return await self._by_now(same, kept.about(turn), load), ()
            opened = await self._evaluate(same, load, triage, spelled)
            if opened is not None:
                return opened
        raise StoreUnavailable(
            "Too much was asked at once to evaluate this turn; nothing was opened. "
            "Submit it again."
        )

    async def _open_unread(self, turn: wire.Turn) -> Opened | None:
        """Open a turn whose calls always run; None if it needs an evaluation."""
        policy = self._policy()
        evaluations = turn_evaluation.always_auto(policy, turn)
        if evaluations is None:
            return None
        same = await _aside(turn, proposals.TurnPrecedents.of, policy, self._keys, turn)
        rows = zip(turn.calls, evaluations, same.effects, strict=True)
        evaluated = [proposals.EvaluatedCall(*row[:2], effect=row[2]) for row in rows]
        source = proposals.Source(same, trace=tracing.current())
        proposal = await _aside(turn, proposals.propose, evaluated, source)
        checked = _preconditions(same, [CallUsage()] * len(evaluated), proposal)
        # Without its agent's state, a rejection of a call is not known.
        rejected = proposals.fingerprints(turn.calls)
        checked = replace(checked, not_rejected=rejected)
        return await self._open(same, proposal, checked)

    async def _by_now(
        self, same: proposals.TurnPrecedents, kept: StoredVerdicts, load: AgentLoad
    ) -> tuple[wire.Verdict, ...]:
        """Return known verdicts; revoke those that a freeze or a new policy stops."""
        found: list[wire.Verdict] = []
        for position, verdict in enumerate(kept.verdicts):
            reason = ""
            # Calls that need a claim keep their verdict: the claim evaluates them.
            if verdict.runs_unclaimed:
                if freeze := proposals.freeze_of(
                    load, same.turn.ref.agent, verdict.tool
                ):
                    reason = proposals.freeze_message(freeze, same.policy)
                elif kept.policy != same.policy.digest:
                    reason = await self._why_not_now(same, position, load)
            call = same.turn.calls[position]
            found.append(proposals.denied(call, reason) if reason else verdict)
        return tuple(found)

    async def _why_not_now(
        self, same: proposals.TurnPrecedents, position: int, load: AgentLoad
    ) -> str:
        """Return why the current policy refuses a cleared call; "" if it does not."""
        turn, call = same.turn, same.turn.calls[position]
        one = self._usage(same, call, load)
        # A window that counts the call already counts it twice: that can only raise it.
        totals = await self._store.windows.totals(same.keys.head(""), 0, one.reserved)
        facts = turn_evaluation.call_facts(same, position, load, one, totals)
        now = await aside(
            partial(turn_evaluation.evaluate_call, turn, same.policy, call, facts)
        )
        if now.tier.is_auto_approved:
            return ""
        return FORBIDDEN if now.tier is Tier.DENY else NEEDS_A_PERSON

    async def _join(self, run_ref: RunRef, enclosing: RunRef) -> None:
        """Add the people of the enclosing run to a run.

        They are stored with the thread, because it may be resumed alone later.
        """
        threads = self._store.threads
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
        same: proposals.TurnPrecedents,
        load: AgentLoad,
        triage: turn_evaluation.TurnTriage,
        spelled: Mapping[str, JsonObject],
    ) -> Opened | None:
        """Evaluate a turn and open it; None if another attempt is needed."""
        turn, policy = same.turn, same.policy
        usage = [
            # A call that returns to the model is not a request, and its amounts are
            # unknown. A question uses nothing: windows count calls that run.
            CallUsage()
            if call.is_question or turn_evaluation.is_returned_unasked(policy, call)
            else self._usage(same, call, load)
            for call in turn.calls
        ]
        totals: Sequence[Mapping[str, int]] | None = [{} for _ in usage]
        if any(one.reserved for one in usage):
            totals = await self._store.windows.reserve(
                same.keys, same.turn_key, [one.reserved for one in usage]
            )
        # Another process opened this turn first: the next load finds its verdicts.
        if totals is None:
            return None
        evaluate_all = partial(
            turn_evaluation.evaluated_calls, same, load, usage, totals
        )
        # Evaluated twice, because triage gets the calls as evaluated by the policy
        # alone.
        evaluated = await _aside(turn, evaluate_all, {})
        triaged = await triage.assess(evaluated, now_ms=load.now_ms)
        if triaged:
            evaluated = await _aside(turn, evaluate_all, triaged)
        drawn = await quality_checks.draw(
            self._store, self._keys, policy.spot_checks, evaluated
        )
        if drawn:
            evaluated = await _aside(turn, evaluate_all, triaged, drawn)
        evaluated = await covered(self._store, same.keys, same, load, evaluated)
        source = proposals.Source(same, load, spelled, tracing.current())
        proposal = await _aside(turn, proposals.propose, evaluated, source)
        run = turn.ref.run_ref
        proposal = await with_answers(self._store, same.keys, run, proposal)
        events = turn_evaluation.triage_events(triaged, proposal, source)
        proposal = replace(
            proposal,
            events=(*proposal.events, *events),
            approvals=tuple(
                with_hidden_words(one, policy.privacy.hide)
                for one in proposal.approvals
            ),
        )
        checked = _preconditions(same, usage, proposal, same.known(load), load.now_ms)
        return await self._open(same, proposal, checked)

    async def _open(
        self,
        same: proposals.TurnPrecedents,
        proposal: proposals.Proposal,
        checked: Preconditions,
    ) -> Opened | None:
        turn, turn_key, verdicts = same.turn, same.turn_key, proposal.verdicts
        kept = StoredVerdicts(policy=same.policy.digest, verdicts=verdicts)
        opened = await self._store.approvals.open_turn(
            same.keys,
            turn_key,
            proposal.approvals,
            verdicts=await _aside(turn, kept.dumped, self._store.sealing, turn_key),
            events=proposal.events,
            preconditions=checked,
        )
        return None if opened is None else (verdicts, opened)

    def _usage(
        self, same: proposals.TurnPrecedents, call: wire.ProposedCall, load: AgentLoad
    ) -> CallUsage:
        turn = same.turn
        return usage_of(
            same.policy,
            same.keys,
            proposals.context_of(self._tenant, turn.ref, call),
            call.tool,
            call.args,
            requester=turn_evaluation.requester_of(load),
        )


async def _aside(turn: wire.Turn, work: Callable[..., T], *given: object) -> T:
    """Do pure work that reads all calls of a turn; see `aside`."""
    return await aside(partial(work, *given), [call.args for call in turn.calls])


def _preconditions(
    same: proposals.TurnPrecedents,
    usage: Sequence[CallUsage],
    proposal: proposals.Proposal,
    known: Sequence[Known] = (),
    now_ms: int = 0,
) -> Preconditions:
    """Return the facts that must not change while a turn opens."""
    verdicts, protect = proposal.verdicts, same.policy.protect
    pairs = [*zip(verdicts, usage, strict=True)]
    agent = same.turn.ref.agent
    open_tools = [one.tool for one in verdicts if one.kind is not wire.VerdictKind.DENY]
    requests = [use for one in usage for use in one.requests]

    def uses(of: Callable[[wire.Verdict], bool]) -> list[Use]:
        return [use for verdict, one in pairs if of(verdict) for use in one.uses]

    return Preconditions(
        # A turn without calls that may run cannot be stopped by a freeze.
        names=(*names_of(agent, *open_tools), paused(agent)) if open_tools else (),
        waiting=protect.pending_per_agent,
        requests_10m=protect.requests_per_10m,
        held={one.item_id: of.uses for one, of in pairs if one.item_id},
        counted=[*uses(lambda one: one.runs_unclaimed), *requests],
        refused=uses(lambda one: one.kind is wire.VerdictKind.DENY),
        reserved=[use for one in usage for use in one.reserved],
        run_ref=same.turn.ref.run_ref,
        thread=(agent, same.turn.ref.thread),
        auto_runs=same.auto_runs(verdicts),
        known=known,
        standing=proposal.standing,
        now_ms=now_ms,
    )


def _canonical(turn: wire.Turn) -> wire.Turn:
    return turn.with_(calls=tuple(map(canonical, turn.calls)))


# Attach people's earlier answers to the calls that a run submits next.
#
# Only answers of the same run and the last day count, the newest ones. If an agent asks
# which order to use and then acts on one, the reviewer sees the answer with the call.
# An answer decides nothing.

MOST_SETS = 3
"""Most answered sets of questions on a card."""


async def with_answers(
    store: Store, keys: Keys, run_ref: RunRef, proposal: proposals.Proposal
) -> proposals.Proposal:
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


def canonical(call: wire.ProposedCall) -> wire.ProposedCall:
    """Return a call as it would run: with arguments parsed from canonical bytes."""
    try:
        args = cast("JsonObject", digest.parsed(call.args))
    except BadJson:
        return call  # refused with a sentence when its document is made
    return call.with_(args=args, original_args=_original_args(call))


def _original_args(call: wire.ProposedCall) -> JsonObject | None:
    """Return the model's arguments; None if they are absent, invalid or too large."""
    if call.original_args is None:
        return None
    try:
        text = digest.canonical(call.original_args)
    except BadJson:
        return None
    return parse_object(text) if len(text) <= MAX_BYTES else None


NEEDS_A_PERSON = (
    "The policy changed after this call was cleared: it needs a person now, so it "
    "does not run. If it is still needed, make it again as a new call."
)
FORBIDDEN = (
    "The policy changed after this call was cleared and no longer allows it, so it "
    "does not run."
)

ERASED = (
    "This call does not run now and is not put to people again: it was proposed "
    "before, and its record was erased from the gateway. Check whether it ran before; "
    "if it is still needed, make it again as a new call."
)


class StoredVerdicts(Record):
    """The verdicts on a turn and the digest of the policy that gave them, as stored.

    Attributes:
        policy: digest of the policy.
        verdicts: in the order of the calls. Empty if an approval of the turn was
            erased.
    """

    policy: str
    verdicts: tuple[wire.Verdict, ...]

    @classmethod
    def read(cls, sealing: Sealing, turn_key: str, stored: bytes) -> StoredVerdicts:
        """Read what `dumped` wrote.

        Raises:
            CorruptRecord: when it is damaged, or not sealed as this turn's.
        """
        line, _, sealed = stored.partition(b"\n")
        body = sealing.opened(Sealed.VERDICTS, _place(turn_key, line), sealed)
        if body is None:
            raise CorruptRecord(turn_key)
        try:
            found = cls.model_validate_json(unpacked(body))
            ids = {str(n): one for n, one in enumerate(line.decode().split())}
            return _renamed(found, ids)
        # pydantic's ValidationError is a ValueError. Its text contains stored data, so
        # only the key of the turn is passed on.
        except (KeyError, ValueError) as error:
            raise CorruptRecord(turn_key) from error

    def dumped(self, sealing: Sealing, turn_key: str) -> bytes:
        """Return the bytes to store: a line with approval ids, then the sealed rest.

        The ids are separate because the store keeps a turn while they are open. The
        rest refers to them by number.
        """
        approvals = dict.fromkeys(
            approval_of(one.item_id)[0] for one in self.verdicts if one.item_id
        )
        numbers = {one: str(n) for n, one in enumerate(approvals)}
        return _written(sealing, turn_key, _renamed(self, numbers), [*approvals])

    def about(self, turn: wire.Turn) -> StoredVerdicts:
        """Return the verdicts on the calls of a turn that is submitted again.

        The turn may omit calls, because an agent omits calls that have ended. If an
        approval of the turn was erased, all calls are denied.

        Raises:
            RefReused: when a call was not in the turn with these arguments.
        """
        if not self.verdicts:
            over = tuple(proposals.denied(call, ERASED) for call in turn.calls)
            return self.with_(verdicts=over)
        given = {(it.tool_call_id, it.tool, it.args_hash): it for it in self.verdicts}
        keys = [
            (one.tool_call_id, one.tool, proposals.hash_of(one)) for one in turn.calls
        ]
        for key in keys:
            if key not in given:
                raise RefReused(turn.ref.message_id, key[0])
        return self.with_(verdicts=tuple(given[key] for key in keys))


def _renamed(found: StoredVerdicts, names: Mapping[str, str]) -> StoredVerdicts:
    """Return the verdicts with other names of their approvals."""
    verdicts: list[wire.Verdict] = []
    for one in found.verdicts:
        approval, dot, index = one.item_id.rpartition(".")
        verdicts.append(one.with_(item_id=dot and f"{names[approval]}.{index}"))
    return found.with_(verdicts=tuple(verdicts))


def erased_turn(sealing: Sealing, approval: Approval) -> bytes:
    """Return the bytes to store for the turn of an erased approval; b"" without a turn.

    They contain no words and no calls.
    """
    if approval.is_standing:
        return b""
    over = StoredVerdicts(policy="", verdicts=())
    return _written(sealing, turn_key_of(approval), over, [approval.id])


async def read_verdicts(
    store: Store, keys: Keys, turn_key: str, stored: bytes, *, ref: wire.TurnRef
) -> StoredVerdicts:
    """Read the stored verdicts of a turn; report them if they are not valid.

    Raises:
        CorruptRecord: when it is damaged, or not sealed as this turn's.
    """
    try:
        return StoredVerdicts.read(store.sealing, turn_key, stored)
    except CorruptRecord:
        await store.sealing.refuse(
            keys, Sealed.VERDICTS, stored, agent=ref.agent, thread=ref.thread
        )
        raise


def _written(
    sealing: Sealing, turn_key: str, found: StoredVerdicts, approvals: Sequence[str]
) -> bytes:
    line = " ".join(approvals).encode("ascii")
    body = packed(found.model_dump_json(exclude_defaults=True))
    sealed = sealing.sealed(Sealed.VERDICTS, _place(turn_key, line), body)
    return b"%b\n%b" % (line, sealed)


def _place(turn_key: str, line: bytes) -> tuple[str, str]:
    return turn_key, line.decode("ascii", "replace")
