"""Answer ``/approvals show ID``: where one approval stands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import LiteralString

from keyturn.bot.blocks import Block, block_object, box, rich_text
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.needs import is_usual, needs
from keyturn.bot.cards.votes import counted_votes
from keyturn.bot.listener_context import ListenerContext, to_mrkdwn
from keyturn.bot.listeners import waiting
from keyturn.bot.listeners.read_access import access_to
from keyturn.bot.listeners.router import AckBody
from keyturn.bot.payload import Command
from keyturn.bot.text import fit
from keyturn.bot.text_types import code, slash_command, template
from keyturn.gateway.approvals.record import SHORT_CHARS, Approval, short_id
from keyturn.gateway.store.atomic_write import Loaded

OUTSIDER = template("Only members of this workspace can see waiting approvals.")
_NOT_FOUND = template(
    "There is no such approval among those that you can decide, that you asked for, or "
    "that have their card in this channel. Try again in the channel of the card."
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
# Typed by people, and echoed: nothing that Slack could read as markup matches.
_ID = re.compile(r"(?P<tenant>ap_[a-z0-9_-]{1,64}_)?(?P<digits>[0-9a-f]{1,32})")


async def show(ctx: ListenerContext, command: Command, rest: str) -> AckBody:
    """Show the approval with this id, or with these first characters of it.

    Raises:
        UserFacingError: says why not.
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
    loaded = await waiting.read_typed(ctx, typed, digits) if found else []
    lines, shown = await _shown(ctx, command, typed, loaded)
    return {"text": "\n".join(lines), "blocks": blocks_of(lines, shown)}


async def _shown(
    ctx: ListenerContext,
    command: Command,
    typed: str,
    found: list[Loaded],
) -> tuple[list[str], Sequence[Approval | None]]:
    """Return lines about those of these approvals that the person may read, and them.

    "Not found" is also the answer for the others, and they make no id ambiguous: the
    difference would tell which ids exist.
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
    """Return where an approval stands, with the id that ``show`` takes."""
    # What each call of its kind needs is said by the sentence.
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
    """Return lines as blocks, each with the calls of the approval at its place."""
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
