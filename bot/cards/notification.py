"""Render the card of calls that run without review (tier ``notify``).

The calls are rendered as on a card: in boxes, redacted, with hidden characters shown.
Buttons freeze a tool and report the calls. Only a call in doubt asks people to act: did
it take effect?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import LiteralString

from twokey.bot.blocks import Message, actions, box, context, rich_text, section
from twokey.bot.cards import buttons
from twokey.bot.cards.approval import metadata, reviewers
from twokey.bot.cards.call_rows import call_box, call_budget, title
from twokey.bot.cards.fallbacks import card_fallback
from twokey.bot.cards.frame import Frame, rows_of
from twokey.bot.cards.freeze_messages import actor_ref
from twokey.bot.cards.listing import is_misleading, listing_of
from twokey.bot.cards.needs import because, needs, why
from twokey.bot.cards.refs import asked_by, people, short_ref, when, who
from twokey.bot.cards.spot_check import spot_checks
from twokey.bot.cards.sql_warnings import sql_warnings
from twokey.bot.cards.states import (
    NOTHING_RAN,
    state_counts,
    what_ran,
)
from twokey.bot.ids import COMMAND, Action
from twokey.bot.objects import Block, confirm
from twokey.bot.text import excerpt, fit
from twokey.bot.text_types import (
    Template,
    Untrusted,
    joined,
    label,
    template,
    untrusted,
)
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.record import Approval, Item, Remark
from twokey.gateway.protocol.states import ItemState

_REMARKS = 3
_AGENT = 60
_TOOL = 40
_OTHERS = 400
_REMARK = 300
_NOTE = 80
_IN_THREAD = 1_500
_MANY = 2_000

_S = ItemState
_RUNS: LiteralString = "🔔 *Runs without review*"
_HEADS: dict[ItemState, LiteralString] = {
    _S.EXECUTED: "🔔 *Ran without review*",
    _S.FAILED: "🔔 *Ran without review, and failed*",
    _S.IN_DOUBT: "🔔 *Started without review. Did it run? Please check*",
    _S.LAPSED: "🔔 *Needed no review, and lapsed*",
}
# All states of an item that no person is asked about: it opens authorized, and every
# end of it is here. A missing one would show the plain message instead.
_ENDS: dict[ItemState, LiteralString] = {
    _S.AUTHORIZED: "🔄 Cleared {at}, not started yet.",
    _S.EXECUTING: "🔄 Started {at}, no result yet.",
    _S.EXECUTED: "✅ Done {at}.",
    _S.FAILED: "❌ Failed {at}.",
    _S.IN_DOUBT: (
        "❓ In doubt since {at}: the worker stopped while this ran. Its agent does not "
        "wait. Please check, then say below."
    ),
    _S.LAPSED: "⌛ Lapsed {at}. Nothing ran.",
}
_PAUSED: LiteralString = "⏸ Paused {at}: something inside it waits."

_RESTORED: LiteralString = (
    "❓ In doubt since {at}: its record was restored from an older copy, so it may "
    "have run. Please check, then say below."
)


def notification(frame: Frame) -> Message:
    """Return the message about calls that the policy let run, as they stand."""
    approval = frame.approval
    blocks = [
        section(_head(approval), block_id=frame.block_id("head")),
        _origin(frame),
        *reviewers(frame),
        *(block for item in rows_of(approval) for block in _row(frame, item)),
        *_others(frame),
        *_remarks(frame),
        *spot_checks(frame),
        *_buttons(frame),
    ]
    return Message(tuple(blocks), card_fallback(approval), metadata(approval))


def plain_notification(frame: Frame) -> Message:
    """Return a message about calls that Slack does not take as they should be."""
    approval = frame.approval
    sentence = template(
        "🔔 Calls ran without review that cannot be displayed: {id}.",
        id=short_ref(approval.id),
    )
    return Message((section(sentence),), card_fallback(approval), metadata(approval))


def report_line(event: Event) -> Message:
    """Return the line under a notification about a report."""
    blocks = [section(template("⚠️ Reported by {who}.", who=actor_ref(event.actor)))]
    if event.reason:
        text = excerpt(event.reason, _IN_THREAD).text
        blocks.append(rich_text(box(text), block_id=f"report:{event.seq}"))
    return Message(tuple(blocks), "Somebody reported a call that ran without review.")


def many_ran(events: Sequence[Event], *, command: str = COMMAND) -> Message:
    """Return the message about calls that came too fast for a message each.

    Args:
        events: those of their approvals.
        command: the slash command that the app has.
    """
    ran = [event for event in events if event.name is EventName.ITEM_AUTHORIZED]
    failed = sum(event.name is EventName.ITEM_FAILED for event in events)
    counts = Counter((event.tool, event.agent) for event in ran)
    lines = [
        f"{n} of {fit(tool, _NOTE)} ({fit(agent, _AGENT)})"
        for (tool, agent), n in counts.most_common()
    ]
    sentence = template(
        "🔔 *{n} more calls without review*, too many at once for a message each. "
        "{failed} of them failed so far.",
        n=len(ran),
        failed=failed,
    )
    text = excerpt("\n".join(lines), _MANY).text
    stop = label(f"{command} freeze tool NAME")
    return Message(
        (
            section(sentence),
            rich_text(box(text), block_id=f"many:{events[0].seq}"),
            context(template("To stop a tool, write:"), stop),
        ),
        f"{len(ran)} more calls ran without review.",
    )


def _head(approval: Approval) -> Template:
    if not approval.is_batch:
        return template(_HEADS.get(approval.items[0].state, _RUNS))
    return template("🔔 *{n} calls without review*", n=len(approval.items))


def _origin(frame: Frame) -> Block:
    approval = frame.approval
    return context(
        *asked_by(frame),
        *([label(state_counts(approval))] if approval.is_batch else []),
        template("{id}", id=short_ref(approval.id)),
        block_id=frame.block_id("origin"),
    )


def _row(frame: Frame, item: Item) -> list[Block]:
    budget = call_budget(frame.approval, item)
    shown = listing_of(item, budget=budget)
    sentences = [_standing(item, frame.approval)]
    if not shown.is_complete:
        part = template(
            "Showing {shown} of {total} characters.",
            shown=shown.shown,
            total=shown.total,
        )
        sentences.append(part)
    if is_misleading(item):
        sentences.append(template("⚠️ *Hidden or look-alike characters* are in it."))
    sentences += sql_warnings(item)
    ended = [label(fit(item.revoked.reason, _NOTE))] if item.revoked else []
    offered = buttons.decisions(frame, item, is_shown_whole=shown.is_complete)
    name = frame.block_id(f"{item.index}.actions")
    return [
        *title(frame, item),
        call_box(frame, item, shown),
        context(
            joined(" ", sentences),
            *_why_no_review(item),
            *ended,
            block_id=frame.block_id(f"{item.index}.state"),
        ),
        *([actions(*offered, block_id=name)] if offered else []),
    ]


def _why_no_review(item: Item) -> list[Template | Untrusted]:
    cover = item.cover
    if cover is not None:
        by = template(
            "Allowed by the standing approval {id}, given by",
            id=short_ref(cover.approval),
        )
        return [joined(" ", [by, people(cover.given_by)])]
    # That the policy lists the tool so says nothing: the headline does.
    text = why(item)
    reasons = [untrusted(fit(text, _NOTE))] if text else []
    return [because(needs(item), text), *reasons] if text else []


def _standing(item: Item, approval: Approval) -> Template:
    sentence = _ENDS[item.state]
    if item.is_restored and item.state is _S.IN_DOUBT:
        sentence = _RESTORED
    elif item.has_started and item.state is _S.AUTHORIZED:
        sentence = _PAUSED
    sentence = sentence.replace(NOTHING_RAN, what_ran(item))
    return template(sentence, at=when(item.changed_at_ms or approval.created_at_ms))


def _others(frame: Frame) -> list[Block]:
    listed = {item.index for item in rows_of(frame.approval)}
    others = [item for item in frame.approval.items if item.index not in listed]
    if not others:
        return []
    more = template("*And {n} more calls* that are not shown:", n=len(others))
    tools = Counter(item.tool for item in others)
    text = "\n".join(f"{n} of {fit(tool, _NOTE)}" for tool, n in tools.most_common())
    return [
        section(more, block_id=frame.block_id("others")),
        rich_text(
            box(excerpt(text, _OTHERS).text), block_id=frame.block_id("others.list")
        ),
        actions(
            buttons.view_call(frame, others[0]), block_id=frame.block_id("others.view")
        ),
    ]


def _remarks(frame: Frame) -> list[Block]:
    remarks = frame.approval.remarks
    blocks = [
        block
        for place, remark in enumerate(remarks[-_REMARKS:])
        for block in _remark(frame, place, remark)
    ]
    more = len(remarks) - _REMARKS
    if more > 0:
        sentence = template("Reports before that: {more}.", more=more)
        blocks.append(context(sentence, block_id=frame.block_id("remarks")))
    return blocks


def _remark(frame: Frame, place: int, remark: Remark) -> list[Block]:
    by = template(
        "⚠️ *Reported* by {who} {at}.", who=who(remark.by), at=when(remark.at_ms)
    )
    blocks = [section(by, block_id=frame.block_id(f"remark.{place}"))]
    if remark.text:
        text = box(excerpt(remark.text, _REMARK).text)
        blocks.append(rich_text(text, block_id=frame.block_id(f"remark.{place}.text")))
    return blocks


def _buttons(frame: Frame) -> list[Block]:
    """Return a button for each tool that is shown, and one to report the calls.

    Slack takes an action once in a block, so each tool has a block of its own.
    """
    shown = rows_of(frame.approval)
    # Reversed, so that the first call of each tool wins.
    first = {item.tool: item for item in reversed(shown)}
    tools = [item for item in shown if first[item.tool] is item]
    rows = [[_freeze(frame, item, is_only=len(tools) == 1)] for item in tools]
    # An approval has at least one item, so there is a row.
    rows[-1].append(
        frame.button(
            None,
            Action.REPORT,
            label("Report"),
            accessibility_label=label("Report that something is wrong with this"),
        )
    )
    return [
        actions(*row, block_id=frame.block_id(f"actions.{place}"))
        for place, row in enumerate(rows)
    ]


def _freeze(frame: Frame, item: Item, *, is_only: bool) -> Block:
    named = untrusted(f"Freeze {fit(item.tool, _TOOL)}")
    return frame.button(
        item.index,
        Action.FREEZE_TOOL,
        label("Freeze tool") if is_only else named,
        accessibility_label=label(f"Freeze the tool of call {item.index + 1}"),
        confirm=confirm(
            label("Freeze this tool?"),
            label("No agent can start it until somebody ends the freeze."),
            yes=label("Freeze"),
        ),
    )
