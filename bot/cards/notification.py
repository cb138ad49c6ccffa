"""Render the card of calls that run without review (tier ``notify``).

The calls are rendered as on a card: in boxes, redacted, with visible marks for hidden
characters. Buttons freeze a tool and report the calls. People need to act only on a
call in doubt: did it take effect?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    actions,
    box,
    confirm,
    context,
    rich_text,
    section,
)
from keyturn.bot.cards import buttons
from keyturn.bot.cards.approval import metadata, reviewers
from keyturn.bot.cards.call_rows import call_box, listings, title
from keyturn.bot.cards.channel_messages import actor_ref
from keyturn.bot.cards.fallbacks import card_fallback
from keyturn.bot.cards.frame import Frame, rows_of
from keyturn.bot.cards.listing import Listing, is_misleading
from keyturn.bot.cards.needs import because, needs, why
from keyturn.bot.cards.quality_checks import spot_checks
from keyturn.bot.cards.refs import asked_by, people, short_ref, when, who
from keyturn.bot.cards.sql import sql_warnings
from keyturn.bot.cards.states import (
    NOTHING_RAN,
    state_counts,
    what_ran,
)
from keyturn.bot.ids import COMMAND, Action
from keyturn.bot.text import (
    Template,
    Untrusted,
    excerpt,
    fit,
    joined,
    label,
    template,
    untrusted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item, Remark
from keyturn.gateway.protocol.records import ItemState

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
    _S.WITHDRAWN: "🔔 *Needed no review, and was withdrawn*",
}
# All states of an item without review: it opens authorized, and every end of it is
# here. A missing one would show the plain message instead.
_ENDS: dict[ItemState, LiteralString] = {
    _S.AUTHORIZED: "🔄 Cleared {at}, not started yet.",
    _S.EXECUTING: "🔄 Started {at}, no result yet.",
    _S.EXECUTED: "✅ Done {at}.",
    _S.FAILED: "❌ Failed {at}.",
    _S.IN_DOUBT: (
        "❓ We don't know whether this ran: the worker stopped in the middle {at}. "
        "The agent does not wait. Please check, then choose."
    ),
    _S.LAPSED: "⌛ Lapsed {at}. Nothing ran.",
    _S.WITHDRAWN: "↩ Withdrawn {at}. Nothing ran.",
}
_PAUSED: LiteralString = "⏸ Paused {at}: something inside it waits."

_RESTORED: LiteralString = (
    "❓ We don't know whether this ran: its record was restored from an older copy "
    "{at}. Please check, then choose."
)


def notification(frame: Frame) -> Message:
    """Return the current message about calls that run without review."""
    approval = frame.approval
    blocks = [
        section(_head(approval)),
        _origin(frame),
        *reviewers(frame),
        *(
            block
            for index, shown in listings(approval).items()
            for block in _row(frame, approval.items[index], shown)
        ),
        *_others(frame),
        *_remarks(frame),
        *spot_checks(frame),
        *_buttons(frame),
    ]
    return Message(tuple(blocks), card_fallback(approval), metadata(approval))


def plain_notification(frame: Frame) -> Message:
    """Return the message about calls whose full message Slack refuses."""
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
        blocks.append(rich_text(box(text)))
    return Message(tuple(blocks), "Someone reported a call that ran without review.")


def many_ran(events: Sequence[Event], *, command: str = COMMAND) -> Message:
    """Return the message about calls that came too fast for separate messages.

    Args:
        events: those of their approvals.
        command: the app's slash command.
    """
    ran = [event for event in events if event.name is EventName.ITEM_AUTHORIZED]
    failed = sum(event.name is EventName.ITEM_FAILED for event in events)
    counts = Counter((event.tool, event.agent) for event in ran)
    lines = [
        f"{n} of {fit(tool, _NOTE)} ({fit(agent, _AGENT)})"
        for (tool, agent), n in counts.most_common()
    ]
    sentence = template(
        "🔔 *{n} more without review*, too many for a message each. {failed} failed "
        "so far.",
        n=len(ran),
        failed=failed,
    )
    text = excerpt("\n".join(lines), _MANY).text
    stop = label(f"To stop a tool, write {command} freeze tool NAME.")
    return Message(
        (
            section(sentence),
            rich_text(box(text)),
            context(stop),
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
    )


def _row(frame: Frame, item: Item, shown: Listing) -> list[Block]:
    sentences = [_standing(item, frame.approval)]
    if not shown.is_complete:
        sentences.append(template("Shortened. Open *Full details* to see everything."))
    if is_misleading(item):
        sentences.append(template("⚠️ *Hidden or look-alike characters* are in it."))
    sentences += sql_warnings(item)
    ended = [label(fit(item.revoked.reason, _NOTE))] if item.revoked else []
    offered = buttons.decisions(frame, item, is_shown_whole=shown.is_complete)
    return [
        *title(frame, item),
        call_box(frame, item, shown),
        context(joined(" ", sentences), *_why_no_review(item), *ended),
        *([actions(*offered)] if offered else []),
    ]


def _why_no_review(item: Item) -> list[Template | Untrusted]:
    cover = item.cover
    if cover is not None:
        by = template(
            "Allowed by the standing approval {id}, given by",
            id=short_ref(cover.approval),
        )
        return [joined(" ", [by, people(cover.given_by)])]
    # The headline already implies the policy's tier.
    text = why(item)
    return [because(needs(item), text, _NOTE)] if text else []


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
    more = template("*{n} more:*", n=len(others))
    tools = Counter(item.tool for item in others)
    text = "\n".join(f"{n} of {fit(tool, _NOTE)}" for tool, n in tools.most_common())
    return [
        section(more),
        rich_text(box(excerpt(text, _OTHERS).text)),
        actions(buttons.view_call(frame, others[0])),
    ]


def _remarks(frame: Frame) -> list[Block]:
    remarks = frame.approval.remarks
    blocks = [block for remark in remarks[-_REMARKS:] for block in _remark(remark)]
    more = len(remarks) - _REMARKS
    if more > 0:
        sentence = template("Reports before that: {more}.", more=more)
        blocks.append(context(sentence))
    return blocks


def _remark(remark: Remark) -> list[Block]:
    by = template(
        "⚠️ *Reported* by {who} {at}.", who=who(remark.by), at=when(remark.at_ms)
    )
    blocks = [section(by)]
    if remark.text:
        blocks.append(rich_text(box(excerpt(remark.text, _REMARK).text)))
    return blocks


def _buttons(frame: Frame) -> list[Block]:
    """Return a freeze button for each tool shown, and the button to report the calls.

    Slack accepts each action once in a block, so each tool has a separate block.
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
            accessibility_label=label("Report a problem"),
        )
    )
    return [actions(*row) for row in rows]


def _freeze(frame: Frame, item: Item, *, is_only: bool) -> Block:
    named = untrusted(f"Freeze {fit(item.tool, _TOOL)}")
    return frame.button(
        item.index,
        Action.FREEZE_TOOL,
        label("Freeze tool") if is_only else named,
        accessibility_label=label(f"Freeze the tool of call {item.index + 1}"),
        confirm=confirm(
            label("Freeze the tool?"),
            label("No agent can start the tool until someone ends the freeze."),
            yes=label("Freeze"),
        ),
    )
