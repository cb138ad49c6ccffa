"""Show a person's queue on the App Home tab, what is urgent first."""

from __future__ import annotations

from collections.abc import Sequence

from bot.blocks import (
    Block,
    actions,
    button,
    code,
    context,
    header,
    label,
    section,
    template,
    untrusted,
)
from bot.blocks import (
    home as home_view,
)
from bot.cards.listing import summary
from bot.cards.refs import when
from bot.ids import Action, View, block_id, seal
from bot.text import fit
from gateway.approvals.record import Approval

MAX_ROWS = 20
"""How many approvals the tab lists; each takes three blocks of Slack's 100."""

_LINE = 200


def home(queue: Sequence[Approval], *, key: bytes, team: str, now_ms: int) -> Block:
    """Return the Home tab.

    Args:
        queue: the approvals that wait for this person, in any order.
        key: the bot's sealing key.
        team: the workspace.
        now_ms: the time, in Unix milliseconds; what is past its time is left out.
    """
    waiting = sorted(
        (one for one in queue if _waits(one) and now_ms < one.expires_at_ms),
        key=lambda one: _place(one, now_ms),
    )
    shown = waiting[:MAX_ROWS]
    blocks = [header(label(f"Waiting for you: {len(waiting)}"))]
    for place, approval in enumerate(shown):
        blocks += _row(approval, place, key=key, team=team)
    if not waiting:
        blocks.append(section(template("Nothing waits for you. Enjoy the quiet.")))
    if len(waiting) > len(shown):
        more = len(waiting) - len(shown)
        blocks.append(context(template("{more} more are not listed here.", more=more)))
    return home_view(blocks, callback_id=View.HOME)


def _place(approval: Approval, now_ms: int) -> tuple[int, int, int, str]:
    """Return where an approval stands in a queue: smaller comes first.

    Time decides before any model does: first what others were called to, then what is
    past half of its time, then the rest. Among equals the score of triage decides, and
    then age. No score is the lowest score, so that none puts a call further back.
    """
    is_late = 2 * (approval.expires_at_ms - now_ms) <= approval.ttl_ms
    hurry = 0 if approval.escalated_at_ms else 1 if is_late else 2
    waiting = (item.triage for item in approval.items if item.is_pending)
    score = max((one.score for one in waiting if one), default=0)
    return hurry, -score, approval.created_at_ms, approval.id


def _waits(approval: Approval) -> bool:
    return any(item.is_pending for item in approval.items)


def _row(approval: Approval, place: int, *, key: bytes, team: str) -> list[Block]:
    item = next(item for item in approval.items if item.is_pending)
    name = f"home.{place}"
    waiting = sum(one.is_pending for one in approval.items)
    facts = template(
        "{id} · {n} waiting · expires {at}",
        id=code(approval.id),
        n=waiting,
        at=when(approval.expires_at_ms),
    )
    view_all = button(
        Action.VIEW_ALL,
        label("View all"),
        value=seal(approval, item.index, key=key, team=team, purpose=Action.VIEW_ALL),
        accessibility_label=label(f"View approval {place + 1} of your queue"),
    )
    return [
        section(
            untrusted(fit(summary(item) or item.tool, _LINE)),
            block_id=block_id(approval, f"{name}.line"),
        ),
        context(facts, block_id=block_id(approval, f"{name}.facts")),
        actions(view_all, block_id=block_id(approval, f"{name}.actions")),
    ]
