"""The oversight of a period: a fold over the verified entries of an audit bundle.

It has ids of people, and neither their names nor the texts of calls. Waiting times are
not by person: a few decisions would describe that person.

An erased entry counts by what its signed leaf still has: the event, tool, tier and
roles.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest

from pydantic import JsonValue

from keyturn.gateway.approvals.events import EDITED, ROLES, Event, EventName
from keyturn.gateway.metrics import report
from keyturn.gateway.metrics.report import DECIDED, Metrics, Selection, outcome_of
from keyturn.gateway.protocol.strict_json import JsonObject

FORMAT = "keyturn/dossier/v1"
ERASED = "(erased)"
"""In place of an erased person or scope."""

_FREEZES = (EventName.FREEZE_SET, EventName.FREEZE_LIFTED, EventName.AGENT_PAUSED)
_GESTURES = (EventName.APPROVAL_VIEWED, EventName.ITEM_VOTED, EventName.ITEM_CHECKED)
ACTS = (*_GESTURES, *DECIDED)
"""Acts of a reviewer: pages opened, votes, answered spot checks and decisions."""

_ANSWERS = (EventName.ITEM_CHECKED, EventName.SEEDED_ANSWERED)
"""Entries without a meaning if their details are erased."""

_MISSING = "(missing)"


class Dossier:
    """The oversight of a period.

    Attributes:
        metrics: counts of all calls.
        people: number of acts by the id of the person.
        policies: the policy at the start of the period, and each change. ``roles`` has
            the ids of users and groups by role; null if they are unknown.
        freezes: freezes, their ends and pauses of agents.
        entries: number of entries by event.
        erased: number of erased texts, and of entries that have them.
        newest_ms: time of the newest entry of the period; 0 if there is none. A log
            that ends before the period proves nothing about the rest of it.
    """

    def __init__(self, selected: Selection) -> None:
        self.metrics = Metrics(selected)
        self.people: dict[str, Counter[str]] = {}
        self.policies: list[JsonObject] = []
        self.freezes: list[JsonObject] = []
        self.entries: Counter[str] = Counter()
        self.erased = Counter(entries=0, texts=0)
        self.newest_ms = 0
        self._edited: set[str] = set()

    def add(self, entry: Event, erased: int = 0) -> None:
        """Count an entry with its number of erased texts, in the order of the log."""
        if entry.name is EventName.ITEM_EDITED:
            self._edited.add(entry.item)
        event = self._restored(entry) if erased else entry
        if not (erased and event.name in _ANSWERS):
            self.metrics.add(event)
        if event.name is EventName.POLICY_LOADED:
            self._add_policy(event)
        if not self.metrics.selected.is_in_time(event):
            return
        self.newest_ms = max(self.newest_ms, event.at_ms)
        self.entries[event.name] += 1
        self.erased.update(entries=bool(erased), texts=erased)
        if event.name in _FREEZES:
            scope = event.data.get("scope") or event.agent or event.tool or ERASED
            row = {"event": event.name, "scope": scope, "by": event.actor or ERASED}
            self.freezes.append({"at": report.utc(event.at_ms), **row})
        act = outcome_of(event) or event.name
        if act in ACTS:
            self.people.setdefault(event.actor or ERASED, Counter())[act] += 1

    def _restored(self, event: Event) -> Event:
        """Return an erased entry with the facts that other parts of the log prove."""
        # Only people have roles, so an authorization with roles is a person's.
        is_edited = event.item in self._edited
        actor = ERASED if event.roles else event.actor
        return event.with_(actor=actor, data={EDITED: ""} if is_edited else {})

    def _add_policy(self, event: Event) -> None:
        since_ms, until_ms = (
            self.metrics.selected.since_ms,
            self.metrics.selected.until_ms,
        )
        if until_ms is not None and event.at_ms >= until_ms:
            return
        roles = json.loads(event.data.get(ROLES, "null"))
        now = {"digest": event.policy_digest, "roles": roles}
        if event.at_ms <= since_ms:
            self.policies.clear()
        if not self.policies or not now.items() <= self.policies[-1].items():
            self.policies.append({"since": report.utc(event.at_ms), **now})

    @property
    def as_json(self) -> JsonObject:
        """Return every figure; times are in UTC, waits in seconds."""
        selected = self.metrics.selected
        return {
            "format": FORMAT,
            "from": report.utc(selected.since_ms),
            "to": report.utc(selected.until_ms or 0),
            "newest": report.utc(self.newest_ms) if self.newest_ms else None,
            "policies": [*self.policies],
            "people": [
                {"id": name, **{str(act): acts[act] for act in ACTS}}
                for name, acts in sorted(self.people.items())
            ],
            "freezes": [*self.freezes],
            "counts": report.as_json(self.metrics),
            "entries": dict(sorted(self.entries.items())),
            "erased": dict(self.erased),
        }


def differences(claimed: JsonValue, found: JsonValue, at: str = "") -> Iterator[str]:
    """Yield a sentence for each figure of a dossier that is not the found one."""
    if isinstance(claimed, list) and isinstance(found, list):
        for index, parts in enumerate(zip_longest(claimed, found, fillvalue=_MISSING)):
            yield from differences(*parts, at=f"{at}[{index}]")
    elif isinstance(claimed, dict) and isinstance(found, dict):
        for name in sorted({*claimed, *found}):
            was, now = claimed.get(name, _MISSING), found.get(name, _MISSING)
            yield from differences(was, now, f"{at}.{name}" if at else name)
    # As JSON, because 1 and True are equal in Python.
    elif json.dumps(claimed) != json.dumps(found):
        yield f"{at} is {json.dumps(claimed)}; the bundle gives {json.dumps(found)}"
