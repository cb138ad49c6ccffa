"""Security events: what is not what we wrote, and what does not go on as it should."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.protocol.records import Record


class SecurityKind(StrEnum):
    """What was noticed; the text is the reason of the event, and a label of metrics.

    ``seal_wrong``: a stored text was not sealed by us for its place. ``replayed``: it
    was, but is older than what was known of that place. ``record_forged``: decisions
    in a record are not what the bot signed. ``key_unknown``: a decision is signed by a
    key that the gateway was not told. ``request_replayed``: a signed request came
    twice. ``key_refused``: an API key that is not valid. ``lookup_failed``: it could
    not be found out who somebody is. ``stalled``: something does not go on by itself.
    ``clock_wrong``: the clock of a process is not the store's. ``secret_unknown``: the
    store says that it is sealed with a secret which a process does not accept.
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
        """Return whether people are told of it in a channel.

        The others also have harmless causes, or come from anybody who reaches a port:
        they are in the audit log, the metrics and the log.
        """
        return self in _ANNOUNCED


_ANNOUNCED = frozenset(
    {
        SecurityKind.SEAL_WRONG,
        SecurityKind.REPLAYED,
        SecurityKind.RECORD_FORGED,
        # Mostly a setting that is missing; but calls do not run until it is there.
        SecurityKind.KEY_UNKNOWN,
    }
)


class SecurityEvent(Record):
    """One thing that was noticed. It holds no text that was stored, and no secret.

    Attributes:
        kind: what.
        tenant: whose.
        about: what kind of thing it is about, such as ``verdicts`` or ``freeze``.
        agent: whose thread it is about.
        thread: where that is known.
        approval: its id, where it is about one.
        name: which of several, such as that of a freeze or an API key.
        key_id: of the key by which seals were checked.
        evidence: tells two findings in one place apart: a hash of what was found.
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
        """Return the event of the outbox: a message of its own, under no card."""
        logged = self.logged()
        named = {"approval": self.approval} if self.approval else {}
        return logged.with_(approval="", data={**logged.data, **named})


def summary(tenant: str, kind: SecurityKind, count: int) -> Event:
    """Return the event that stands for several that were not told one by one."""
    return Event(
        name=EventName.SECURITY_DETECTED,
        tenant=tenant,
        reason=kind,
        data={"count": str(count)},
    )
