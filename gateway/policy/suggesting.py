"""Suggest calls that need no review, from past decisions in an audit export.

A suggestion is for calls that people always approved unchanged: calls of a tool, or
calls with one argument up to a limit. It changes nothing by itself.

Every other outcome counts against it: an edit, a rejection, an answer, an expiry, a
withdrawal, a failure, a stricter tier, or a quorum of two people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from keyturn.gateway.approvals.events import BY_GATEWAY, BY_POLICY, EventName
from keyturn.gateway.policy.fields import RESERVED_WORDS
from keyturn.gateway.policy.replay import Row
from keyturn.gateway.protocol.records import Record, Tier
from keyturn.gateway.protocol.strict_json import JsonObject

LEAST = 20
"""Fewest calls for a suggestion."""

_APPROVED = frozenset({EventName.ITEM_AUTHORIZED})
_NEUTRAL = _APPROVED | {
    EventName.ITEM_EXECUTING,
    EventName.ITEM_EXECUTED,
    EventName.ITEM_HANDING_OVER,
    EventName.ITEM_HANDED_OVER,
}
"""Events of a call that was approved unchanged, and ran or was handed over."""


class Suggestion(Record):
    """Calls whose review can be dropped.

    Attributes:
        tool: name of the tool.
        argument: only calls with this argument up to ``limit``; "" for all calls.
        limit: the greatest approved value.
        calls: number of calls; people approved all of them unchanged.
    """

    tool: str
    argument: str = ""
    limit: float | None = None
    calls: int

    @property
    def at_most_percent(self) -> int:
        """Return an upper bound, in percent, of such calls that still need a person.

        This is the rule of three: with no case in n calls, the rate is below 3/n with
        95 % confidence.
        """
        return 300 // self.calls + 1

    @property
    def rule(self) -> str:
        """Return a ``raise`` rule in YAML for the calls above the limit; "" if none.

        A call whose argument is missing or not a number cannot be checked, and is
        raised as well.
        """
        if self.limit is None:
            return ""
        limit = _number(self.limit)
        when = f"args.{self.argument} > {limit}"
        return f'{{to: approve, when: "{when}", because: "over {limit}"}}'

    @property
    def sentence(self) -> str:
        """Return the evidence as a sentence."""
        which = ""
        if self.limit is not None:
            which = f" with {self.argument} up to {_number(self.limit)}"
        calls = self.calls
        return f"{calls} of {calls} calls{which} were approved unchanged"


@dataclass
class _Tool:
    """The calls of a tool: arguments of the approved ones and of all others."""

    approved: list[JsonObject] = field(default_factory=list[JsonObject])
    others: list[JsonObject] = field(default_factory=list[JsonObject])
    is_unknown: bool = False


def suggest(rows: Iterable[Row], *, least: int = LEAST) -> list[Suggestion]:
    """Return suggestions, those first that save most decisions.

    Args:
        rows: of an audit export, in the order of the log.
        least: fewest calls for a suggestion.
    """
    found = (_of_tool(name, tool, least) for name, tool in _tools(rows).items())
    return sorted(filter(None, found), key=lambda one: (-one.calls, one.tool))


def _tools(rows: Iterable[Row]) -> dict[str, _Tool]:
    calls: dict[str, list[Row]] = {}
    for row in rows:
        if row.item and row.tool:
            calls.setdefault(row.item, []).append(row)
    tools: dict[str, _Tool] = {}
    for events in calls.values():
        tool = tools.setdefault(events[0].tool, _Tool())
        args = next((row.call.args for row in events if row.call), None)
        if all(row.tier in {Tier.AUTO, Tier.NOTIFY} for row in events):
            continue
        if _is_approved(events):
            tool.approved.append(args or {})
        elif args is None:
            # Without its arguments, no limit can exclude this call.
            tool.is_unknown = True
        else:
            tool.others.append(args)
    return tools


def _is_approved(events: Sequence[Row]) -> bool:
    """Return whether one person approved a call unchanged, once."""
    people = [row for row in events if row.actor not in {"", BY_GATEWAY, BY_POLICY}]
    return (
        len(people) == 1
        and people[0].name in _APPROVED
        and all(row.name in _NEUTRAL for row in events)
        and all(row.tier is Tier.APPROVE for row in events)
    )


def _of_tool(name: str, tool: _Tool, least: int) -> Suggestion | None:
    if tool.is_unknown or len(tool.approved) < least:
        return None
    if not tool.others:
        return Suggestion(tool=name, calls=len(tool.approved))
    names = dict.fromkeys(key for args in tool.approved for key in args)
    found = (_of_argument(name, tool, key, least) for key in names)
    return max(filter(None, found), key=lambda one: one.calls, default=None)


def _of_argument(
    name: str, tool: _Tool, argument: str, least: int
) -> Suggestion | None:
    given = [args[argument] for args in tool.approved if argument in args]
    against = [args[argument] for args in tool.others if argument in args]
    values, limits = [*map(_as_number, given)], [*map(_as_number, against)]
    is_readable = argument.isascii() and argument.isidentifier()
    # A hidden value is text in the export, but a rule reads the original.
    if not is_readable or argument in RESERVED_WORDS or None in (*values, *limits):
        return None
    lowest = min((value for value in limits if value is not None), default=None)
    if lowest is None:
        return None
    below = [value for value in values if value is not None and value < lowest]
    if len(below) < least:
        return None
    return Suggestion(tool=name, argument=argument, limit=max(below), calls=len(below))


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value


def _number(value: float) -> str:
    return json.dumps(int(value) if value == int(value) else value)
