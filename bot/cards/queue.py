"""Arrange a person's queue for their Home tab: filter, group, order, pages.

Calls of one tool and one agent stand together. A call that is shown whole and of which
nothing more is to be said can be approved in its row, and decided together with others
of its group; any other call is opened first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import LiteralString, TypeAlias
from unicodedata import category

from keyturn.bot.cards.diff import state_text
from keyturn.bot.cards.listing import (
    is_short,
    listing_of,
    named_values,
    needs_a_look,
    one_line,
    schema_order,
)
from keyturn.bot.cards.needs import counted_votes
from keyturn.gateway.approvals.precedents import PrecedentKind
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Record, Tier, Verb, join

ROWS = 20
"""How many approvals one page of the tab lists."""

MAX_TOGETHER = 40
"""How many calls one gesture decides at most.

Their ids fit into the value of a button (2,000 characters), and their writes into the
three seconds that Slack waits.
"""

_SAME_TIME_MS = 15 * 60_000
"""Deadlines of one quarter of an hour are as urgent as each other."""

_LINE_CHARS = 200
_CALL_CHARS = 600
_SEPARATOR = " · "

_Why: TypeAlias = tuple[bool, LiteralString]
"""Whether a call is opened first for a reason, and the reason."""


class HomeFilter(Record):
    """What a person wants to see of their queue; an empty text stands for all.

    ``after`` is the row behind which their page begins, see `mark_of`. A number of a
    page would show other rows, or the same ones again, whenever some before them come
    or go.
    """

    tool: str = ""
    agent: str = ""
    tier: str = ""
    is_mine: bool = False
    after: str = ""

    @property
    def is_set(self) -> bool:
        """Return whether anything is left out."""
        return bool(self.tool or self.agent or self.tier or self.is_mine)


@dataclass(frozen=True, slots=True)
class Group:
    """Approvals that wait for one person, of one tool and agent, the most urgent first.

    ``together`` are the ids of the calls that one gesture can decide; ``count`` says
    how many approvals the group has, of which a page may show some, and ``calls`` how
    many calls wait in them.
    """

    agent: str
    tool: str
    approvals: tuple[Approval, ...]
    together: tuple[str, ...]
    count: int
    calls: int


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a queue.

    Attributes:
        groups: with the approvals of this page only.
        start: how many approvals stand before it.
        before: `HomeFilter.after` of the page before; None when this is the first.
        next: of the page behind; None when this is the last.
        calls: how many calls wait for the person, whatever the filter.
        matching_calls: how many of them the filter lets through.
        matching: how many approvals these are in.
        tools, agents, tiers: what can be filtered by.
        is_any_mine: whether the person said of one of them that they are on it.
    """

    groups: tuple[Group, ...]
    start: int
    before: str | None
    next: str | None
    calls: int
    matching_calls: int
    matching: int
    tools: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    is_any_mine: bool = False

    @property
    def approvals(self) -> list[Approval]:
        """Return what the page shows, in order."""
        return [one for group in self.groups for one in group.approvals]

    def showing(self, evaluated: Mapping[str, Approval]) -> Page:
        """Return the page with these approvals in the place of those it has, by id."""
        groups = tuple(_showing(group, evaluated) for group in self.groups)
        return replace(self, groups=groups)


def _showing(group: Group, evaluated: Mapping[str, Approval]) -> Group:
    shown = tuple(evaluated.get(one.id, one) for one in group.approvals)
    # A call that now has to be opened first is not counted by the button above.
    alone = {
        item.id for one in shown if not decidable_in_row(one) for item in one.items
    }
    together = tuple(item for item in group.together if item not in alone)
    return replace(group, approvals=shown, together=together)


def page_of(
    queue: Iterable[Approval],
    *,
    now_ms: int,
    user: str = "",
    chosen: HomeFilter | None = None,
    calls: Mapping[str, int] | None = None,
) -> Page:
    """Return one page of what waits for a person.

    Args:
        queue: the approvals that wait for this person, in any order.
        now_ms: the time.
        user: the person.
        chosen: what they want to see; the last page where there are fewer.
        calls: how many calls of each approval wait for them; all that wait where it
            says nothing.
    """
    chosen = chosen or HomeFilter()
    waiting = most_urgent(queue)
    counts = {one.id: len(pending(one)) for one in waiting} | dict(calls or {})
    matching = [one for one in waiting if _matches(one, chosen, user, now_ms)]
    start = _start(matching, chosen.after)
    end = start + ROWS
    return Page(
        groups=_groups(matching, start, counts),
        start=start,
        before=_mark_before(matching, start - ROWS) if start else None,
        next=_mark_before(matching, end) if end < len(matching) else None,
        calls=sum(counts[one.id] for one in waiting),
        matching_calls=sum(counts[one.id] for one in matching),
        matching=len(matching),
        tools=tuple(sorted({tool for one in waiting for tool in _tools(one)})),
        agents=tuple(sorted({one.agent for one in waiting})),
        tiers=_tiers(waiting),
        is_any_mine=any(_is_acknowledged_by(one, user, now_ms) for one in waiting),
    )


def mark_of(approval: Approval) -> str:
    """Return the place of an approval in a queue, also when it has left it."""
    return json.dumps(_sort_key(approval), separators=(",", ":"))


def _start(matching: Sequence[Approval], after: str) -> int:
    """Return how many approvals stand before the page behind a mark."""
    try:
        place = tuple(json.loads(after)) if after else ()
        start = sum(_sort_key(one) <= place for one in matching) if place else 0
    # It was in a button, or kept by another version: then the first page.
    except (TypeError, ValueError):
        return 0
    # What was behind it has gone: what is last now.
    return start if start < len(matching) else max(0, len(matching) - 1) // ROWS * ROWS


def _mark_before(matching: Sequence[Approval], index: int) -> str:
    return mark_of(matching[index - 1]) if index > 0 else ""


def most_urgent(queue: Iterable[Approval]) -> list[Approval]:
    """Return what of a queue waits, the most urgent first.

    Whose time is over was left out when it was read, by the clock of the store: another
    clock, which is ahead, would hide what can be decided still.
    """
    return sorted((one for one in queue if pending(one)), key=_sort_key)


def pending(approval: Approval) -> list[Item]:
    """Return the calls of an approval that wait."""
    return [item for item in approval.items if item.is_pending]


def tier_of(approval: Approval) -> Tier:
    """Return the strictest tier of what waits."""
    return join(Tier.AUTO, *(item.tier for item in pending(approval)))


def whole_call(item: Item) -> tuple[str, ...]:
    """Return boxes with every character of a call; none when it is too long for a row.

    One line where no value could be mistaken for another argument.
    """
    line = whole_line(item)
    if line:
        return (f"{one_line(item.tool)}  {line}",)
    listing = listing_of(item, budget=_CALL_CHARS)
    return listing.boxes if listing.is_complete else ()


def whole_line(item: Item) -> str:
    """Return all arguments on one line; "" when that is not possible."""
    values = named_values(item.args, item.redact, schema_order(item))
    line = _SEPARATOR.join(f"{name} {text}" for name, text in values)
    is_plain = all(
        is_short(name, text) and not _has_sign(name + text) for name, text in values
    )
    is_shown = is_plain and len(line) + len(item.tool) <= _LINE_CHARS
    return (line or "(no arguments)") if is_shown else ""


def _has_sign(text: str) -> bool:
    """Return whether a text has a sign that may look like our separator."""
    return any(not one.isascii() and category(one)[0] in "PS" for one in text)


def decidable_in_row(approval: Approval) -> Item | None:
    """Return the call of an approval that can be approved in its row, if any.

    It is alone, shown whole, asks for no reason and for one gesture, and its card
    would say nothing more: no edit, warning, report, opinion or business state.
    """
    return None if why_opened(approval) else pending(approval)[0]


def why_opened(approval: Approval) -> LiteralString:
    """Return why a call is opened before it is approved; "" where its row can do it."""
    waiting = pending(approval)
    if len(waiting) != 1:
        return "several calls"
    found = (*_of_approval(approval, waiting[0]), *_of_call(waiting[0]))
    for is_so, why in found:
        if is_so:
            return why
    return ""


def _of_approval(approval: Approval, item: Item) -> tuple[_Why, ...]:
    """Return what a row cannot decide, whatever it shows."""
    has_words = bool(approval.remarks or approval.inquiries)
    is_raised = item.tier is not Tier.APPROVE
    return (
        (approval.is_standing, "allows several calls"),
        (item.is_question, "a question"),
        (Verb.APPROVE not in item.allow, "cannot be approved as it is"),
        (item.tier is Tier.DENY, "the policy no longer allows it"),
        (is_raised and counted_votes(item).need > 1, "needs several people"),
        (is_raised, "escalated"),
        (Verb.APPROVE in item.requires_reason, "needs a reason"),
        (has_words, "people wrote about it"),
    )


def _of_call(item: Item) -> tuple[_Why, ...]:
    """Return what the card of a call says that a row has no room for."""
    kinds = {one.kind for one in item.past.precedents}
    has_opinion = item.triage is not None and bool(item.triage.rationale)
    return (
        (item.revoked is not None, "its approval was taken back"),
        (item.edit is not None, "edited"),
        (item.original_args is not None, "its tool reads the arguments differently"),
        # The banner about the same call before stands on the card alone.
        (bool(kinds - {PrecedentKind.WAITING}), "the same was asked before"),
        (PrecedentKind.WAITING in kinds, "the same waits on another card"),
        (has_opinion, "a model raised it"),
        (bool(state_text(item)), "its card shows a state"),
        (needs_a_look(item), "its card has a warning"),
        (not whole_call(item), "too long for a row"),
    )


def _sort_key(approval: Approval) -> tuple[bool, int, int, int, int, str]:
    """Return the sort key of an approval in a queue: smaller comes first.

    Time decides before any model does: first what was escalated to others, then the
    quarter of an hour in which the time ends. Within it the score of triage decides,
    then the deadline, and then age. No score is the lowest score, so that none puts a
    call further back.
    """
    score = max(
        (one.triage.score for one in pending(approval) if one.triage), default=0
    )
    # The score of a model comes after time: a model that an attacker can talk to must
    # not be able to push a call out of sight.
    deadline, age = approval.expires_at_ms, approval.created_at_ms
    is_usual = not approval.escalated_at_ms
    return is_usual, deadline // _SAME_TIME_MS, -score, deadline, age, approval.id


def _groups(
    matching: Sequence[Approval], start: int, counts: Mapping[str, int]
) -> tuple[Group, ...]:
    """Put the approvals of one page together by tool and agent.

    The page is cut before they are grouped: a thousand calls of one tool must not push
    a more urgent call of another one to a later page.
    """
    everything = _by_kind(matching)
    shown = _by_kind(matching[start : start + ROWS])
    return tuple(
        Group(
            agent=agent,
            tool=", ".join(map(one_line, tools)),
            approvals=tuple(rows),
            together=_together(everything[agent, tools]),
            count=len(everything[agent, tools]),
            calls=sum(counts[one.id] for one in everything[agent, tools]),
        )
        for (agent, tools), rows in shown.items()
    )


def _by_kind(
    approvals: Sequence[Approval],
) -> dict[tuple[str, tuple[str, ...]], list[Approval]]:
    found: dict[tuple[str, tuple[str, ...]], list[Approval]] = {}
    for one in approvals:
        found.setdefault((one.agent, _tools(one)), []).append(one)
    return found


def _together(row: Sequence[Approval]) -> tuple[str, ...]:
    found: list[str] = []
    for one in row:
        item = decidable_in_row(one)
        if item is not None:
            found.append(item.id)
        # Looked at in order: a thousand calls are not rendered to name forty.
        if len(found) == MAX_TOGETHER:
            break
    return tuple(found)


def _tools(approval: Approval) -> tuple[str, ...]:
    return tuple(sorted({item.tool for item in pending(approval)}))


def _tiers(waiting: Iterable[Approval]) -> tuple[str, ...]:
    found = {tier_of(one) for one in waiting}
    return tuple(str(tier) for tier in sorted(found, key=lambda tier: tier.rank))


def _matches(approval: Approval, chosen: HomeFilter, user: str, now_ms: int) -> bool:
    return (
        chosen.tool in {"", *_tools(approval)}
        and chosen.agent in {"", approval.agent}
        and chosen.tier in {"", str(tier_of(approval))}
        and (not chosen.is_mine or _is_acknowledged_by(approval, user, now_ms))
    )


def _is_acknowledged_by(approval: Approval, user: str, now_ms: int) -> bool:
    said = approval.acknowledged
    return said is not None and said.by.user == user and now_ms < said.until_ms
