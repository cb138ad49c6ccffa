"""Show what an agent ran without asking, as one small message without a decision.

The calls stand as on a card: in boxes, redacted, nothing hidden. Buttons stop a tool
and report the notice; nothing here approves or undoes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from twokey.bot.blocks import (
    Block,
    Template,
    actions,
    bold,
    button,
    code,
    confirm,
    context,
    joined,
    label,
    section,
    template,
    untrusted,
)
from twokey.bot.cards.listing import is_misleading, listing
from twokey.bot.cards.message import Message
from twokey.bot.cards.refs import when, who
from twokey.bot.cards.rich import box, line, stacked
from twokey.bot.cards.states import BECAUSE
from twokey.bot.cards.stops import actor_ref
from twokey.bot.ids import COMMAND, NOTICE_EVENT, Action, seal_notice
from twokey.bot.text import excerpt, fit
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.notice import CallState, Notice, NoticedCall, Remark
from twokey.gateway.protocol.tiers import Tier
from twokey.sandbox.blockkit import JSON
from twokey.sandbox.blockkit.limits import TEXT_IN_ALL_BLOCKS

MAX_ROWS = 5
"""How many calls of a notice are shown; the others are counted by their tool."""

_REMARKS = 3
_AGENT = 60
_TOOL = 40
_OTHERS = 400
_REMARK = 300
_NOTE = 80
_IN_THREAD = 1_500
_MANY = 2_000

# What surrounds the rows, and in a row the sentence and the buttons; a test measures.
_HEAD_AND_TAIL = 2_700
_ROW_WORDS = 420
_MOST_CALL = 1_200
_MOST_RESULT = 500

_WORDS = {
    CallState.STARTED: "started",
    CallState.EXECUTED: "done",
    CallState.FAILED: "failed",
}
_HEADS: dict[CallState, LiteralString] = {
    CallState.STARTED: "🔔 *Runs without review*",
    CallState.EXECUTED: "🔔 *Ran without review*",
    CallState.FAILED: "🔔 *Ran without review, and failed*",
}
_ENDS: dict[CallState, LiteralString] = {
    CallState.STARTED: "🔄 Started {at}, no result yet.",
    CallState.EXECUTED: "✅ Done {at}.",
    CallState.FAILED: "❌ Failed {at}.",
}


@dataclass(frozen=True, slots=True)
class _Sheet:
    """One notice that is being made, and the room of each of its rows."""

    notice: Notice
    key: bytes
    team: str

    @property
    def rows(self) -> tuple[NoticedCall, ...]:
        return self.notice.calls[:MAX_ROWS]

    @property
    def room(self) -> int:
        return (TEXT_IN_ALL_BLOCKS - _HEAD_AND_TAIL) // len(self.rows) - _ROW_WORDS

    def block_id(self, name: str) -> str:
        return f"{self.notice.id}:{self.notice.rev}:{name}"

    def value(self, index: int | None, purpose: Action) -> str:
        return seal_notice(
            self.notice, index, key=self.key, team=self.team, purpose=purpose
        )


def notice_card(notice: Notice, *, key: bytes, team: str) -> Message:
    """Return the message of a notice as it stands.

    Args:
        notice: the record.
        key: the bot's sealing key.
        team: the workspace in which it is posted.
    """
    sheet = _Sheet(notice, key, team)
    blocks = [
        section(_head(notice), block_id=sheet.block_id("head")),
        _origin(sheet),
        *(block for call in sheet.rows for block in _row(sheet, call)),
        *_others(sheet),
        *_remarks(sheet),
        *_buttons(sheet),
    ]
    return Message(tuple(blocks), notice_text(notice), _metadata(notice))


def plain_notice(notice: Notice) -> Message:
    """Return a notice of what Slack does not take as it should be."""
    said = template(
        "🔔 Calls ran without review that cannot be displayed: {id}.",
        id=code(notice.id),
    )
    return Message((section(said),), notice_text(notice), _metadata(notice))


def notice_text(notice: Notice) -> str:
    """Return the text for notifications and screen readers: sentences of ours."""
    calls = len(notice.calls)
    what = "1 call" if calls == 1 else f"{calls} calls"
    return f"{what} needed no review: {_counted(notice)}."


def report_line(event: Event) -> Message:
    """Return the line under a notice about a report."""
    blocks = [section(template("⚠️ Reported by {who}.", who=actor_ref(event.actor)))]
    if event.reason:
        text = excerpt(event.reason, _IN_THREAD).text
        blocks.append(stacked(box(text), block_id=f"report:{event.seq}"))
    return Message(tuple(blocks), "Somebody reported a call that ran without review.")


def many_ran(events: Sequence[Event], *, command: str = COMMAND) -> Message:
    """Return the message about calls that came too fast for a notice each.

    Args:
        events: those of their notices, that they ran and how they ended.
        command: the slash command that the app has.
    """
    ran = [event for event in events if event.name is EventName.CALL_RAN]
    failed = sum(event.name is EventName.CALL_FAILED for event in events)
    counts = Counter((event.tool, event.agent) for event in ran)
    lines = [
        f"{n} of {fit(tool, _NOTE)} ({fit(agent, _AGENT)})"
        for (tool, agent), n in counts.most_common()
    ]
    said = template(
        "🔔 *{n} more calls without review*, too many at once for a notice each. "
        "{failed} of them failed so far.",
        n=len(ran),
        failed=failed,
    )
    text = excerpt("\n".join(lines), _MANY).text
    stop = label(f"{command} freeze tool NAME")
    return Message(
        (
            section(said),
            stacked(box(text), block_id=f"many:{ran[0].seq}"),
            context(template("To stop a tool, write:"), stop),
        ),
        f"{len(ran)} more calls ran without review.",
    )


def _metadata(notice: Notice) -> Block:
    payload: Block = {"notice": notice.id, "rev": notice.rev}
    return {"event_type": NOTICE_EVENT, "event_payload": payload}


def _head(notice: Notice) -> Template:
    if len(notice.calls) == 1:
        return template(_HEADS[notice.calls[0].state])
    return template("🔔 *{n} calls without review*", n=len(notice.calls))


def _counted(notice: Notice) -> str:
    counts = Counter(call.state for call in notice.calls)
    return ", ".join(
        f"{counts[state]} {_WORDS[state]}" for state in CallState if counts[state]
    )


def _origin(sheet: _Sheet) -> Block:
    notice, requester = sheet.notice, sheet.notice.requester
    asked = (
        template("Asked by the agent")
        if requester is None
        else template("Asked by {who} through the agent", who=who(requester))
    )
    counts = [label(_counted(notice))] if len(notice.calls) > 1 else []
    return context(
        asked,
        untrusted(fit(notice.agent, _AGENT)),
        *counts,
        template("{id}", id=code(notice.id)),
        block_id=sheet.block_id("origin"),
    )


def _row(sheet: _Sheet, call: NoticedCall) -> list[Block]:
    name, notice = str(call.index), sheet.notice
    room = min(_MOST_CALL, max(_NOTE, sheet.room * 60 // 100))
    shown = listing(call.tool, call.args, call.redact, room=room)
    parts: list[list[JSON]] = [box(text) for text in shown.boxes]
    if call.summary:
        cut = min(_MOST_RESULT, max(_NOTE, sheet.room * 20 // 100))
        parts.append(line(bold(label("Result (as the tool says):"))))
        parts.append(box(excerpt(call.summary, cut).text))
    at = when(call.changed_at_ms or notice.created_at_ms)
    told = [template(_ENDS[call.state], at=at)]
    if not shown.is_complete:
        part = template(
            "Showing {shown} of {total} characters.",
            shown=shown.shown,
            total=shown.total,
        )
        told.append(part)
    if is_misleading(call):
        told.append(template("⚠️ *Hidden or look-alike characters* are in it."))
    why = " · ".join(call.reasons)
    reasons = [untrusted(fit(why, _NOTE))] if why else []
    return [
        *_title(sheet, call),
        stacked(*parts, block_id=sheet.block_id(f"{name}.call")),
        context(
            joined(" ", told),
            template(BECAUSE[Tier.NOTIFY]),
            *reasons,
            block_id=sheet.block_id(f"{name}.state"),
        ),
    ]


def _title(sheet: _Sheet, call: NoticedCall) -> list[Block]:
    text = call.description
    if len(sheet.notice.calls) > 1:
        text = f"{call.index + 1}. {text or call.tool}"
    if not text:
        return []
    cut = excerpt(text, max(_NOTE, sheet.room * 8 // 100)).text
    return [section(untrusted(cut), block_id=sheet.block_id(f"{call.index}.title"))]


def _others(sheet: _Sheet) -> list[Block]:
    others = sheet.notice.calls[MAX_ROWS:]
    if not others:
        return []
    more = template("*And {n} more calls* that are not shown:", n=len(others))
    tools = Counter(call.tool for call in others)
    text = "\n".join(f"{n} of {fit(tool, _NOTE)}" for tool, n in tools.most_common())
    return [
        section(more, block_id=sheet.block_id("others")),
        stacked(
            box(excerpt(text, _OTHERS).text), block_id=sheet.block_id("others.list")
        ),
    ]


def _remarks(sheet: _Sheet) -> list[Block]:
    remarks = sheet.notice.remarks
    blocks = [
        block
        for place, remark in enumerate(remarks[-_REMARKS:])
        for block in _remark(sheet, place, remark)
    ]
    more = len(remarks) - _REMARKS
    if more > 0:
        said = template("Reports before that: {more}.", more=more)
        blocks.append(context(said, block_id=sheet.block_id("remarks")))
    return blocks


def _remark(sheet: _Sheet, place: int, remark: Remark) -> list[Block]:
    by = template(
        "⚠️ *Reported* by {who} {at}.", who=who(remark.by), at=when(remark.at_ms)
    )
    blocks = [section(by, block_id=sheet.block_id(f"remark.{place}"))]
    if remark.text:
        text = box(excerpt(remark.text, _REMARK).text)
        blocks.append(stacked(text, block_id=sheet.block_id(f"remark.{place}.text")))
    return blocks


def _buttons(sheet: _Sheet) -> list[Block]:
    """Return a button for each tool that is shown, and one to report the notice.

    Slack takes an action once in a block, so each tool has a block of its own.
    """
    first = {call.tool: call for call in reversed(sheet.rows)}
    tools = [call for call in sheet.rows if first[call.tool] is call]
    rows = [[_freeze(sheet, call, is_only=len(tools) == 1)] for call in tools]
    rows[-1].append(
        button(
            Action.REPORT,
            label("Report"),
            value=sheet.value(None, Action.REPORT),
            accessibility_label=label("Report that something is wrong with this"),
        )
    )
    return [
        actions(*row, block_id=sheet.block_id(f"actions.{place}"))
        for place, row in enumerate(rows)
    ]


def _freeze(sheet: _Sheet, call: NoticedCall, *, is_only: bool) -> Block:
    named = untrusted(f"Freeze {fit(call.tool, _TOOL)}")
    return button(
        Action.FREEZE_TOOL,
        label("Freeze tool") if is_only else named,
        value=sheet.value(call.index, Action.FREEZE_TOOL),
        accessibility_label=label(f"Freeze the tool of call {call.index + 1}"),
        confirm=confirm(
            label("Freeze this tool?"),
            label("No agent can start it until somebody lifts that."),
            yes=label("Freeze"),
            no=label("Back"),
        ),
    )
