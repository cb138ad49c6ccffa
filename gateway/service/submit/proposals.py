"""Build the verdicts, approvals and events of a turn from its evaluated calls.

A denial is a message for the model. Rate limits are checked before people are asked.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count

from keyturn.gateway.approvals import timing
from keyturn.gateway.approvals.changes import listed
from keyturn.gateway.approvals.events import (
    BY_POLICY,
    CALLS,
    Event,
    EventName,
    approval_event,
    call_event,
)
from keyturn.gateway.approvals.evidence import as_text
from keyturn.gateway.approvals.gestures import LONGEST_ROW, MAX_ITEMS
from keyturn.gateway.approvals.invisible_characters import mark
from keyturn.gateway.approvals.lifecycle import Transition, advance
from keyturn.gateway.approvals.precedents import Past
from keyturn.gateway.approvals.quorum import stricter
from keyturn.gateway.approvals.record import (
    Approval,
    Context,
    Item,
    TriageResult,
    Waiting,
    item_id,
)
from keyturn.gateway.approvals.repeating import args_hash
from keyturn.gateway.approvals.requirement import Requirement, SpotCheck
from keyturn.gateway.approvals.standing import event_data, use_event, used
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.evaluate import Evaluation, effect_of, reads_precedents
from keyturn.gateway.policy.fields import is_channel
from keyturn.gateway.policy.rules import Policy, Protection
from keyturn.gateway.policy.standing import similar_rule
from keyturn.gateway.protocol import digest, wire
from keyturn.gateway.protocol.questions import NOT_OUTERMOST, problem_of
from keyturn.gateway.protocol.records import Person, Tier
from keyturn.gateway.protocol.strict_json import MAX_BYTES, JsonObject, accept_object
from keyturn.gateway.protocol.texts import DENIED
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import Freeze, names_of, paused
from keyturn.gateway.store.limits.history import (
    ASKED_MS,
    AgentLoad,
    Known,
    Row,
    fingerprint,
    row_of_auto_run,
)


def opened_events(approval: Approval) -> list[Event]:
    """Return the events of a new approval."""
    event = opened_event(approval, approval.requester)
    if not approval.is_auto_approved:
        return [event]
    return [event, *(_authorized_event(approval, item) for item in approval.items)]


def opened_event(approval: Approval, requester: Person | None) -> Event:
    """Return the event of an opened approval, with its requester and calls."""
    calls = [
        {"item": one.id, "tool": one.tool, "tier": one.tier, "hash": one.action_hash}
        for one in approval.items
    ]
    event = approval_event(approval, EventName.APPROVAL_OPENED)
    return event.with_(
        action_hash=approval.digest,
        actor=listed([requester] if requester else ()),
        data={**event.data, CALLS: json.dumps(calls)},
    )


def _authorized_event(approval: Approval, item: Item) -> Event:
    reason = " ".join(item.reasons)
    event = approval_event(approval, EventName.ITEM_AUTHORIZED, item, reason=reason)
    if item.cover is None:
        return event.with_(actor=BY_POLICY)
    # The givers of the standing approval decided this call when they gave it.
    given_by = listed(item.cover.given_by)
    return event.with_(actor=given_by, data=event.data | event_data(item.cover))


MAX_BATCH = 99
"""Calls of one tool on one card: rows of Slack's table, without its heading."""

_TABLE_CHARS, _NUMBER_CHARS = 5_000, 5
"""Characters of the rows of a table, and of the first cell of each."""

NO_DOCUMENT = (
    f"A call has to be strict JSON of at most {MAX_BYTES // 1024} KiB. This one is "
    "not, so it did not run and no person was asked. Pass less, or pass the place of "
    "the content, such as the name of a file."
)
"""The model's text for a call without a document."""

FORGOTTEN = (
    "Who asked earlier in this conversation is no longer known, so two people have to "
    "approve this."
)
"""Why a call of a thread with partial facts needs two people."""

_SHARED = -1

_Times = tuple[int, int, int]
"""Milliseconds until a call expires, people are reminded, and others are called."""

_Rows = list[tuple[int, "EvaluatedCall", str]]
"""Calls with their position in the turn and their documents."""


@dataclass(frozen=True)
class EvaluatedCall:
    """One call with its evaluation by the policy.

    Attributes:
        call: as proposed.
        evaluation: by the policy, with the raises of triage.
        refusal: why the call is denied apart from its tier; "" if it is not.
        triage_result: the part of triage's assessment to keep.
        requests_before: totals of windows of requests before this call.
        is_returned: the call goes back to the model because it does not fit.
        effect: equal for calls with the same effect.
        is_drawn: a spot check was drawn of a call that needs no record otherwise.
        has_no_opinion: triage was asked and did not answer.
        standing: the standing approval that covers it, as it was read.
        amount_micro: the call's amount that counts towards the total of ``standing``.
    """

    call: wire.ProposedCall
    evaluation: Evaluation
    refusal: str = ""
    triage_result: TriageResult | None = None
    requests_before: Mapping[str, int] = field(default_factory=dict[str, int])
    is_returned: bool = False
    effect: str = ""
    is_drawn: bool = False
    has_no_opinion: bool = False
    standing: Approval | None = None
    amount_micro: int = 0


@dataclass(frozen=True)
class Proposal:
    """The result of a turn: verdicts in the order of its calls, and records to store.

    ``standing`` are the standing approvals that it uses, with the uses of its calls.
    """

    verdicts: tuple[wire.Verdict, ...]
    approvals: tuple[Approval, ...]
    events: tuple[Event, ...]
    standing: tuple[Approval, ...] = ()


AUTO_RUN_TAG = "keyturn/v1/auto-run"


@dataclass(frozen=True)
class TurnPrecedents:
    """The effects of a turn's calls, and the precedents that its rules need.

    Attributes:
        policy: defines the effect of a call, and the rules that need precedents.
        turn: the turn.
        keys: keys of the tenant.
        effects: the effect of each call.
        effects_read: effects whose precedents are needed, by position of the call.
    """

    policy: Policy
    turn: wire.Turn
    keys: Keys
    effects: Sequence[str]
    effects_read: Mapping[int, str]

    @classmethod
    def of(cls, policy: Policy, keys: Keys, turn: wire.Turn) -> TurnPrecedents:
        """Return the precedents to read for a turn."""
        agent = turn.ref.agent
        effects = [
            effect_of(policy, agent=agent, tool=call.tool, args=call.args)
            for call in turn.calls
        ]
        effects_read = {
            position: effects[position]
            for position, call in enumerate(turn.calls)
            # Read only if a rule needs them, which is rare for auto-approved calls, or
            # if a standing approval could cover the call, but not a second one like it.
            if effects[position]
            and (
                reads_precedents(policy, agent, call.tool)
                or similar_rule(policy, agent, call.tool) is not None
            )
        }
        return cls(policy, turn, keys, effects, effects_read)

    @cached_property
    def turn_key(self) -> str:
        """Return the key that identifies the turn in repeated submissions."""
        return digest.turn_key(tenant=self.keys.tenant, **self.turn.ref.names)

    def known(self, load: AgentLoad) -> list[Known]:
        """Return the precedents for the evaluation of the calls."""
        wanted = {self._key(effect) for effect in self.effects_read.values()}
        return [load.precedents[key] for key in sorted(wanted)]

    def past(self, position: int, load: AgentLoad) -> Past | None:
        """Return other calls with the effect of a call; None if they were not read."""
        effect = self.effects_read.get(position)
        if effect is None:
            return None
        own, found = self._name(position), load.precedents[self._key(effect)].precedents
        return Past(precedents=tuple(one for one in found if one.call != own))

    def auto_runs(self, verdicts: Sequence[wire.Verdict]) -> list[Row]:
        """Return rows that record the calls without a record as precedents."""
        agent = self.turn.ref.agent
        rows: list[Row] = []
        for position, (verdict, call) in enumerate(
            zip(verdicts, self.turn.calls, strict=True)
        ):
            if verdict.runs_unclaimed and (effect := self.effects[position]):
                name, args = self._name(position), args_hash(call.tool, call.args)
                rows.append(row_of_auto_run(self.keys, effect, name, agent, args))
        return rows

    def _name(self, position: int) -> str:
        """Return a stable name for a call without a record."""
        # The members of a `Context`, see `proposals.context_of`.
        ctx: JsonObject = {"tenant": self.keys.tenant, **self.turn.ref.names}
        ctx["tool_call_id"] = self.turn.calls[position].tool_call_id
        found = digest.tagged_hash(AUTO_RUN_TAG, digest.canonical(ctx))
        return f"auto_{found.removeprefix('sha256:')[:32]}"

    def _key(self, effect: str) -> str:
        return self.keys.precedents(effect)


@dataclass(frozen=True)
class Source:
    """A turn with the facts that its records contain.

    ``load`` is the state of its agent, if it was read. ``spelled`` has the arguments as
    the agent wrote them, by call id. ``trace`` is the context of the submission's span.
    """

    same: TurnPrecedents
    load: AgentLoad = field(default_factory=AgentLoad)
    spelled: Mapping[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    trace: str = ""
    numbers: Iterator[int] = field(default_factory=count)


def _floods(
    source: Source, approvals: Sequence[Approval], requests: int
) -> Iterator[Event]:
    """Yield the event that the requests of ten minutes have become a flood."""
    if source.load.requests_10m <= source.same.policy.protect.flood_per_10m < requests:
        event = approval_event(approvals[0], EventName.AGENT_FLOODS)
        yield event.with_(data={**event.data, "requests": str(requests)})


def _slowed(
    source: Source, verdicts: Sequence[wire.Verdict], requests: int
) -> tuple[wire.Verdict, ...]:
    """Return the verdicts; those on held calls of a flood ask the agent to wait."""
    if requests <= source.same.policy.protect.flood_per_10m:
        return tuple(verdicts)
    held = [one.kind is wire.VerdictKind.HOLD for one in verdicts]
    # By then all of these requests are older than ten minutes.
    pause = {
        "retry_after_s": ASKED_MS / 1000,
        "waiting": source.load.waiting + sum(held),
    }
    return tuple(
        one.with_(**pause) if is_held else one
        for one, is_held in zip(verdicts, held, strict=True)
    )


def context_of(tenant: str, ref: wire.TurnRef, call: wire.ProposedCall) -> Context:
    """Return the context of a call of a turn."""
    return Context(tenant=tenant, tool_call_id=call.tool_call_id, **ref.names)


def propose(evaluated: Sequence[EvaluatedCall], source: Source) -> Proposal:
    """Give every call its verdict, and put calls for people on cards.

    - Waiting calls are grouped by channel and by the time that people get, in the order
      of the turn, `MAX_ITEMS` a card.
    - More calls of one tool that need the same people share a card: `MAX_BATCH` at
      most, and no more than its table can show whole.
    - A call of tier ``escalate`` has a separate card, so that no click on many calls
      covers it. So do the questions of a call.
    - Calls of tier ``notify`` are authorized by the policy. They are grouped by channel
      and lifetime, and share cards like waiting calls.
    - Covered calls are authorized by their standing approval.
    - Two calls with one id in a turn are both denied, because a decision could later
      not be matched to one of them.
    """
    if source.load.thread.is_partial:
        evaluated = [_by_two(one) for one in evaluated]
    seen = Counter(one.call.tool_call_id for one in evaluated)
    verdicts: dict[int, wire.Verdict] = {}
    events: list[Event] = []
    waiting: dict[tuple[str, int, _Times], _Rows] = {}
    authorized: dict[tuple[str, int], _Rows] = {}
    for position, one in enumerate(evaluated):
        evaluation = one.evaluation
        refusal = _refusal(one, seen)
        document = "" if refusal else _document(one, source)
        row = (position, one, document)
        if not document:
            reason = refusal or NO_DOCUMENT
            verdicts[position] = denied(one.call, reason)
            events.append(_refused(one, source, reason))
        elif evaluation.tier is Tier.AUTO:
            verdicts[position] = _verdict(
                one.call, wire.VerdictKind.RUN, evaluation.tier
            )
            # Another program runs it by itself, so it is not known to run.
            is_handed = bool(source.same.turn.handed_to)
            name = EventName.CALL_HANDED_OVER if is_handed else EventName.CALL_RAN
            events.append(_event(one, source, name))
        elif key := _authorized_with(one):
            authorized.setdefault(key, []).append(row)
        else:
            needs_own_card = evaluation.tier is Tier.ESCALATE or evaluation.is_question
            alone = position if needs_own_card else _SHARED
            card = (evaluation.channel, alone, _times(evaluation))
            waiting.setdefault(card, []).append(row)
    approvals: list[Approval] = []
    # Includes the cards of this turn, so that each card shows its number.
    nth = source.load.requests_10m + 1
    positions: _Rows = []
    for (channel, *_), rows in waiting.items():
        for chosen in _by_card(rows):
            approval = _approval(channel, chosen, source)
            waiting_now = _reminded(approval, nth, source.same.policy)
            approvals.append(approval.with_(recent_requests=nth, waiting=waiting_now))
            positions += chosen
            nth += len(chosen)
    uses: list[Event] = []
    standing: list[Approval] = []
    for rows in authorized.values():
        cards = _by_card(rows)
        opened, covering, of_uses = _authorized(cards, source)
        approvals += opened
        standing += [covering] if covering else []
        uses += of_uses
        positions += chain.from_iterable(cards)
    items = [item for approval in approvals for item in approval.items]
    # A card keeps the order of its rows, so the n-th item belongs to the n-th row.
    for (position, one, _), item in zip(positions, items, strict=True):
        verdicts[position] = _recorded(one, item)
    events += [event for approval in approvals for event in opened_events(approval)]
    events += _floods(source, approvals, nth - 1)
    in_order = [verdicts[position] for position in range(len(evaluated))]
    return Proposal(
        verdicts=_slowed(source, in_order, nth - 1),
        approvals=tuple(approvals),
        events=(*events, *uses),
        standing=tuple(standing),
    )


def _by_card(rows: _Rows) -> list[_Rows]:
    """Return the calls of each card: many of one kind together, then all others."""
    kinds: dict[tuple[str, str], _Rows] = {}
    for row in rows:
        evaluation = row[1].evaluation
        kind = (row[1].call.tool, evaluation.requirement.model_dump_json())
        kinds.setdefault(kind, []).append(row)
    many = [kind for kind in kinds.values() if len(kind) > MAX_ITEMS]
    taken = {row[0] for kind in many for row in kind}
    others = [row for row in rows if row[0] not in taken]
    return [
        *(card for kind in many for card in _in_tables(kind)),
        *(others[n : n + MAX_ITEMS] for n in range(0, len(others), MAX_ITEMS)),
    ]


def _in_tables(rows: _Rows) -> list[_Rows]:
    """Return the calls of each card: as many as its table can show whole.

    A call longer than `LONGEST_ROW` is always cut, so only its number takes room.
    """
    cards: list[_Rows] = []
    room = 0
    for row in rows:
        texts = map(as_text, row[1].call.args.values())
        # In a cell, a mark takes the place of a line break.
        size = sum(len(text.replace("\n", mark("\n"))) for text in texts)
        size = _NUMBER_CHARS + (size if size <= LONGEST_ROW else 0)
        if size > room or len(cards[-1]) == MAX_BATCH:
            cards.append([])
            room = _TABLE_CHARS
        cards[-1].append(row)
        room -= size
    return cards


def _by_two(one: EvaluatedCall) -> EvaluatedCall:
    """Return the call with two required approvals, if it needs people at all.

    An unknown requester may have the role and approve. Of two approvers, at least one
    is not the requester.
    """
    evaluation = one.evaluation
    if not evaluation.tier.needs_people or evaluation.is_question:
        return one
    # Only the roles that may vote anyway; this adds no voters.
    two = Requirement(approvals=2, of=evaluation.requirement.roles)
    by_two = evaluation.with_(
        requirement=stricter(evaluation.requirement, two),
        reasons=(*evaluation.reasons, FORGOTTEN),
    )
    return replace(one, evaluation=by_two)


def _refusal(one: EvaluatedCall, seen: Counter[str]) -> str:
    if seen[one.call.tool_call_id] > 1:
        return (
            f"Two calls of this turn share the id {one.call.tool_call_id!r}, so "
            "neither may run. Call the tools again, one by one."
        )
    if one.refusal:
        return one.refusal
    if one.evaluation.tier is Tier.DENY:
        reasons = " ".join(one.evaluation.reasons)
        return f"{reasons or 'The policy does not allow it.'} {DENIED}"
    return ""


def _document(one: EvaluatedCall, source: Source) -> str:
    """Return the document of a call; "" when it is too large or not strict JSON."""
    call = one.call
    try:
        document = digest.action_document(
            tool=call.tool,
            args=accept_object(call.args),
            ctx=context_of(
                source.same.keys.tenant, source.same.turn.ref, call
            ).as_dict(),
            # With 128 random bits, the hash on a card cannot confirm guessed arguments.
            salt=secrets.token_hex(16),
        )
        # Calls of tier notify have no approver, so no precondition is bound.
        if call.state is None or one.evaluation.tier is Tier.NOTIFY:
            return document
        return digest.with_state(document, call.state)
    except BadJson:
        return ""


def _approval(channel: str, rows: _Rows, source: Source) -> Approval:
    same, turn = source.same, source.same.turn
    approval_id = same.keys.approval_of_turn(same.turn_key, next(source.numbers))
    items = tuple(
        _item(one, document, source, approval_id, index)
        for index, (_, one, document) in enumerate(rows)
    )
    facts = source.load.thread
    return Approval(
        id=approval_id,
        tenant=source.same.keys.tenant,
        agent=turn.ref.agent,
        thread=turn.ref.thread,
        nested_in=turn.ref.nested_in,
        ns=turn.ref.ns,
        message_id=turn.ref.message_id,
        channel=channel,
        # The same for all of them, see `_times`.
        ttl_ms=rows[0][1].evaluation.ttl_ms,
        waiting=_waiting([one.evaluation for _, one, _ in rows]),
        requester=facts.requester,
        principals=tuple(dict.fromkeys(facts.people)),
        origin=facts.origin,
        policy_digest=source.same.policy.digest,
        says=turn.says,
        task=next((one.call.hint.task for _, one, _ in rows if one.call.hint), ""),
        resumes_itself=turn.resumes_itself,
        trace=source.trace,
        items=items,
    )


def _times(evaluation: Evaluation) -> _Times:
    """Return the times of a card; all of its calls share them."""
    return evaluation.ttl_ms, evaluation.remind_at_ms, evaluation.escalate_at_ms


def _authorized_with(one: EvaluatedCall) -> tuple[str, int] | None:
    """Return the group of a call that opens authorized; None for a waiting call."""
    # A standing approval is used in one place, so that no use is lost.
    if one.standing is not None:
        return one.standing.id, 0
    evaluation = one.evaluation
    if evaluation.tier is not Tier.NOTIFY:
        return None
    return evaluation.channel, evaluation.authorization_ms


def _authorized(
    cards: Sequence[_Rows], source: Source
) -> tuple[list[Approval], Approval | None, list[Event]]:
    """Return approvals that open authorized, by the policy or a standing approval.

    Their calls may start at once, lapse if the agent does not start them, and need no
    reviewer when they fail: the agent handles a failure.

    Returns:
        The approvals, the standing approval with its new uses, and their events.
    """
    _, first, _ = cards[0][0]
    standing, opened, events = first.standing, list[Approval](), list[Event]()
    for rows in cards:
        approval = _approval(first.evaluation.channel, rows, source)
        items: list[Item] = []
        # One after the other: the event of each use contains the rest that it left.
        for item, (_, one, _) in zip(approval.items, rows, strict=True):
            cover, spent = None, one.amount_micro
            if standing is not None:
                standing, cover = used(standing, item.id, spent, source.load.now_ms)
                events.append(use_event(standing, item.id, cover))
            state = advance(item.state, Transition.CLEAR)
            items.append(item.with_(state=state, asks_on_failure=False, cover=cover))
        ttl_ms = timing.authorization_ms(*(one.authorization_ms for one in items))
        opened.append(approval.replacing(*items, ttl_ms=ttl_ms, waiting=Waiting()))
    return opened, standing, events


def _reminded(approval: Approval, nth: int, policy: Policy) -> Waiting:
    """Return when people are called, also for a card that may notify nobody at first.

    Otherwise it could expire without a notification.
    """
    waiting = approval.waiting
    is_limited = nth > policy.protect.flood_per_10m or policy.attention
    is_usual = approval.items[0].tier is Tier.APPROVE
    if not (is_limited and is_usual) or waiting.remind_at_ms or waiting.escalate_at_ms:
        return waiting
    return waiting.with_(remind_at_ms=approval.ttl_ms // 2)


def _waiting(evaluations: Sequence[Evaluation]) -> Waiting:
    """Return the reminder and escalation of a card, which its calls share."""
    _, remind_at_ms, escalate_at_ms = _times(evaluations[0])
    called = [one for one in evaluations if one.escalate_at_ms]
    roles = [role for one in called for role in one.escalate_roles]
    channels = [one.escalate_to for one in called if is_channel(one.escalate_to)]
    return Waiting(
        remind_at_ms=remind_at_ms,
        escalate_at_ms=escalate_at_ms,
        roles=tuple(dict.fromkeys(roles)),
        channels=tuple(dict.fromkeys(channels)),
    )


def _item(
    one: EvaluatedCall, document: str, source: Source, approval_id: str, index: int
) -> Item:
    return Item(
        **one.evaluation.kept,
        id=item_id(approval_id, index),
        index=index,
        ctx=context_of(source.same.keys.tenant, source.same.turn.ref, one.call),
        tool=one.call.tool,
        requested=document,
        action=document,
        original_args=one.call.original_args,
        spelled=_spelled(one.call, source),
        triage=one.triage_result,
        requests_before=dict(one.requests_before),
        effect=one.effect,
        spot_check=SpotCheck() if one.is_drawn else None,
        handed_to=source.same.turn.handed_to,
        untold=one.call.hint.untold if one.call.hint else (),
    )


def _spelled(call: wire.ProposedCall, source: Source) -> JsonObject | None:
    found = source.spelled.get(call.tool_call_id)
    is_same = found is None or json.dumps(found) == json.dumps(call.args)
    return None if is_same else found


def _recorded(one: EvaluatedCall, item: Item) -> wire.Verdict:
    """Return the verdict on an item of an approval: wait for people, or run.

    In both cases the agent has to claim the item before it runs the call.
    """
    kind = wire.VerdictKind.HOLD if item.is_pending else wire.VerdictKind.RUN
    return _verdict(one.call, kind, one.evaluation.tier).with_(
        item_id=item.id,
        action_hash=item.action_hash,
        allow=item.allow,
        args_schema=item.args_schema,
    )


def denied(call: wire.ProposedCall, reason: str) -> wire.Verdict:
    """Return the verdict on a call that does not run."""
    return _verdict(call, wire.VerdictKind.DENY, Tier.DENY).with_(reason=reason)


def _verdict(
    call: wire.ProposedCall, kind: wire.VerdictKind, tier: Tier
) -> wire.Verdict:
    return wire.Verdict(
        kind=kind,
        tool=call.tool,
        tool_call_id=call.tool_call_id,
        tier=tier,
        args_hash=hash_of(call),
    )


def hash_of(call: wire.ProposedCall) -> str:
    """Return the hash of a call's arguments; "" if they are not strict JSON."""
    try:
        return wire.args_hash(call.args)
    except BadJson:
        return ""  # such a call is denied with any arguments


def _event(
    one: EvaluatedCall, source: Source, name: EventName, reason: str = ""
) -> Event:
    return call_event(
        name,
        source.same.keys.tenant,
        source.same.turn.ref,
        one.call.tool,
        tier=one.evaluation.tier,
        policy_digest=source.same.policy.digest,
        reason=reason,
        channel=one.evaluation.channel,
    )


def _refused(one: EvaluatedCall, source: Source, reason: str) -> Event:
    if one.is_returned:
        # The sentence for the model quotes arguments; an event must not contain them.
        return _event(one, source, EventName.CALL_RETURNED, MISFIT)
    return _event(one, source, EventName.CALL_DENIED, reason)


NAMELESS = (
    "This call names no tool, so it did not run. If it is still needed, make it again "
    "with the tool's name."
)

MISFIT = (
    "The arguments do not fit the tool or may be cut off, or there is no such tool."
)
"""Text for cards and the audit log; only the model gets the exact problem."""


def refusal_of(
    load: AgentLoad, policy: Policy, ref: wire.TurnRef, call: wire.ProposedCall
) -> str:
    """Return why a call is refused regardless of its tier, for the model; else ""."""
    if not call.tool:
        return NAMELESS
    if call.is_question and ref.nested_in is not None:
        return NOT_OUTERMOST
    # A freeze first: its sentence has more details than that of a pause.
    agent = ref.agent
    freeze = freeze_of(load, agent, call.tool) or load.frozen.get(paused(agent))
    if freeze is not None:
        return freeze_message(freeze, policy)
    try:
        rejection = load.rejected.get(fingerprint(call.tool, call.args))
        problem = problem_of(call.args) if call.is_question else ""
    except BadJson:
        return ""  # refused with a sentence when its document is made
    # `<=`: with 1 the very next turn is refused, with 0 none is.
    if rejection and rejection.turns_ago <= policy.protect.same_rejected_within:
        by = rejection.by if policy.privacy.name_reviewers else "A reviewer"
        return _repeated(by, rejection.reason)
    return problem


def fingerprints(calls: Iterable[wire.ProposedCall]) -> list[str]:
    """Return the fingerprints of calls, to read their rejections."""
    found: list[str] = []
    for call in calls:
        # Arguments that are not strict JSON are refused anyway.
        with suppress(BadJson):
            found.append(fingerprint(call.tool, call.args))
    return found


def freeze_of(load: AgentLoad, agent: str, tool: str) -> Freeze | None:
    """Return the freeze that stops this tool of an agent; a pause is not a freeze."""
    found = (load.frozen.get(name) for name in names_of(agent, tool))
    return next((freeze for freeze in found if freeze is not None), None)


def over_limit(load: AgentLoad, protect: Protection, held: int) -> str:
    """Return why an agent may not ask people for one call more; "" when it may.

    Args:
        load: state of the agent.
        protect: limits on the agent's requests.
        held: number of calls of this turn that wait already.
    """
    for many, most, what in (
        (load.waiting + held, protect.pending_per_agent, "wait for a person already"),
        (load.requests_10m + held, protect.requests_per_10m, "came in 10 minutes"),
    ):
        # `>=`, because the evaluated call would be one more.
        if many >= most:
            return (
                f"{many} of your calls {what}, which reaches the limit. Slow down: "
                "wait for answers before you ask for more."
            )
    return ""


def freeze_message(freeze: Freeze, policy: Policy) -> str:
    """Return the sentence about a freeze or a pause, for the model."""
    reason = freeze.reason.rstrip(". ") or "no reason was given"
    if freeze.is_pause:
        return (
            f"You are paused: {reason}. None of your calls is put to people until "
            "you are unfrozen. Stop, and tell your user."
        )
    by = f" by {freeze.by}" if policy.privacy.name_reviewers else ""
    return (
        f"{_named(freeze)} is frozen{by}: {reason}. It does not run until it is "
        "unfrozen. Do not try again; tell your user."
    )


def cannot_start_message(freeze: Freeze) -> str:
    """Return the sentence about a freeze, for a reviewer who wants to approve."""
    return (
        f"{_named(freeze)} is frozen, so this could not start, and nothing was "
        "recorded. Try again once it is unfrozen."
    )


def _named(freeze: Freeze) -> str:
    return f"The {freeze.scope}" if freeze.scope.name else "Everything"


def _repeated(by: str, reason: str) -> str:
    reason = reason.strip()
    said = f" and said: {reason!r}" if reason else ""
    return (
        f"{by} rejected exactly this call earlier in this conversation{said}."
        " It did not run and was not put to people again. Change what was wrong with "
        "it, or go on without it."
    )
