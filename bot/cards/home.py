"""Show a person's queue on the App Home tab, oldest first."""

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
        key=lambda one: (one.created_at_ms, one.id),
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
