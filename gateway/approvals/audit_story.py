"""Fold audit entries into evidence of each approval: views, decisions and runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from keyturn.gateway.approvals.events import CALLS, Event, EventName
from keyturn.gateway.protocol.strict_json import JsonObject


class Part(StrEnum):
    """Kind of evidence that an entry gives."""

    ASKED = "asked"
    SAW = "saw"
    DECIDED = "decided"
    RAN = "ran"
    ENDED = "ended"
    OTHER = "other"


_PARTS = {
    Part.ASKED: {EventName.APPROVAL_OPENED, EventName.CALL_DENIED},
    Part.SAW: {EventName.APPROVAL_VIEWED},
    Part.DECIDED: {
        EventName.APPROVAL_DECIDED,
        EventName.ITEM_VOTED,
        EventName.ITEM_EDITED,
        EventName.ITEM_AUTHORIZED,
        EventName.ITEM_REJECTED,
        EventName.ITEM_ANSWERED,
        EventName.ITEM_RECONCILED,
    },
    Part.RAN: {
        EventName.ITEM_EXECUTING,
        EventName.ITEM_EXECUTED,
        EventName.ITEM_FAILED,
        EventName.ITEM_IN_DOUBT,
        EventName.ITEM_OBSERVED,
        EventName.ITEM_REPORTED,
        EventName.CALL_RAN,
        EventName.CALL_EXECUTED,
        EventName.CALL_FAILED,
    },
    Part.ENDED: {
        EventName.ITEM_EXPIRED,
        EventName.ITEM_SUPERSEDED,
        EventName.ITEM_WITHDRAWN,
        EventName.ITEM_LAPSED,
    },
}
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}


_CALLS = TypeAdapter(list[dict[str, str]])


@dataclass(frozen=True)
class Step:
    """One entry about an approval."""

    part: Part
    event: Event

    @property
    def calls(self) -> list[dict[str, str]]:
        """Return the requested calls; none if they were erased."""
        try:
            return _CALLS.validate_json(self.event.data.get(CALLS, "[]"))
        except ValidationError:
            return []

    @property
    def row(self) -> JsonObject:
        """Return it as JSON."""
        event = self.event
        found: JsonObject = {
            "at_ms": event.at_ms,
            "part": self.part.value,
            "event": event.name.value,
        }
        named = {
            "item": event.item, "tool": event.tool, "tier": event.tier,
            "who": event.actor, "why": event.reason, "roles": list(event.roles),
            "action_hash": event.action_hash, "policy_digest": event.policy_digest,
            "request_digest": event.request_digest, "details": dict(event.data),
        }  # fmt: skip
        found |= {name: value for name, value in named.items() if value}  # type: ignore[misc]
        return found


@dataclass
class Story:
    """Audit entries of one approval."""

    approval: str
    steps: list[Step] = field(default_factory=list[Step])

    @property
    def has_run(self) -> bool:
        """Return True if a call of it ran, or may have run."""
        return any(step.part is Part.RAN for step in self.steps)

    @property
    def row(self) -> JsonObject:
        """Return it as JSON."""
        first = self.steps[0].event
        return {
            "approval": self.approval,
            "tenant": first.tenant,
            "agent": first.agent,
            "thread": first.thread,
            "ran": self.has_run,
            "steps": [step.row for step in self.steps],
        }


class Stories:
    """The stories of all approvals, from entries in their order."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.by_approval: dict[str, Story] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        """Add an entry; entries without an approval are ignored."""
        if not event.approval:
            return
        story = self.by_approval.setdefault(event.approval, Story(event.approval))
        story.steps.append(Step(_PART_OF.get(event.name, Part.OTHER), event))
