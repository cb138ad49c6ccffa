"""Render the App Home tab: a person's queue, most urgent first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import LiteralString

from twokey.bot.blocks import button, context, divider, header, section
from twokey.bot.blocks import home as home_view
from twokey.bot.cards.frame import Frame
from twokey.bot.cards.listing import act
from twokey.bot.cards.refs import when, who
from twokey.bot.cards.undelivered import reason
from twokey.bot.cards.votes import approvals, counted_votes, still_needed
from twokey.bot.ids import Action, View
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import Template, code, joined, label, template, untrusted
from twokey.gateway.approvals.record import Approval, Item

MAX_ROWS = 20
"""How many approvals the tab lists; each takes three blocks of Slack's 100."""

_INCOMPLETE = template(
    "There may be more: Slack did not say which user groups you are in. Please open "
    "this tab again in a moment."
)
_CUT: LiteralString = (
    "There may be more for you: only the {count} that end soonest were looked at."
)
_ONLY_NO: LiteralString = (
    "You asked for these or changed them, so others approve them. You can still "
    "reject them: press *View all*."
)
# It shows a person their own tab again, so its value needs no signature.
_REFRESH = button(
    Action.REFRESH, label("Refresh"), accessibility_label=label("Refresh this list")
)
_NO_TROUBLE: Mapping[str, str] = {}
_MAX_LINE_CHARS = 200
_MAX_AGENT_CHARS = 60


def home(  # noqa: PLR0913 - facts of one tab, each by name
    queue: Sequence[Approval],
    *,
    key: bytes,
    team: str,
    now_ms: int,
    is_complete: bool = True,
    others: int = 0,
    looked_at: int = 0,
    own: Sequence[Approval] = (),
    troubles: Mapping[str, str] = _NO_TROUBLE,
) -> Block:
    """Return the Home tab.

    Args:
        queue: the approvals that wait for this person, in any order.
        key: the bot's sealing key.
        team: the workspace.
        now_ms: the time, in Unix milliseconds; what is past its time is left out.
        is_complete: False when Slack left open what the person may decide.
        others: how many less urgent ones wait for this person besides.
        looked_at: how many were looked at, when there may be more; else 0.
        own: those that this person asked for or changed, and may only end.
        troubles: approval id to Slack's word for why its card is missing or old.
    """
    waiting = most_urgent(queue, now_ms)
    shown = waiting[:MAX_ROWS]
    count = len(waiting) + others
    at_least = " or more" if looked_at else ""
    blocks = [
        header(label(f"Waiting for you: {count}{at_least}")),
        section(template("As of {at}.", at=when(now_ms)), accessory=_REFRESH),
    ]
    for index, approval in enumerate(shown):
        why = troubles.get(approval.id, "")
        blocks += _row(Frame(approval, key, team, now_ms), index, why=why)
    if not is_complete:
        blocks.append(section(_INCOMPLETE))
    elif not waiting and not looked_at:
        blocks.append(section(template("Nothing waits for you. Enjoy the quiet.")))
    if count > len(shown):
        more = count - len(shown)
        blocks.append(context(template("{more} more are not listed here.", more=more)))
    if looked_at:
        blocks.append(section(template(_CUT, count=looked_at)))
    blocks += _own(own, len(shown), key=key, team=team, now_ms=now_ms)
    return home_view(blocks, callback_id=View.HOME)


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
    waiting = most_urgent(own, now_ms)
    if not waiting:
        return []
    # At least one, however full the list above is: else nobody would learn that they
    # can end what they asked for.
    shown = waiting[: max(1, MAX_ROWS - above)]
    blocks = [
        header(label(f"Waiting for others: {len(waiting)}")),
        context(template(_ONLY_NO)),
    ]
    for index, approval in enumerate(shown):
        blocks += _row(Frame(approval, key, team, now_ms), index, is_own=True)
    if len(waiting) > len(shown):
        more = len(waiting) - len(shown)
        blocks.append(context(template("{more} more are not listed here.", more=more)))
    return blocks


def most_urgent(queue: Sequence[Approval], now_ms: int) -> list[Approval]:
    """Return what of a queue waits still, the most urgent first."""
    waiting = (one for one in queue if _waits(one) and now_ms < one.expires_at_ms)
    return sorted(waiting, key=lambda one: _sort_key(one, now_ms))


def _sort_key(approval: Approval, now_ms: int) -> tuple[int, int, int, str]:
    """Return the sort key of an approval in a queue: smaller comes first.

    Time decides before any model does: first what was escalated to others, then what is
    past half of its time, then the rest. Among equals the score of triage decides, and
    then age. No score is the lowest score, so that none puts a call further back.
    """
    is_late = 2 * (approval.expires_at_ms - now_ms) <= approval.ttl_ms
    # The score of a model comes after time: a model that an attacker can talk to must
    # not be able to push a call out of sight.
    hurry = 0 if approval.escalated_at_ms else 1 if is_late else 2
    waiting = (item.triage for item in approval.items if item.is_pending)
    score = max((one.score for one in waiting if one), default=0)
    return hurry, -score, approval.created_at_ms, approval.id


def _waits(approval: Approval) -> bool:
    return any(item.is_pending for item in approval.items)


def _row(
    frame: Frame, index: int, *, is_own: bool = False, why: str = ""
) -> list[Block]:
    approval = frame.approval
    item = next(item for item in approval.items if item.is_pending)
    name = f"{'own' if is_own else 'home'}.{index}"
    listed = "those that wait for others" if is_own else "your queue"
    view_all = button(
        Action.VIEW_ALL,
        label("View all"),
        value=frame.value(item.index, Action.VIEW_ALL),
        accessibility_label=label(f"View approval {index + 1} of {listed}"),
    )
    line = [divider(block_id=frame.block_id(f"{name}.before"))] if index else []
    return [
        *line,
        section(
            untrusted(fit(act(item), _MAX_LINE_CHARS)),
            accessory=view_all,
            block_id=frame.block_id(f"{name}.line"),
        ),
        context(
            _facts(approval, item, why),
            untrusted(fit(approval.agent, _MAX_AGENT_CHARS)),
            template("{id}", id=code(approval.id)),
            block_id=frame.block_id(f"{name}.facts"),
        ),
    ]


def _facts(approval: Approval, item: Item, why: str) -> Template:
    """Return facts of a row: size, votes, expiry, requester.

    A missing or outdated card comes first: only this tab can be used then.
    """
    waiting = sum(one.is_pending for one in approval.items)
    count = counted_votes(item)
    facts: list[Template] = []
    if why:
        facts.append(
            joined(" ", [template("⚠️ *no card, or an old one:*"), reason(why)])
        )
    if waiting > 1:
        facts.append(template("*{n} calls wait*", n=waiting))
    elif count.need > 1 or count.have:
        facts.append(joined("", [approvals(item), still_needed(item)]))
    facts.append(template("expires {at}", at=when(approval.expires_at_ms)))
    if approval.requester is None:
        facts.append(template("asked by the agent"))
    else:
        by = who(approval.requester)
        facts.append(template("asked by {who} through the agent", who=by))
    return joined(" · ", facts)
