"""Arrange a person's queue for their Home tab: filter, group, order, pages.

Calls of one tool and one agent are grouped. A call that its row shows whole, without
further notes, can be approved in its row and decided together with others of its group;
any other call is opened first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from unicodedata import category

from keyturn.bot.cards.listing import (
    is_short,
    listing_of,
    named_values,
    needs_a_look,
    one_line,
    state_text,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.protocol.records import Record, Tier, Verb, join

ROWS = 20
"""Approvals on one page of the tab."""

MAX_TOGETHER = 40
"""Maximum number of calls that one gesture decides.

Their ids fit into the value of a button (2,000 characters), and their writes into the
three seconds that Slack waits.
"""

_SAME_TIME_MS = 15 * 60_000
"""Deadlines in the same quarter of an hour are equally urgent."""

_LINE_CHARS = 200
_CALL_CHARS = 600
_SEPARATOR = " · "


class HomeFilter(Record):
    """A person's filter of their queue; an empty text matches everything.

    ``after`` is the row before the first row of the page, see `mark_of`. A page number
    would skip or repeat rows when earlier rows come or go.
    """

    tool: str = ""
    agent: str = ""
    tier: str = ""
    after: str = ""

    @property
    def is_set(self) -> bool:
        """Return whether the filter excludes anything."""
        return bool(self.tool or self.agent or self.tier)


@dataclass(frozen=True, slots=True)
class Group:
    """Pending approvals of one person, tool and agent, the most urgent first.

    ``together`` are the ids of the calls that one gesture can decide. ``count`` is the
    number of approvals in the group, of which a page may show some, and ``calls`` the
    number of their pending calls.
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
        start: number of approvals before it.
        before: `HomeFilter.after` of the previous page; None on the first page.
        next: of the next page; None on the last page.
        calls: number of pending calls of the person, without the filter.
        matching_calls: number of them that match the filter.
        matching: number of approvals with matching calls.
        tools, agents, tiers: the filter's options.
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

    @property
    def approvals(self) -> list[Approval]:
        """Return the approvals of the page, in order."""
        return [one for group in self.groups for one in group.approvals]

    def showing(self, evaluated: Mapping[str, Approval]) -> Page:
        """Return the page with approvals replaced by these, by id."""
        groups: list[Group] = []
        for group in self.groups:
            shown = tuple(evaluated.get(one.id, one) for one in group.approvals)
            # The button above does not count a call that now has to be opened first.
            opened = (one for one in shown if decidable_in_row(one) is None)
            alone = {item.id for one in opened for item in one.items}
            together = tuple(item for item in group.together if item not in alone)
            groups.append(replace(group, approvals=shown, together=together))
        return replace(self, groups=tuple(groups))


def page_of(
    queue: Iterable[Approval],
    *,
    chosen: HomeFilter | None = None,
    calls: Mapping[str, int] | None = None,
) -> Page:
    """Return one page of a person's queue.

    Args:
        queue: the person's pending approvals, in any order.
        chosen: their filter; the last page if there are fewer pages.
        calls: number of pending calls by approval; by default all pending ones.
    """
    chosen = chosen or HomeFilter()
    waiting = most_urgent(queue)
    counts = {one.id: len(pending(one)) for one in waiting} | dict(calls or {})
    matching = [one for one in waiting if _matches(one, chosen)]
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
        tiers=tuple(
            str(tier)
            for tier in sorted(set(map(tier_of, waiting)), key=lambda tier: tier.rank)
        ),
    )


def mark_of(approval: Approval) -> str:
    """Return the place of an approval in a queue; it stays valid after it leaves."""
    return json.dumps(_sort_key(approval), separators=(",", ":"))


def _start(matching: Sequence[Approval], after: str) -> int:
    """Return the number of approvals before the page after a mark."""
    try:
        place = tuple(json.loads(after)) if after else ()
        start = sum(_sort_key(one) <= place for one in matching) if place else 0
    # The mark was in a button, or stored by another version: show the first page.
    except (TypeError, ValueError):
        return 0
    # The rows after it are gone: show the last page.
    return start if start < len(matching) else max(0, len(matching) - 1) // ROWS * ROWS


def _mark_before(matching: Sequence[Approval], index: int) -> str:
    return mark_of(matching[index - 1]) if index > 0 else ""


def most_urgent(queue: Iterable[Approval]) -> list[Approval]:
    """Return the approvals of a queue with pending calls, the most urgent first.

    Expired ones were removed when the queue was read, by the store's clock: another
    clock, running ahead, would hide approvals that can still be decided.
    """
    return sorted((one for one in queue if pending(one)), key=_sort_key)


def pending(approval: Approval) -> list[Item]:
    """Return the pending calls of an approval."""
    return [item for item in approval.items if item.is_pending]


def tier_of(approval: Approval) -> Tier:
    """Return the strictest tier of the pending calls."""
    return join(Tier.AUTO, *(item.tier for item in pending(approval)))


def whole_call(item: Item) -> tuple[str, ...]:
    """Return boxes with every character of a call; empty if it is too long for a row.

    One line if no value could be mistaken for another argument.
    """
    line = whole_line(item)
    if line:
        return (f"{one_line(item.tool)}  {line}",)
    listing = listing_of(item, budget=_CALL_CHARS)
    return listing.boxes if listing.is_complete else ()


def whole_line(item: Item) -> str:
    """Return all arguments on one line; "" if that is not possible."""
    values = named_values(item)
    line = _SEPARATOR.join(f"{name} {text}" for name, text in values)
    is_plain = all(
        is_short(name, text) and not _has_sign(name + text) for name, text in values
    )
    is_shown = is_plain and len(line) + len(item.tool) <= _LINE_CHARS
    return (line or "(no arguments)") if is_shown else ""


def _has_sign(text: str) -> bool:
    """Return whether a text has a sign that looks like the separator."""
    kinds = (category(one) for one in text if not one.isascii())
    return any(kind[0] in "PS" and kind != "Sc" for kind in kinds)


def decidable_in_row(approval: Approval) -> Item | None:
    """Return the call of an approval that can be approved in its row, if any.

    It is alone, shown whole, needs no reason, and its card would add nothing: no edit,
    warning, report, opinion, precedent or business state.
    """
    waiting = pending(approval)
    if len(waiting) != 1:
        return None
    item = waiting[0]
    has_words = approval.remarks or approval.inquiries
    has_opinion = item.triage is not None and item.triage.rationale
    is_changed = item.revoked or item.edit or item.original_args is not None
    if has_words or has_opinion or is_changed or item.past.precedents:
        return None
    is_usual = not (approval.is_standing or item.is_question or state_text(item))
    may_approve = (
        Verb.APPROVE in item.allow and Verb.APPROVE not in item.requires_reason
    )
    if not (is_usual and may_approve and item.tier is Tier.APPROVE):
        return None
    return item if whole_call(item) and not needs_a_look(item) else None


def _sort_key(approval: Approval) -> tuple[bool, int, int, int, int, str]:
    """Return the sort key of an approval in a queue: smaller comes first.

    Time comes before a model's score: first escalated approvals, then the quarter of an
    hour of the deadline. Within it the score of triage decides, then the deadline, and
    then age. A missing score is the lowest, so that no score can put a call further
    back.
    """
    score = max(
        (one.triage.score for one in pending(approval) if one.triage), default=0
    )
    # The score of a model comes after time: an attacker who can influence the model
    # must not be able to push a call out of sight.
    deadline, age = approval.expires_at_ms, approval.created_at_ms
    is_usual = not approval.escalated_at_ms
    return is_usual, deadline // _SAME_TIME_MS, -score, deadline, age, approval.id


def _groups(
    matching: Sequence[Approval], start: int, counts: Mapping[str, int]
) -> tuple[Group, ...]:
    """Group the approvals of one page by tool and agent.

    The page is cut before grouping: a thousand calls of one tool must not push a more
    urgent call of another one to a later page.
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
        # In order, and only until the limit: a thousand calls are not rendered to name
        # forty.
        if len(found) == MAX_TOGETHER:
            break
    return tuple(found)


def _tools(approval: Approval) -> tuple[str, ...]:
    return tuple(sorted({item.tool for item in pending(approval)}))


def _matches(approval: Approval, chosen: HomeFilter) -> bool:
    return (
        chosen.tool in {"", *_tools(approval)}
        and chosen.agent in {"", approval.agent}
        and chosen.tier in {"", str(tier_of(approval))}
    )
