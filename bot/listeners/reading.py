"""Find the approvals that a person can decide or read, and list them.

The bot does not know the members of a channel. A person who types a command in a
channel can read it, so the answer may name the approvals whose cards are there. From
other channels it names only approvals that the person may decide or requested. A seeded
defect is among the pending calls.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import LiteralString, TypeAlias

from keyturn.bot.blocks import Block, block_object, box, rich_text
from keyturn.bot.cards import home
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.states import card_sentence, counted_votes, is_usual, needs
from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listener_context import ListenerContext, to_mrkdwn
from keyturn.bot.listeners import targets
from keyturn.bot.listeners.router import AckBody, on_action, on_submit
from keyturn.bot.modals.form import text_of
from keyturn.bot.payload import Clicked, Command, Submitted
from keyturn.bot.text import NOTE, code, fit, slash_command, template
from keyturn.bot.web import newest_id
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.quorum import denial_reason, is_among, unresolved_roles
from keyturn.gateway.approvals.record import SHORT_CHARS, Approval, Item, short_id
from keyturn.gateway.protocol.records import Person, Verb
from keyturn.gateway.service.people.queue import MAX_OF_PERSON, MAX_QUEUE, PastDecisions
from keyturn.gateway.store.records.atomic_write import Loaded

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
_FROZEN = template("🧊 *Frozen*.")
# Typed by people, and echoed: it cannot match anything that Slack parses as markup.
_ID = re.compile(r"(?P<tenant>ap_[a-z0-9_-]{1,64}_)?(?P<digits>[0-9a-f]{1,32})")
_MAX_LISTED = 20
_NOTHING = template(
    "Nothing is waiting: no approval to decide, no request of yours, and no card in "
    "this channel."
)
_WITHIN_S = 1.5
"""Time limit for checking decisions; Slack waits three seconds for the answer."""


async def list_waiting(ctx: ListenerContext, command: Command, _: str) -> AckBody:
    """List the pending approvals that a member may read, the earliest deadline first.

    Raises:
        UserFacingError: explains a refusal.
    """
    queue, here = await queue_of(ctx, command.user), await waiting(ctx)
    found = {one.id: one for one in (*queue.mine, *queue.own)}
    for loaded in here:
        approval = loaded.approval
        if await _is_near(ctx, command.user, command.channel, approval):
            found.setdefault(approval.id, approval)
    listed, now_ms = [*found.values()], await ctx.now_ms()
    listed.sort(key=lambda one: one.expires_at_ms)
    approvals = [
        (await ctx.service.as_of_now(Loaded(one, now_ms))).approval
        for one in listed[:_MAX_LISTED]
    ]
    lines = [f"• {line(one)}" for one in approvals]
    looked_at = queue.looked_at or (len(here) if len(here) >= MAX_QUEUE else 0)
    if not lines and not looked_at:
        lines.append(to_mrkdwn(_NOTHING))
    if len(listed) > _MAX_LISTED:
        lines.append(f"… and {len(listed) - _MAX_LISTED} more.")
    if looked_at:
        lines.append(to_mrkdwn(template(home.CUT, count=looked_at)))
    if not queue.is_complete:
        lines.append(to_mrkdwn(home.INCOMPLETE))
    return {"text": "\n".join(lines), "blocks": blocks_of(lines, approvals)}


async def show(ctx: ListenerContext, command: Command, rest: str) -> AckBody:
    """Show the approval with this id, or with these first characters of it.

    Raises:
        UserFacingError: explains a refusal.
    """
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
    ctx: ListenerContext, command: Command, typed: str, found: list[Loaded]
) -> tuple[list[str], Sequence[Approval | None]]:
    """Return the readable ones of these approvals, with a line for each.

    "Not found" is also the answer for the others, and they make no id ambiguous: the
    difference would reveal which ids exist.
    """
    user, channel = command.user, command.channel
    access = [await reader_access(ctx, user, channel, one.approval) for one in found]
    given = [one for one, may in zip(found, access, strict=True) if may]
    if not given:
        return [to_mrkdwn(_NOT_SHOWN if None in access else _NOT_FOUND)], []
    now = [(await ctx.service.as_of_now(one)).approval for one in given]
    if len(now) == 1:
        return [line(now[0])], now
    several = template(_SEVERAL, n=len(now), typed=code(typed))
    lines = [f"• {to_mrkdwn(card_sentence(one))} `{one.id}`" for one in now]
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
    said = to_mrkdwn(card_sentence(approval))
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
            titles = "\n".join(fit(one, NOTE) for one in [*shown, *rest])
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
    found = await _past(
        ctx, command.user, words, is_mine=is_mine, channel=command.channel
    )
    text = f"Decisions: {len(found.rows)}."
    return {"text": text, "blocks": home.past_blocks(found)}


@on_action(Action.PAST, Action.PAST_MINE)
async def _open_past(ctx: ListenerContext, clicked: Clicked) -> None:
    if clicked.is_home and clicked.team == ctx.team:
        is_mine = clicked.action_id == Action.PAST_MINE
        found = await _past(ctx, clicked.user, "", is_mine=is_mine)
        await targets.open_modal(ctx, clicked, home.past_modal(found))


@on_submit(View.PAST, View.PAST_MINE)
async def _search(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    # A view of another workspace must not show data of this one.
    if submitted.team != ctx.team:
        return {}
    is_mine = submitted.callback_id == View.PAST_MINE
    words = text_of(submitted.values, Input.SEARCH)
    found = await _past(ctx, submitted.user, words, is_mine=is_mine)
    return {"response_action": "update", "view": home.past_modal(found)}


async def _past(
    ctx: ListenerContext, user: str, words: str, *, is_mine: bool, channel: str = ""
) -> home.Past:
    """Return the newest matching decisions that a person may read."""
    began = time.monotonic()
    rows: list[tuple[Event, Approval]] = []
    known: dict[str, Access] = {}
    is_cut = False
    past = PastDecisions(ctx.service.store, tenant=ctx.config.tenant)
    async for event, approval in past.newest():
        if len(rows) == home.MAX_PAST or time.monotonic() - began > _WITHIN_S:
            is_cut = True
            break
        # Only by the user id, like `Person.is_same`.
        is_theirs = event.actor.rpartition("/")[2] == user
        if (is_mine and not is_theirs) or not home.matches(event, approval, words):
            continue
        # A person who decided a call has seen it.
        if not is_theirs and approval.id not in known:
            known[approval.id] = await reader_access(ctx, user, channel, approval)
        if is_theirs or known[approval.id]:
            rows.append((event, approval))
    return home.Past(
        rows, words, is_mine, is_cut, is_complete=None not in known.values()
    )


Access: TypeAlias = bool | None
"""Whether a person may read or decide; None if Slack did not answer."""


async def reader_access(
    ctx: ListenerContext, user: str, channel: str, approval: Approval
) -> Access:
    """Return whether a member who reads in a channel may read an approval.

    ``channel`` is empty outside of channels. Slack reports the channel of a command,
    and only its readers can type in it.
    """
    if await _is_near(ctx, user, channel, approval):
        return True
    found = [
        access_of(approval, item, await ctx.reviewer_of(user, ctx.team, item))
        for item in approval.items
    ]
    return True if any(found) else None if None in found else False


async def _is_near(
    ctx: ListenerContext, user: str, channel: str, approval: Approval
) -> bool:
    """Return whether a person requested an approval, or reads its card's channel."""
    asked = approval.requester
    if asked and asked.is_same(Person(team=ctx.team, user=user)):
        return True
    return bool(channel) and await _channel_of(ctx, approval) == channel


def access_of(approval: Approval, item: Item, reviewer: Reviewer) -> Access:
    """Return whether a person may decide an item, by Slack's answers about them."""
    if denial_reason(approval, item, reviewer, Verb.APPROVE) is None:
        return True
    # UNKNOWN counts as open, not as yes: the person learns that the list may be
    # incomplete.
    is_colleague = reviewer.account in {AccountKind.MEMBER, AccountKind.UNKNOWN}
    is_unknown = is_colleague and unresolved_roles(reviewer, item.requirement.roles)
    return None if is_unknown else False


async def _channel_of(ctx: ListenerContext, approval: Approval) -> str:
    """Return the channel whose members read the card.

    An intruder in Redis can write another place of a card there, so the place counts
    only in the channel of the sealed record and in the fallback channel.
    """
    store, config = ctx.service.store, ctx.config
    moved = await store.moved_channels.known(ctx.keys)
    place = await store.cards.place(ctx.keys, approval.id)
    own, fallback = (
        newest_id(one, moved) for one in (approval.channel, config.fallback_channel)
    )
    is_diverted = place is not None and newest_id(place.channel, moved) == fallback
    return fallback if is_diverted else own


ENOUGH = 1000
"""Maximum number of approvals in a person's queue."""


@dataclass(frozen=True, slots=True)
class PersonQueue:
    """The approvals that one person can act on.

    Attributes:
        mine: those they may approve and have not.
        own: those they requested or changed, and may only reject.
        is_complete: False if Slack did not return all of their groups.
        calls: number of pending calls for them in each approval of `mine`, by its id.
        looked_at: number of approvals checked, if there may be more; else 0.
    """

    mine: tuple[Approval, ...]
    own: tuple[Approval, ...]
    is_complete: bool
    calls: Mapping[str, int]
    looked_at: int = 0


async def queue_of(
    ctx: ListenerContext,
    user: str,
    read: dict[str, Loaded] | None = None,
    *,
    is_glance: bool = False,
) -> PersonQueue:
    """Return the queue of a person of this workspace.

    Args:
        ctx: the listener's dependencies.
        user: the person.
        read: approvals that were read a moment ago, by id; this adds to it.
        is_glance: accept Slack's answers of the last minute; see `resolve`.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    # Once for all of them, because lookups share Slack's rate limits. Answers about
    # groups that an item does not name do not affect it.
    groups = await ctx.service.queue.groups()
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is not None:
        groups = groups.union(*map(ctx.service.usergroups, seeded.approval.items))
    reviewer = await ctx.resolve(user, ctx.team, groups=groups, is_glance=is_glance)
    mine: list[Approval] = []
    own: list[Approval] = []
    calls: dict[str, int] = {}
    is_complete, looked_at, is_cut = True, 0, False
    async for approval in _read_of_person(ctx, reviewer, seeded, read):
        is_cut = len(mine) + len(own) >= ENOUGH or looked_at >= MAX_OF_PERSON
        if is_cut:
            break
        looked_at += 1
        found = [waits_for(reviewer, approval, item) for item in approval.items]
        count = found.count(True)
        is_complete &= bool(count) or None not in found
        if count:
            mine.append(approval)
            calls[approval.id] = count
        elif _may_end(reviewer, approval):
            own.append(approval)
    return PersonQueue(
        tuple(mine), tuple(own), is_complete, calls, looked_at if is_cut else 0
    )


async def _read_of_person(
    ctx: ListenerContext,
    reviewer: Reviewer,
    seeded: Loaded | None,
    read: dict[str, Loaded] | None,
) -> AsyncGenerator[Approval]:
    """Yield the candidates for a person's queue, the seeded defect first."""
    if seeded is not None:
        yield seeded.approval
    people = (reviewer, *reviewer.stands_in_for)
    async for loaded in ctx.service.queue.concerning(people, read):
        yield loaded.approval


def waits_for(reviewer: Reviewer, approval: Approval, item: Item) -> Access:
    """Return whether a call needs this person's decision."""
    if not item.is_pending or _has_voted(reviewer, item):
        return False
    return access_of(approval, item, reviewer)


def _may_end(reviewer: Reviewer, approval: Approval) -> bool:
    """Return whether a person may reject an approval that they requested or changed.

    Other people who may reject may approve as well, or have done so.
    """
    for item in approval.items:
        took_part = [*approval.principals, *item.principals]
        took_part += [item.edit.by] if item.edit else []
        if not item.is_pending or Verb.REJECT not in item.allow:
            continue
        if not is_among(reviewer.person, took_part) or _has_voted(reviewer, item):
            continue
        if denial_reason(approval, item, reviewer, Verb.REJECT) is None:
            return True
    return False


def _has_voted(reviewer: Reviewer, item: Item) -> bool:
    # Only members of this workspace vote, so the user id alone names one.
    votes = (vote for vote in item.votes if vote.action_hash == item.action_hash)
    return any(vote.by.user == reviewer.user for vote in votes)


async def waiting(ctx: ListenerContext) -> list[Loaded]:
    """Return all pending approvals, the earliest deadline first.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    found = [one async for one in ctx.service.queue.waiting(MAX_QUEUE)]
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is None:
        return found
    every = sorted([*found, seeded], key=lambda one: one.approval.expires_at_ms)
    return every[:MAX_QUEUE]


async def read_typed(ctx: ListenerContext, typed: str, digits: str) -> list[Loaded]:
    """Return the approvals that a typed id may name; raises `StoreUnavailable`.

    Args:
        ctx: of the tenant.
        typed: an id, or the beginning of one, with or without the prefix before its
            random part.
        digits: its random part, at least a short id.
    """
    # A whole id names one approval; its first digits may name several.
    if (known := await ctx.service.read(typed)) is not None:
        return [known]
    short = digits[:SHORT_CHARS]
    found = await ctx.service.read_short(short)
    seeded = await ctx.service.seeded_defects.waiting()
    return [
        one
        for one in [*found, *([seeded] if seeded else [])]
        if one.approval.id.startswith(typed)
        or one.approval.id.rpartition("_")[2].startswith(typed)
    ]


async def read_each(ctx: ListenerContext, approval_ids: Iterable[str]) -> list[Loaded]:
    """Return the existing approvals among these; raises `StoreUnavailable`."""
    ids = [*approval_ids]
    found = await ctx.service.queue.read_each(ids)
    seeded = await ctx.service.seeded_defects.waiting()
    if seeded is not None and seeded.approval.id in ids:
        return [*found, seeded]
    return [*found]
