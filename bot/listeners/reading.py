"""Show a person the approvals that they may read: pending ones, and past decisions."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import LiteralString

from keyturn.bot.blocks import Block, block_object, box, rich_text
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.needs import counted_votes, is_usual, needs
from keyturn.bot.cards.past import MAX_PAST, Past, matches, past_blocks, past_modal
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, to_mrkdwn
from keyturn.bot.listeners.queues import (
    Access,
    access_to,
    concerning,
    read_typed,
    reader_access,
    waiting,
)
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.targets import open_modal
from keyturn.bot.modals.form import text_of
from keyturn.bot.payload import Clicked, Command, Submitted
from keyturn.bot.text import code, fit, slash_command, template
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.record import SHORT_CHARS, Approval, short_id
from keyturn.gateway.service.queue import MAX_QUEUE, PastDecisions
from keyturn.gateway.store.atomic_write import Loaded

OUTSIDER = template("Only members of this workspace can see waiting approvals.")
_NOT_FOUND = template(
    "There is no such approval that you can see here. Try again in the channel of the "
    "card."
)
_SHOW_WHICH: LiteralString = (
    "Write `{command} show` and the id of an approval: the {chars} characters that its "
    "card shows below its title, such as `145163ba`."
)
_TOO_SHORT: LiteralString = (
    "{typed} is too short to find one approval. Write all {chars} characters of the id."
)
_SEVERAL: LiteralString = (
    "{n} approvals have the id {typed}. Write the whole id of one of them:"
)
_NOT_SHOWN = template(
    "Slack did not say which user groups you are in, so I cannot show this approval. "
    "Please try again in a moment."
)
_MOST_TITLES = 5
_TITLE = 120
_FROZEN = template("🧊 *Frozen*.")
# Typed by people, and echoed: it cannot match anything that Slack parses as markup.
_ID = re.compile(r"(?P<tenant>ap_[a-z0-9_-]{1,64}_)?(?P<digits>[0-9a-f]{1,32})")
_MAX_LISTED = 20
_NOTHING = template(
    "Nothing is waiting: no approval to decide, no request of yours, and no card in "
    "this channel."
)
_MAYBE_MORE = template(
    "This list may be incomplete: Slack did not say which user groups you are in. "
    "Please try again in a moment."
)
_CUT: LiteralString = (
    "This list may be incomplete: only the {count} approvals that expire first were "
    "checked."
)
_CUT_HERE: LiteralString = (
    "Of the cards in this channel, only the {count} that expire first were checked."
)
_WITHIN_S = 1.5
"""Time limit for checking decisions; Slack waits three seconds for the answer."""


def register(router: Router) -> None:
    """Answer the buttons of past decisions on the Home tab, and their search."""
    router.on_action(Action.PAST, _open_past)
    router.on_action(Action.PAST_MINE, _open_past)
    router.on_submit(View.PAST, _search)
    router.on_submit(View.PAST_MINE, _search)


async def list_waiting(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """List the pending approvals that a member may read, the earliest deadline first.

    Raises:
        UserFacingError: explains a refusal.
    """
    await ctx.require_member(command.who, OUTSIDER)
    found: dict[str, Loaded] = {}
    is_unknown = False
    mine, looked_at = await concerning(ctx, command.user)
    here = await waiting(ctx)
    for loaded in {one.approval.id: one for one in (*mine, *here)}.values():
        access = await access_to(ctx, command, loaded.approval)
        is_unknown = is_unknown or (access.is_unknown and not access.is_given)
        if access.is_given:
            found[loaded.approval.id] = loaded
    listed = sorted(found.values(), key=lambda one: one.approval.expires_at_ms)
    shown = [await ctx.service.as_of_now(one) for one in listed[:_MAX_LISTED]]
    approvals = [one.approval for one in shown]
    lines = [f"• {line(one)}" for one in approvals]
    is_cut = len(here) >= MAX_QUEUE
    if not lines and not (is_cut or looked_at):
        lines.append(to_mrkdwn(_NOTHING))
    if len(listed) > _MAX_LISTED:
        lines.append(f"… and {len(listed) - _MAX_LISTED} more.")
    if looked_at:
        lines.append(to_mrkdwn(template(_CUT, count=looked_at)))
    elif is_cut:
        lines.append(to_mrkdwn(template(_CUT_HERE, count=len(here))))
    if is_unknown:
        lines.append(to_mrkdwn(_MAYBE_MORE))
    return {"text": "\n".join(lines), "blocks": blocks_of(lines, approvals)}


async def show(ctx: ListenerContext, command: Command, rest: str) -> AckBody:
    """Show the approval with this id, or with these first characters of it.

    Raises:
        UserFacingError: explains a refusal.
    """
    await ctx.require_member(command.who, OUTSIDER)
    typed = rest.strip("` ").lower()
    which = slash_command(ctx.config.command)
    if not typed:
        asked = template(_SHOW_WHICH, command=which, chars=SHORT_CHARS)
        return {"text": to_mrkdwn(asked)}
    found = _ID.fullmatch(typed)
    if found and len(found["digits"]) < SHORT_CHARS:
        short = template(_TOO_SHORT, typed=code(typed), chars=SHORT_CHARS)
        return {"text": to_mrkdwn(short)}
    digits = found["digits"] if found else ""
    loaded = await read_typed(ctx, typed, digits) if found else []
    lines, shown = await _shown(ctx, command, typed, loaded)
    return {"text": "\n".join(lines), "blocks": blocks_of(lines, shown)}


async def _shown(
    ctx: ListenerContext,
    command: Command,
    typed: str,
    found: list[Loaded],
) -> tuple[list[str], Sequence[Approval | None]]:
    """Return the readable ones of these approvals, with a line for each.

    "Not found" is also the answer for the others, and they make no id ambiguous: the
    difference would reveal which ids exist.
    """
    access = [await access_to(ctx, command, one.approval) for one in found]
    given = [one for one, may in zip(found, access, strict=True) if may.is_given]
    if not given:
        is_unknown = any(may.is_unknown for may in access)
        return [to_mrkdwn(_NOT_SHOWN if is_unknown else _NOT_FOUND)], []
    now = [(await ctx.service.as_of_now(one)).approval for one in given]
    if len(now) == 1:
        return [line(now[0])], now
    several = template(_SEVERAL, n=len(now), typed=code(typed))
    lines = [f"• {card_fallback(one, is_local=True)} `{one.id}`" for one in now]
    return [to_mrkdwn(several), *lines], [None, *now]


def line(approval: Approval) -> str:
    """Return an approval's state, with the id that ``show`` takes."""
    # The sentence already has the usual requirement of each call.
    more = [item for item in approval.items if item.is_pending and not is_usual(item)]
    most = max(
        more, key=lambda item: (item.tier.rank, counted_votes(item).need), default=None
    )
    needed = f" {to_mrkdwn(needs(most))}." if most is not None else ""
    is_frozen = any(item.is_pending and item.is_frozen for item in approval.items)
    frozen = f" {to_mrkdwn(_FROZEN)}" if is_frozen else ""
    said = card_fallback(approval, is_local=True)
    return f"{said}{needed}{frozen} `{short_id(approval.id)}`"


def blocks_of(
    lines: Sequence[str], approvals: Sequence[Approval | None]
) -> list[Block]:
    """Return lines as blocks, each with the calls of its approval."""
    blocks: list[Block] = []
    for line_of, approval in zip_longest(lines, approvals):
        text: Block = {"type": "mrkdwn", "text": line_of}
        blocks.append(block_object("section", text=text))
        if approval is not None:
            shown = [call_title(item) for item in approval.items[:_MOST_TITLES]]
            more = len(approval.items) - len(shown)
            rest = [f"… and {more} more"] if more > 0 else []
            titles = "\n".join(fit(one, _TITLE) for one in [*shown, *rest])
            # Never as markup: an agent chose these words.
            blocks.append(rich_text(box(titles)))
    return blocks


async def past_command(
    ctx: ListenerContext, command: Command, words: str, *, is_mine: bool
) -> AckBody:
    """Answer `/approvals history` and `/approvals mine` in a channel, to a member.

    Raises:
        UserFacingError: explains a refusal.
    """
    await ctx.require_member(command.who, OUTSIDER)
    found = await _past(
        ctx, command.user, words, is_mine=is_mine, channel=command.channel
    )
    text = f"Decisions: {len(found.rows)}."
    return {"text": text, "blocks": past_blocks(found)}


async def _open_past(ctx: ListenerContext, clicked: Clicked) -> None:
    action = clicked.action
    if action.is_home and action.team == ctx.team:
        is_mine = action.action_id == Action.PAST_MINE
        found = await _past(ctx, action.user, "", is_mine=is_mine)
        await open_modal(ctx, clicked, past_modal(found))


async def _search(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    view = submitted.view
    # A view of another workspace must not show data of this one.
    if view.team != ctx.team:
        return {}
    is_mine = view.callback_id == View.PAST_MINE
    words = text_of(view.values, Input.SEARCH)
    found = await _past(ctx, view.user, words, is_mine=is_mine)
    return {"response_action": "update", "view": past_modal(found)}


async def _past(
    ctx: ListenerContext, user: str, words: str, *, is_mine: bool, channel: str = ""
) -> Past:
    """Return the newest matching decisions that a person may read."""
    began = time.monotonic()
    rows: list[tuple[Event, Approval]] = []
    known: dict[str, Access] = {}
    is_cut = False
    past = PastDecisions(ctx.service.store, tenant=ctx.config.tenant)
    async for event, approval in past.newest():
        if len(rows) == MAX_PAST or time.monotonic() - began > _WITHIN_S:
            is_cut = True
            break
        # Only by the user id, like `Person.is_same`.
        is_theirs = event.actor.rpartition("/")[2] == user
        if (is_mine and not is_theirs) or not matches(event, approval, words):
            continue
        # A person who decided a call has seen it.
        if not is_theirs and approval.id not in known:
            known[approval.id] = await reader_access(ctx, user, channel, approval)
        if is_theirs or known[approval.id].is_given:
            rows.append((event, approval))
    is_unknown = any(one.is_unknown and not one.is_given for one in known.values())
    return Past(
        rows,
        words,
        is_mine,
        is_cut,
        is_complete=not is_unknown,
    )
