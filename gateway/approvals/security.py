"""Security events: forged or replayed data, and processes that are stuck."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.records import Record


class SecurityKind(StrEnum):
    """Kind of a security event: the reason of the event, and a label of metrics.

    ``seal_wrong``: a stored text has no seal of Keyturn for its place. ``replayed``:
    its seal is right, but the text is older than the known one for that place.
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
