"""Render the App Home tab, and a list of past decisions.

The tab has a person's queue in groups, most urgent first. The slash command and a modal
list past decisions, a line each.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    actions,
    box,
    button,
    context,
    divider,
    header,
    input_block,
    modal,
    option,
    rich_text,
    section,
    select,
    text_input,
)
from keyturn.bot.blocks import home as home_view
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.history import item_of
from keyturn.bot.cards.listing import all_text, call_title, calls_title, one_line
from keyturn.bot.cards.queue import (
    ROWS,
    Group,
    HomeFilter,
    Page,
    decidable_in_row,
    most_urgent,
    pending,
    whole_call,
    whole_line,
)
from keyturn.bot.cards.refs import actor, places, short_ref, when, who
from keyturn.bot.cards.reminders import reason
from keyturn.bot.cards.states import (
    SIGNS,
    STATE_NAMES,
    approvals,
    counted_votes,
    still_needed,
)
from keyturn.bot.cards.states import why as why_needed
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.text import (
    LINE,
    NAME,
    NOTE,
    Plain,
    Template,
    fit,
    joined,
    label,
    slash_command,
    template,
    untrusted,
)
from keyturn.gateway.approvals.events import Event, state_after
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.timing import ends
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.blockkit import limits

_HOW: LiteralString = (
    "When an agent's action needs approval, a card shows exactly what would run. It "
    "runs once, as shown, and only after approval.\n"
    "*Approve* runs it as shown. *Edit* lets you change it first. *Reject* runs "
    "nothing and tells the agent why. *Respond* runs nothing and gives the agent your "
    "answer.\n"
    "*I'm on it* tells other reviewers that you are looking. *More time* extends the "
    "deadline. *Ask the requester…* asks the person for whom the agent works; the "
    "card stays open. `{command} delegate @colleague 4h` lets a colleague decide in "
    "your place while you are away. `{command} help` names the other commands."
)


def manual(place: str, command: str) -> list[Block]:
    """Return the explanation of the place where cards appear and the slash command."""
    return [
        divider(),
        header(label("How approvals work")),
        section(template(_HOW, command=slash_command(command))),
        section(
            template(
                "Cards appear in {place}, unless the policy names another place.",
                place=places([place]),
            )
        ),
    ]


ALL = "*"
"""The value of the option that filters nothing; no tool or agent has this name."""

FIRST = "first"
"""The value of the button that leads to the first page."""


def filter_row(page: Page, chosen: HomeFilter) -> list[Block]:
    """Return the menus to filter a queue by; empty if there is no choice."""
    menus = [
        *_menu(Action.FILTER_TOOL, "All tools", page.tools, chosen.tool),
        *_menu(Action.FILTER_AGENT, "All agents", page.agents, chosen.agent),
        *_menu(Action.FILTER_TIER, "All tiers", page.tiers, chosen.tier),
    ]
    if not menus:
        return []
    # The block id contains the choice: Slack keeps a menu's selection while its id
    # stays.
    said = chosen.with_(after="").model_dump_json()
    of = hashlib.sha256(said.encode()).hexdigest()[:8]
    row: list[Block] = [actions(*menus, block_id=f"filter.{of}")]
    if chosen.is_set:
        fitting, waiting = page.matching_calls, page.calls
        text = template("{n} of {all} fit the filter.", n=fitting, all=waiting)
        row.append(context(text))
    return row


def pager(page: Page) -> list[Block]:
    """Return the buttons to the other pages; empty if there is one page."""
    if page.before is None and page.next is None:
        return []
    text = template(
        "Cards {first} to {last} of {count}",
        first=page.start + 1,
        last=min(page.start + ROWS, page.matching),
        count=page.matching,
    )
    turns: list[Block] = []
    if page.before is not None:
        more = label("More urgent")
        # Slack refuses an empty value.
        turns.append(button(Action.HOME_BACK, more, value=page.before or FIRST))
    if page.next is not None:
        turns.append(button(Action.HOME_NEXT, label("Less urgent"), value=page.next))
    return [context(text), actions(*turns, block_id="pages")]


def _menu(
    action: Action, everything: str, names: Iterable[str], chosen: str
) -> list[Block]:
    """Return one menu, if there is a choice."""
    # The chosen name stays an option even when no such call is pending; otherwise the
    # tab would show another filter than the active one.
    offered = sorted({*names, chosen} - {""}) if chosen else [*names]
    # A longer name is not offered: it does not fit in an option's value.
    offered = [one for one in offered if len(_value(one)) <= limits.OPTION_VALUE]
    if len(offered) < (1 if chosen else 2):
        return []
    options = [option(label(everything), ALL)]
    options += [
        option(untrusted(name), _value(name))
        for name in offered[: limits.SELECT_OPTIONS - 1]
    ]
    is_offered = chosen in offered[: limits.SELECT_OPTIONS - 1]
    initial = _value(chosen) if is_offered else ALL
    return [select(action, options, initial=initial)]


def name_in(value: str) -> str:
    """Return the name of an option; "" for all, and for a malformed value.

    Names are encoded, because Slack's values must not contain untrusted text.
    """
    try:
        return urlsafe_b64decode(value.encode()).decode() if value != ALL else ""
    except ValueError:
        return ""


def _value(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode()


AS_OF = "as_of"
"""``block_id`` of the line with the time, the only one that always changes."""

INCOMPLETE = template(
    "This list may be incomplete: Slack did not say which user groups you are in. "
    "Please try again in a moment."
)
CUT: LiteralString = (
    "This list may be incomplete: only the {count} approvals that expire first were "
    "checked."
)
_ONLY_NO: LiteralString = (
    "Others approve these, because you requested or edited them. To reject one, press "
    "*Full details*."
)
_NO_TROUBLE: Mapping[str, str] = {}
_MAX_OWN = 3
"""Maximum number of a person's own calls below a full page."""


def home(  # noqa: PLR0913 - facts of one tab, each by name
    page: Page,
    *,
    key: bytes,
    team: str,
    now_ms: int,
    chosen: HomeFilter | None = None,
    until_ms: int = 0,
    is_complete: bool = True,
    looked_at: int = 0,
    own: Sequence[Approval] = (),
    troubles: Mapping[str, str] = _NO_TROUBLE,
    manual: Sequence[Block] = (),
) -> Block:
    """Return the Home tab.

    Args:
        page: this page of the person's queue.
        key: the bot's sealing key.
        team: the workspace.
        now_ms: the time, in Unix milliseconds.
        chosen: the person's filter.
        until_ms: end of the time in which the tab updates itself.
        is_complete: False if Slack did not return all of the person's groups.
        looked_at: number of approvals checked, if there may be more; else 0.
        own: approvals that this person requested or changed, and may only end.
        troubles: approval id to Slack's error for a missing or outdated card.
        manual: the blocks at the end.
    """
    at_least = " or more" if looked_at else ""
    # It shows people their own tab again, so its value needs no signature.
    refresh = button(
        Action.REFRESH, label("Refresh"), accessibility_label=label("Refresh this list")
    )
    blocks = [
        header(label(f"Waiting for you: {page.calls}{at_least}")),
        section(_as_of(until_ms, now_ms), accessory=refresh, block_id=AS_OF),
        *filter_row(page, chosen or HomeFilter()),
    ]
    framed = partial(Frame, key=key, team=team, now_ms=now_ms)
    for group in page.groups:
        blocks += _heading(group, is_first=group is page.groups[0])
        for approval in group.approvals:
            why, is_alone = troubles.get(approval.id, ""), group.count == 1
            blocks += _row(framed(approval), why=why, names_agent=is_alone)
    is_known = is_complete and not looked_at
    blocks += _nothing(page, is_known=is_known)
    blocks += pager(page)
    if not is_complete:
        blocks.append(section(INCOMPLETE))
    if looked_at:
        blocks.append(section(template(CUT, count=looked_at)))
    blocks += _own(own, framed, ROWS - len(page.approvals))
    if page.groups or own:
        # Otherwise the buttons of the last row and these look like one row.
        blocks.append(divider())
    past = [
        button(Action.PAST_MINE, label("Decided by me")),
        button(Action.PAST, label("History")),
    ]
    blocks.append(actions(*past, block_id="past"))
    return home_view([*blocks, *manual], callback_id=View.HOME)


def _as_of(until_ms: int, now_ms: int) -> Template:
    """Describe when the tab was updated, and until when it updates itself."""
    if now_ms >= until_ms:
        return template("Updated {at}; press *Refresh* for news.", at=when(now_ms))
    # A fixed end, so that two renderings of one state differ only in the time.
    return template("Live until {until}", until=when(until_ms))


def _nothing(page: Page, *, is_known: bool) -> list[Block]:
    if page.matching:
        return []
    if page.calls:
        return [section(template("No waiting approval fits this filter."))]
    if is_known:
        return [section(template("Nothing waits for you. Enjoy the quiet."))]
    return []


def _heading(group: Group, *, is_first: bool) -> list[Block]:
    """Return the heading of the rows of one tool and agent."""
    above = [] if is_first else [divider()]
    if group.count == 1:
        return above
    name = untrusted(fit(f"{group.tool} · agent {group.agent}: {group.calls}", 150))
    count = len(group.together)
    if count <= 1:
        return [*above, section(name)]
    review = button(
        Action.REVIEW,
        label(f"Review {count} together"),
        # Only the ids of the calls: the form is made for the person who clicks.
        value=" ".join(group.together),
        style="primary",
        accessibility_label=label(f"Review {count} waiting calls together"),
    )
    # A name that survives a redraw of the tab, so that an earlier click counts.
    kind = sha256(f"{group.agent}\n{group.tool}".encode()).hexdigest()[:16]
    return [*above, section(name, accessory=review, block_id=f"group.{kind}")]


def _own(
    own: Sequence[Approval], framed: Callable[[Approval], Frame], room: int
) -> list[Block]:
    """List the approvals that this person may only end, in the remaining room.

    Args:
        own: the approvals.
        framed: returns the frame of an approval.
        room: number of rows left on the tab.
    """
    waiting = most_urgent(own)
    if not waiting:
        return []
    # At least one, even below a full list; otherwise people would not learn that they
    # can end their own requests.
    shown = waiting[: max(1, min(_MAX_OWN, room))]
    blocks = [
        header(label(f"Waiting for others: {sum(len(pending(o)) for o in waiting)}")),
        context(template(_ONLY_NO)),
    ]
    for approval in shown:
        blocks += _row(framed(approval), is_own=True)
    if len(waiting) > len(shown):
        more = len(waiting) - len(shown)
        rest = template("And {more} more cards.", more=more)
        blocks.append(context(rest))
    return blocks


def _row(
    frame: Frame, *, is_own: bool = False, why: str = "", names_agent: bool = True
) -> list[Block]:
    approval = frame.approval
    item = pending(approval)[0]
    # Without the row's number: a new call above it must not invalidate a click, but a
    # change of the call must.
    name = "own" if is_own else "home"
    is_decided = not is_own and decidable_in_row(approval) is not None
    act = f"Approve {item.act}".rstrip()
    approve = frame.button(item.index, Action.APPROVE_ROW, text=act)
    reasons = why_needed(item)
    whole = whole_call(item) if is_decided else ()
    # Without a description by the policy the title would repeat the arguments of the
    # line.
    has_title = bool(item.description) or not (whole and whole_line(item))
    titles = [fit(_title(approval), LINE)] if has_title else []
    small: list[Template | Plain] = [_facts(approval, item, why)]
    if reasons:
        small.append(label(f"Why: {fit(reasons, NOTE)}"))
    if not (is_own or is_decided):
        to = "Answer" if item.is_question else "Decide"
        small.append(label(f"{to} in Full details"))
    # The heading of a group names the agent of all its rows.
    if names_agent:
        small.append(untrusted(fit(approval.agent, NAME)))
    return [
        # In a box: it may contain the agent's words, and runs of text are trusted.
        rich_text(*map(box, [*titles, *whole])),
        context(*small, template("{id}", id=short_ref(approval.id))),
        actions(
            *([approve] if is_decided else []),
            frame.button(item.index, Action.VIEW_ALL),
            block_id=f"{name}.{approval.id}.{approval.rev}",
        ),
    ]


def _title(approval: Approval) -> str:
    """Return the pending call, or the number of pending calls and their tools."""
    waiting = pending(approval)
    if len(waiting) == 1:
        return call_title(waiting[0])
    return calls_title(waiting)


def _facts(approval: Approval, item: Item, why: str) -> Template:
    """Return facts of a row: size, votes, expiry, requester.

    A missing or outdated card comes first, because then only this tab works.
    """
    waiting = pending(approval)
    count = counted_votes(item)
    facts: list[Template] = []
    if why:
        facts.append(template("⚠️ *card missing or outdated:* {why}", why=reason(why)))
    if any(one.is_frozen for one in waiting):
        facts.append(template("🧊 *frozen*"))
    # The title has the number of several calls.
    if len(waiting) == 1 and (count.need > 1 or count.have):
        votes, more = approvals(item), still_needed(item)
        facts.append(template("{votes}{more}", votes=votes, more=more))
    said: LiteralString = "expires {at}"
    if len(ends(approval)) > 1:
        said = "the first expires {at}"
    facts.append(template(said, at=when(approval.expires_at_ms)))
    if approval.requester is not None:
        facts.append(template("requested by {who}", who=who(approval.requester)))
    return joined(" · ", facts)


MAX_PAST = 20
"""Maximum number of listed decisions."""


@dataclass(frozen=True, slots=True)
class Past:
    """Decisions that a person may read, and whether there may be more.

    Attributes:
        rows: the newest first.
        words: the search; "" for everything.
        is_mine: whether only this person's decisions were searched.
        is_cut: whether older ones were not searched.
        is_complete: False if Slack did not return all of the person's groups.
    """

    rows: Sequence[tuple[Event, Approval]]
    words: str = ""
    is_mine: bool = False
    is_cut: bool = False
    is_complete: bool = True


def matches(event: Event, approval: Approval, words: str) -> bool:
    """Return whether every word occurs in the visible parts of a decision.

    Hidden parts are not searched: a search must not reveal text that a policy hides.
    """
    item = item_of(event, approval)
    if item is None:
        return False
    names = [call_title(item), one_line(item.tool), approval.agent, approval.id]
    shown = " ".join([*names, all_text(item)])
    return all(word in shown.casefold() for word in words.casefold().split())


def past_blocks(past: Past) -> list[Block]:
    """Return a line for each decision, and notes about the list."""
    blocks = [_past_row(event, approval) for event, approval in past.rows]
    if not blocks:
        blocks.append(section(template("No decision was found that you may read.")))
    # Decisions that could not be searched may match.
    if past.is_cut:
        blocks.append(
            context(
                template(
                    "Only the newest decisions were checked. Search for words, a "
                    "tool, an agent or an id to narrow the list."
                )
            )
        )
    return [*blocks, *([] if past.is_complete else [context(INCOMPLETE)])]


def past_modal(past: Past) -> Block:
    """Return the modal with decisions and a search."""
    search = text_input(
        Input.SEARCH.value,
        initial=past.words[:LINE] or None,
        max_length=LINE,
        placeholder=label("Words of the call, its tool, its agent or its id"),
    )
    return modal(
        "Decided by you" if past.is_mine else "History",
        [
            input_block(
                label("Search"), search, block_id=Input.SEARCH.value, optional=True
            ),
            *past_blocks(past),
        ],
        callback_id=View.PAST_MINE if past.is_mine else View.PAST,
        submit="Search",
        close="Close",
    )


def _past_row(event: Event, approval: Approval) -> Block:
    item = item_of(event, approval)
    what = call_title(item) if item else one_line(event.tool)
    return context(untrusted(fit(what, LINE)), _said(event, item))


def _said(event: Event, item: Item | None) -> Template:
    """Return what was decided, by whom and when, and whether the effect is unknown."""
    state = state_after(event.name, event.reason)
    said = template("👍 one of several approvals")
    if state is not None:
        said = template(SIGNS[state] + " " + STATE_NAMES[state])
    by = template("")
    if event.actor:
        by = template(" by {who}", who=actor(event.actor))
    at, named = when(event.at_ms), short_ref(event.approval)
    parts = [template("{said}{by} {at}", said=said, by=by, at=at)]
    if item is not None and item.state is ItemState.IN_DOUBT:
        parts.append(template("❓ nobody knows yet whether it ran"))
    return joined(" · ", [*parts, template("{id}", id=named)])
