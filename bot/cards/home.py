"""Render the App Home tab: a person's queue in groups, most urgent first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import LiteralString

from twokey.bot.blocks import (
    actions,
    box,
    button,
    context,
    divider,
    header,
    rich_text,
    section,
)
from twokey.bot.blocks import home as home_view
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.home_filter import filter_row, pager
from twokey.bot.cards.listing import call_title, one_line
from twokey.bot.cards.needs import why as why_needed
from twokey.bot.cards.queue import (
    ROWS,
    Group,
    HomeFilter,
    Page,
    decidable_in_row,
    most_urgent,
    pending,
    whole_call,
    whole_line,
    why_opened,
)
from twokey.bot.cards.refs import short_ref, when, who
from twokey.bot.cards.undelivered import reason
from twokey.bot.cards.votes import approvals, counted_votes, still_needed
from twokey.bot.ids import Action, View
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import (
    Label,
    Template,
    Untrusted,
    joined,
    label,
    template,
    untrusted,
)
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.timing import ends

AS_OF = "as_of"
"""``block_id`` of the line that names the time: it alone is other each time."""

_INCOMPLETE = template(
    "There may be more: Slack did not say which user groups you are in. Please open "
    "this tab again in a moment."
)
_CUT: LiteralString = (
    "There may be more for you: only the {count} that end soonest were looked at."
)
_ONLY_NO: LiteralString = (
    "You asked for these or changed them, so others approve them. You can still "
    "reject them: press *Full details*."
)
_NO_TROUBLE: Mapping[str, str] = {}
_MAX_OWN = 3
"""How many of a person's own calls stand below a full page."""
_MAX_LINE_CHARS = 200
_MAX_AGENT_CHARS = 60
_MAX_REASON_CHARS = 120


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
    left_out: Label | None = None,
    own: Sequence[Approval] = (),
    troubles: Mapping[str, str] = _NO_TROUBLE,
    manual: Sequence[Block] = (),
) -> Block:
    """Return the Home tab.

    Args:
        page: what waits for this person, as much of it as is listed.
        key: the bot's sealing key.
        team: the workspace.
        now_ms: the time, in Unix milliseconds.
        chosen: the person's filter.
        until_ms: until when the tab shows changes by itself.
        is_complete: False when Slack left open what the person may decide.
        looked_at: how many were looked at, when there may be more; else 0.
        left_out: what is said of shards of the store that do not answer.
        own: those that this person asked for or changed, and may only end.
        troubles: approval id to Slack's word for why its card is missing or old.
        manual: what stands at the end.
    """
    at_least = " or more" if looked_at or left_out else ""
    blocks = [
        header(label(f"Waiting for you: {page.calls}{at_least}")),
        section(_as_of(until_ms, now_ms), accessory=_refresh(), block_id=AS_OF),
        *filter_row(page, chosen or HomeFilter()),
    ]
    row = 0
    for group in page.groups:
        blocks += _heading(group, is_first=group is page.groups[0])
        for approval in group.approvals:
            why = troubles.get(approval.id, "")
            frame = Frame(approval, key, team, now_ms)
            is_alone = group.count == 1
            blocks += _row(frame, row, why=why, names_agent=is_alone)
            row += 1
    is_known = is_complete and not (looked_at or left_out)
    blocks += _nothing(page, is_known=is_known)
    blocks += pager(page)
    if not is_complete:
        blocks.append(section(_INCOMPLETE))
    if looked_at:
        blocks.append(section(template(_CUT, count=looked_at)))
    if left_out:
        blocks.append(section(left_out))
    blocks += _own(own, row, key=key, team=team, now_ms=now_ms)
    if page.groups or own:
        # Else the buttons of the last row and these look like one row.
        blocks.append(divider())
    blocks.append(_past())
    return home_view([*blocks, *manual], callback_id=View.HOME)


def _as_of(until_ms: int, now_ms: int) -> Template:
    """Say of when the tab is, and until when it shows changes by itself."""
    if now_ms >= until_ms:
        return template("As of {at}.", at=when(now_ms))
    # A fixed end, so that two renderings of one state are the same but for the time.
    return template(
        "As of {at}. Changes appear here within seconds until {until}.",
        at=when(now_ms),
        until=when(until_ms),
    )


def _refresh() -> Block:
    # It shows a person their own tab again, so its value needs no signature.
    return button(
        Action.REFRESH, label("Refresh"), accessibility_label=label("Refresh this list")
    )


def _past() -> Block:
    return actions(
        button(Action.PAST_MINE, label("Decided by me")),
        button(Action.PAST, label("History")),
        block_id="past",
    )


def _nothing(page: Page, *, is_known: bool) -> list[Block]:
    if page.matching:
        return []
    if page.calls:
        return [section(template("Nothing that waits for you fits this filter."))]
    if is_known:
        return [section(template("Nothing waits for you. Enjoy the quiet."))]
    return []


def _heading(group: Group, *, is_first: bool) -> list[Block]:
    """Return what stands above the rows of one tool and agent."""
    above = [] if is_first else [divider()]
    if group.count == 1:
        return above
    name = untrusted(fit(f"{group.tool} · {group.agent}: {group.calls}", 150))
    count = len(group.together)
    if count <= 1:
        return [*above, section(name)]
    review = button(
        Action.REVIEW,
        label(f"Review {count} together"),
        # Only which calls it is about: the form is made for who may decide them.
        value=" ".join(group.together),
        style="primary",
        accessibility_label=label(f"Review {count} waiting calls together"),
    )
    # A name that survives a redraw of the tab: a click on the button before counts.
    kind = sha256(f"{group.agent}\n{group.tool}".encode()).hexdigest()[:16]
    return [*above, section(name, accessory=review, block_id=f"group.{kind}")]


def _own(
    own: Sequence[Approval], above: int, *, key: bytes, team: str, now_ms: int
) -> list[Block]:
    """List what others decide and this person may only end, in the room that is left.

    Args:
        own: the approvals.
        above: how many rows stand above.
        key: the bot's sealing key.
        team: the workspace.
        now_ms: the time.
    """
    waiting = most_urgent(own)
    if not waiting:
        return []
    # At least one, however full the list above is: else nobody would learn that they
    # can end what they asked for.
    shown = waiting[: max(1, min(_MAX_OWN, ROWS - above))]
    blocks = [
        header(label(f"Waiting for others: {sum(len(pending(o)) for o in waiting)}")),
        context(template(_ONLY_NO)),
    ]
    for index, approval in enumerate(shown):
        blocks += _row(Frame(approval, key, team, now_ms), index, is_own=True)
    if len(waiting) > len(shown):
        more = len(waiting) - len(shown)
        rest = template("{more} more cards are not listed here.", more=more)
        blocks.append(context(rest))
    return blocks


def _row(
    frame: Frame,
    index: int,
    *,
    is_own: bool = False,
    why: str = "",
    names_agent: bool = True,
) -> list[Block]:
    approval = frame.approval
    item = pending(approval)[0]
    # Without the row's number: a call that comes above it must not undo a click.
    name = "own" if is_own else "home"
    decided = None if is_own else decidable_in_row(approval)
    opened = "" if is_own else why_opened(approval)
    whole = whole_call(item) if decided else ()
    # Without words of the policy the title has the same arguments as the one line.
    has_title = bool(item.description) or not (whole and whole_line(item))
    titles = [fit(_title(approval), _MAX_LINE_CHARS)] if has_title else []
    return [
        rich_text(
            # In a box: the act holds words of the agent, and runs of text are ours.
            *map(box, [*titles, *whole]),
            block_id=frame.block_id(f"{name}.line"),
        ),
        context(
            _facts(approval, item, why),
            *_reasons(item),
            *_why_opened(item, opened),
            # The heading of a group names the agent of all its rows.
            *([_agent(approval)] if names_agent else []),
            template("{id}", id=short_ref(approval.id)),
            block_id=frame.block_id(f"{name}.facts"),
        ),
        actions(
            *_buttons(frame, item, index, is_own=is_own, is_decided=bool(decided)),
            block_id=frame.block_id(f"{name}.do"),
        ),
    ]


def _title(approval: Approval) -> str:
    """Return what waits: the one call, or how many of which tools."""
    waiting = pending(approval)
    if len(waiting) == 1:
        return call_title(waiting[0])
    tools = sorted({one_line(item.tool) for item in waiting})
    return f"{len(waiting)} calls: {', '.join(tools)}"


def _buttons(
    frame: Frame, item: Item, index: int, *, is_own: bool, is_decided: bool
) -> list[Block]:
    listed = "those that wait for others" if is_own else "your queue"
    view_all = frame.button(
        item.index,
        Action.VIEW_ALL,
        label("Full details"),
        accessibility_label=label(f"View approval {index + 1} of {listed}"),
    )
    if not is_decided:
        return [view_all]
    approve = frame.button(
        item.index,
        Action.APPROVE_ROW,
        label("Approve"),
        accessibility_label=label(f"Approve {index + 1} of {listed}, as shown"),
    )
    return [approve, view_all]


def _agent(approval: Approval) -> Untrusted:
    return untrusted(fit(approval.agent, _MAX_AGENT_CHARS))


def _reasons(item: Item) -> list[Label]:
    reasons = why_needed(item)
    return [label(fit(reasons, _MAX_REASON_CHARS))] if reasons else []


def _why_opened(item: Item, why: LiteralString) -> list[Template]:
    if not why:
        return []
    if item.is_question:
        return [template("*Open it to answer*")]
    return [template("*Open it to decide:* " + why)]


def _facts(approval: Approval, item: Item, why: str) -> Template:
    """Return facts of a row: size, votes, expiry, requester.

    A missing or outdated card comes first: only this tab can be used then.
    """
    waiting = len(pending(approval))
    count = counted_votes(item)
    facts: list[Template] = []
    if why:
        facts.append(
            joined(" ", [template("⚠️ *no card, or an old one:*"), reason(why)])
        )
    if any(one.is_frozen for one in pending(approval)):
        facts.append(template("🧊 *frozen*"))
    if waiting > 1:
        facts.append(template("*{n} calls wait*", n=waiting))
    elif count.need > 1 or count.have:
        facts.append(joined("", [approvals(item), still_needed(item)]))
    said: LiteralString = "expires {at}"
    if len(ends(approval)) > 1:
        said = "the first expires {at}"
    facts.append(template(said, at=when(approval.expires_at_ms)))
    if approval.requester is None:
        facts.append(template("asked by the agent"))
    else:
        by = who(approval.requester)
        # It is the agent that asks a question.
        said = "asked for {who}" if item.is_question else "asked by {who}"
        facts.append(template(said, who=by))
    return joined(" · ", facts)
