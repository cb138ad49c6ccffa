"""Events of the outbox and the audit log: names, record, builders."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Finding, ItemState, Record, RunRef, Tier
from keyturn.gateway.protocol.wire import TurnRef


class EventName(StrEnum):
    """Past-tense names; an event about an item is named after the state it reached."""

    APPROVAL_OPENED = "approval.opened"
    APPROVAL_DECIDED = "approval.decided"
    APPROVAL_REMINDED = "approval.reminded"
    APPROVAL_ESCALATED = "approval.escalated"
    APPROVAL_EXTENDED = "approval.extended"
    APPROVAL_ACKNOWLEDGED = "approval.acknowledged"
    APPROVAL_RELEASED = "approval.released"
    APPROVAL_CALLER_GONE = "approval.caller_gone"
    APPROVAL_CALLER_BACK = "approval.caller_back"
    APPROVAL_STILL_IN_DOUBT = "approval.still_in_doubt"
    APPROVAL_REPORTED = "approval.reported"
    APPROVAL_ERASED = "approval.erased"
    MESSAGES_REDACTED = "messages.redacted"
    APPROVAL_VIEWED = "approval.viewed"
    APPROVAL_USED = "approval.used"
    APPROVAL_ASKED = "approval.asked"
    APPROVAL_REPLIED = "approval.replied"
    # About calls of several approvals, so it names no approval.
    CALLS_DECIDED = "calls.decided"
    CALL_RAN = "call.ran"
    CALL_HANDED_OVER = "call.handed_over"
    CALL_DENIED = "call.denied"
    CALL_RETURNED = "call.returned"
    CALL_FAILED = "call.failed"
    ITEM_VOTED = "item.voted"
    ITEM_EDITED = "item.edited"
    ITEM_AUTHORIZED = "item.authorized"
    ITEM_REJECTED = "item.rejected"
    ITEM_ANSWERED = "item.answered"
    ITEM_EXPIRED = "item.expired"
    ITEM_SUPERSEDED = "item.superseded"
    ITEM_WITHDRAWN = "item.withdrawn"
    ITEM_LAPSED = "item.lapsed"
    ITEM_HANDING_OVER = "item.handing_over"
    ITEM_HANDED_OVER = "item.handed_over"
    ITEM_NOT_TAKEN = "item.not_taken"
    ITEM_WANTED_AGAIN = "item.wanted_again"
    ITEM_ASKED_ANEW = "item.asked_anew"
    ITEM_REOPENED = "item.reopened"
    ITEM_REPEATED = "item.repeated"
    ITEM_ASKED_AGAIN = "item.asked_again"
    ITEM_CHECK_ASKED = "item.check_asked"
    ITEM_CHECKED = "item.checked"
    ITEM_EXECUTING = "item.executing"
    ITEM_EXECUTED = "item.executed"
    ITEM_FAILED = "item.failed"
    ITEM_IN_DOUBT = "item.in_doubt"
    ITEM_OBSERVED = "item.observed"
    ITEM_REPORTED = "item.reported"
    ITEM_RECONCILED = "item.reconciled"
    RECORD_QUARANTINED = "record.quarantined"
    RUN_STARTED = "run.started"
    RUN_FINISHED = "run.finished"
    RUN_ASKED = "run.asked"
    RUN_UNANSWERED = "run.unanswered"
    RUN_WAITING = "run.waiting"
    RUN_PARKED = "run.parked"
    RUN_RETRIED = "run.retried"
    RUN_RESUMED = "run.resumed"
    RUN_DROPPED = "run.dropped"
    RUN_FAILED = "run.failed"
    TRIAGE_RAISED = "triage.raised"
    TRIAGE_FAILED = "triage.failed"
    AGENT_FLOODS = "agent.floods"
    AGENT_PAUSED = "agent.paused"
    DELEGATION_SET = "delegation.set"
    DELEGATION_LIFTED = "delegation.lifted"
    FREEZE_SET = "freeze.set"
    FREEZE_LIFTED = "freeze.lifted"
    KEYS_CHANGED = "keys.changed"
    POLICY_LOADED = "policy.loaded"
    POLICY_REFUSED = "policy.refused"
    METRICS_DIGEST = "metrics.digest"
    METRICS_ALERT = "metrics.alert"
    SECURITY_DETECTED = "security.detected"
    SEEDED_SHOWN = "seeded.shown"
    SEEDED_ANSWERED = "seeded.answered"
    SEEDED_EXPIRED = "seeded.expired"
    # Only in the audit log.
    DECISION_REFUSED = "decision.refused"
    API_KEY_CREATED = "api_key.created"
    API_KEY_REVOKED = "api_key.revoked"
    APP_INSTALLED = "app.installed"
    APP_REMOVED = "app.removed"


BY_GATEWAY = "keyturn"
"""Actor of the gateway's own changes."""

BY_POLICY = "policy"
"""Actor in events about calls that the policy alone decided."""

EPOCH = "epoch"
"""Key in the data of a freeze, or its end: the epoch of the list written with it."""

BATCH_MEMBER = "batch"
"""Key in the data of an event about a call that was decided together with others: the
digest of their batch, which the `APPROVAL_DECIDED` or `CALLS_DECIDED` before it names.
"""

COLLECTION = "collection"
"""Key in the data of `CALLS_DECIDED`: the id of the collection that was shown."""

ENDS_DIFFER = "ends_differ"
"""Key in the data of `APPROVAL_EXTENDED`: its calls do not all expire together."""

WAITED_MS = "waited_ms"
"""Key in the data of a decision that ends a wait: the length of the wait in
milliseconds, from the card or from the return to people.
"""

AFTER_MS = "after_ms"
"""Key in the data of an approval that came too soon: time since the call was shown."""

CHECK_ANSWER = "answer"
"""Key in the data of an answer to a spot check: ``right`` or ``wrong``."""

SEEDED_ANSWER = "answer"
"""Key in the data of an answer to a seeded defect: ``approved`` or ``noticed``."""

EDITED = "edited"
"""Key in the data of an authorization: people had changed the arguments."""

CALLS = "calls"
"""Key in the data of `APPROVAL_OPENED`: item, tool, tier and action hash of each call,
as JSON.
"""

ROLES = "roles"
"""Key in the data of `POLICY_LOADED`: ids of users and user groups by role, as JSON."""

UNUSED = "unused"
"""Key in the data of a withdrawal: the call had been authorized, and was not run."""

HANDED_TO = "handed_to"
"""Key in the data of events about a call that another program runs: its name."""

STANDING = "standing"
"""Key in the data of events about a call that a standing approval authorized: its id.
"""

TROUBLED_RUN = frozenset(
    {
        EventName.RUN_WAITING,
        EventName.RUN_PARKED,
        EventName.RUN_RETRIED,
        EventName.RUN_RESUMED,
        EventName.RUN_DROPPED,
        # From versions that gave a run up; the audit log keeps it.
        EventName.RUN_FAILED,
    }
)
"""Events about a run that failed; they change nothing in its thread."""


class Event(Record):
    """One past event. It contains ids and hashes, never a tool's arguments.

    ``at_ms`` and ``seq`` are filled in by the store when the event is read back.
    """

    name: EventName
    tenant: str
    agent: str = ""
    thread: str = ""
    nested_in: RunRef | None = None
    approval: str = ""
    item: str = ""
    tool: str = ""
    tier: str = ""
    version: int = 0
    action_hash: str = ""
    policy_digest: str = ""
    actor: str = ""
    roles: tuple[str, ...] = ()
    channel: str = ""
    reason: str = ""
    request_digest: str = ""
    data: dict[str, str] = Field(default_factory=dict)
    at_ms: int = 0
    seq: str = ""

    @property
    def run_ref(self) -> RunRef:
        """Return the run of the event."""
        return self.nested_in or RunRef(agent=self.agent, thread=self.thread)

    @property
    def concerns_no_call(self) -> bool:
        """Return True if it is about a question or a standing approval: no tier."""
        return bool(self.item) and not self.tier

    @property
    def card(self) -> str:
        """Return the id of the card that shows it; "" for none."""
        return self.approval or self.data.get(COLLECTION, "")

    @property
    def is_auto_approved(self) -> bool:
        """Return True if it is about an approval that opened authorized."""
        is_auto = self.tier == Tier.NOTIFY or self.is_covered
        return bool(self.approval) and is_auto

    @property
    def is_covered(self) -> bool:
        """Return True if it is about a call that a standing approval authorized."""
        return STANDING in self.data


def approval_event(
    approval: Approval, name: EventName, item: Item | None = None, *, reason: str = ""
) -> Event:
    """Return an event about an approval, or about one item of it.

    It is the only builder of such events. It contains no argument of the call; a caller
    adds further facts (actor, roles) by ``with_``.
    """
    # Build all approval events here, so that an argument of a call cannot get into the
    # outbox or the audit log through one of many builders.
    tier: str = Tier.NOTIFY if approval.is_auto_approved else ""
    if item is not None:
        # The tier of the item wins over that of the approval: a card may have several.
        # A question is not evaluated by a policy, so it counts for no tier.
        tier = "" if item.is_question or item.is_standing else item.tier
    return Event(
        name=name,
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        nested_in=approval.nested_in,
        approval=approval.id,
        item=item.id if item else "",
        tool=item.tool if item else "",
        action_hash=item.action_hash if item else "",
        version=approval.version,
        policy_digest=approval.policy_digest,
        channel=approval.channel,
        tier=tier,
        reason=reason,
        data=_class_of(approval),
    )


def _class_of(approval: Approval) -> dict[str, str]:
    """Return the data of all events of an approval."""
    # One standing approval covers all calls of an approval, or none; the same is true
    # of a program.
    standing = approval.covers[0].approval if approval.covers else ""
    found = {STANDING: standing, HANDED_TO: approval.items[0].handed_to}
    return {name: value for name, value in found.items() if value}


def call_event(
    name: EventName,
    tenant: str,
    ref: TurnRef,
    tool: str,
    *,
    tier: str = "",
    policy_digest: str = "",
    channel: str = "",
    reason: str = "",
) -> Event:
    """Return an event about a call of a turn that has no approval."""
    return Event(
        name=name,
        tenant=tenant,
        agent=ref.agent,
        thread=ref.thread,
        nested_in=ref.nested_in,
        tool=tool,
        tier=tier,
        policy_digest=policy_digest,
        channel=channel,
        reason=reason,
    )


_STATES_FOUND = {
    Finding.EXECUTED: ItemState.EXECUTED,
    Finding.RERUN: ItemState.AUTHORIZED,
    Finding.SKIP: ItemState.FAILED,
}


def state_after(name: EventName, reason: str = "") -> ItemState | None:
    """Return the state that an item reached by an event; None: the same.

    The ``reason`` of a reconciled call is the finding.
    """
    if name is EventName.ITEM_REOPENED:
        return ItemState.PENDING
    if name is EventName.ITEM_RECONCILED and reason in {*Finding}:
        return _STATES_FOUND[Finding(reason)]
    kind, _, state = name.partition(".")
    is_state = kind == "item" and state in {*ItemState}
    return ItemState(state) if is_state else None


def named_after(state: ItemState) -> EventName:
    """Return the event of an item that reached this state."""
    return EventName(f"item.{state}")


# Security events: forged or replayed data, and processes that are stuck.


class SecurityKind(StrEnum):
    """Kind of a security event: the reason of the event, and a label of metrics.

    ``seal_wrong``: a stored text has no seal of Keyturn for its place, or an audit
    entry was deleted before it was in a file. ``replayed``: the seal of a text is
    right, but the text is older than the known one for that place, or an operator
    restored a backup of the store.
    ``record_forged``: the bot did not sign the decisions in a record. ``key_unknown``:
    a decision is signed by a key that the gateway is not configured with.
    ``request_replayed``: a signed request came twice. ``key_refused``: an API key is
    not valid. ``lookup_failed``: a person's identity could not be found out.
    ``stalled``: work does not continue by itself. ``clock_wrong``: the clock of a
    process differs from the store's. ``secret_unknown``: the store names a sealing
    secret that a process does not accept.
    """

    SEAL_WRONG = "seal_wrong"
    REPLAYED = "replayed"
    RECORD_FORGED = "record_forged"
    KEY_UNKNOWN = "key_unknown"
    REQUEST_REPLAYED = "request_replayed"
    KEY_REFUSED = "key_refused"
    LOOKUP_FAILED = "lookup_failed"
    STALLED = "stalled"
    CLOCK_WRONG = "clock_wrong"
    SECRET_UNKNOWN = "secret_unknown"  # noqa: S105 - a name

    @property
    def is_announced(self) -> bool:
        """Return True if it is posted in a channel.

        The others also have harmless causes, or come from any client that reaches a
        port: they are only in the audit log, the metrics and the log.
        """
        return self in _ANNOUNCED


_ANNOUNCED = frozenset(
    {
        SecurityKind.SEAL_WRONG,
        SecurityKind.REPLAYED,
        SecurityKind.RECORD_FORGED,
        # Usually a missing setting; but calls do not run without it.
        SecurityKind.KEY_UNKNOWN,
    }
)


class SecurityEvent(Record):
    """One security finding. It contains no stored text and no secret.

    Attributes:
        kind: of the finding.
        tenant: of the finding.
        about: kind of the affected thing, such as ``verdicts`` or ``freeze``.
        agent: of the affected thread.
        thread: if known.
        approval: its id, if one is affected.
        name: one of several, such as that of a freeze or an API key.
        key_id: of the key by which seals were checked.
        evidence: a hash of the data, to distinguish two findings in one place.
    """

    kind: SecurityKind
    tenant: str
    about: str
    agent: str = ""
    thread: str = ""
    approval: str = ""
    name: str = ""
    key_id: str = ""
    evidence: str = Field(default="", repr=False)

    def logged(self) -> Event:
        """Return the entry of the audit log."""
        named = {"about": self.about, "name": self.name, "key": self.key_id}
        return Event(
            name=EventName.SECURITY_DETECTED,
            tenant=self.tenant,
            agent=self.agent,
            thread=self.thread,
            approval=self.approval,
            reason=self.kind,
            data={name: value for name, value in named.items() if value},
        )

    def announced(self) -> Event:
        """Return the event of the outbox: a separate message, under no card."""
        logged = self.logged()
        named = {"approval": self.approval} if self.approval else {}
        return logged.with_(approval="", data={**logged.data, **named})


def summary(tenant: str, kind: SecurityKind, count: int) -> Event:
    """Return one event for several that were not announced one by one."""
    return Event(
        name=EventName.SECURITY_DETECTED,
        tenant=tenant,
        reason=kind,
        data={"count": str(count)},
    )
