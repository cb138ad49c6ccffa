"""Render the cards of questions, standing approvals, calls without review, and checks.

A question is the agent's words: in plain text or boxes, with visible marks for hidden
characters. The card has all questions; the form behind Answer repeats them.

All calls that a standing approval covers share its card. A separate card appears only
for a call whose worker stopped while it ran.

On the card of calls that run without review (tier ``notify``), people need to act only
on a call in doubt. Its buttons freeze a tool and report the calls.

Reviews are measured by spot checks on the card, and by seeded defects that the card
reveals. The plain card replaces one that cannot be displayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import LiteralString

from keyturn.bot.blocks import (
    TEXT_BUDGET,
    Block,
    Message,
    actions,
    box,
    button_row,
    confirm,
    context,
    header,
    notes,
    quote,
    rich_text,
    said,
    section,
)
from keyturn.bot.cards.buttons import question_buttons
from keyturn.bot.cards.call_rows import (
    MOST_MIXED,
    agent_statement,
    content_warnings,
)
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import (
    Listing,
    boxes,
    call_title,
    fitted,
    forms_of,
)
from keyturn.bot.cards.mentions import of_roles
from keyturn.bot.cards.refs import actor, short_ref, when, who
from keyturn.bot.cards.states import MAX_ACT, card_fallback, counted
from keyturn.bot.ids import CARD_EVENT, COMMAND, Action
from keyturn.bot.text import (
    LINE,
    NAME,
    NOTE,
    Plain,
    Template,
    excerpt,
    fit,
    joined,
    label,
    reveal,
    spoken,
    template,
    untrusted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.quality_checks import (
    APPROVED,
    NOTICED,
    WRONG,
    SeededCard,
    took_part,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import SpotCheck
from keyturn.gateway.approvals.similar import Bounds, micro_text
from keyturn.gateway.approvals.standing import bounds_of, left_of
from keyturn.gateway.policy.formats import formatted
from keyturn.gateway.protocol.questions import NO_ANSWER, Question, QuestionType
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.sandbox.blockkit.limits import BLOCKS_IN_MESSAGE

_S = ItemState
_AROUND = 2_700
"""Maximum characters of the text around the questions."""
_DEFAULT = 75
"""Characters of a default: hidden characters make it longer than its source."""
_PER_QUESTION = 70 + _DEFAULT
"""Characters of labels and the default for each question."""
_IN_THREAD = 1_500

_HINTS: dict[QuestionType, LiteralString] = {
    QuestionType.MULTIPLE_CHOICE: "Choose one:",
    QuestionType.MULTI_SELECT: "Choose any:",
}


def questions(frame: Frame) -> list[Block]:
    """Return the questions of a call with their answers or buttons."""
    item = frame.approval.items[0]
    return [
        *(agent_statement(frame) if item.is_pending else []),
        *(
            block
            for number, question in enumerate(item.questions)
            for block in _question(item, number, question)
        ),
        *notes(content_warnings(item, MOST_MIXED, NOTE)),
        *button_row(question_buttons(frame, item)),
    ]


def _question(item: Item, number: int, question: Question) -> list[Block]:
    asked, answers = item.questions, item.decision.answers if item.decision else ()
    budget = (TEXT_BUDGET - _AROUND) // len(asked) - _PER_QUESTION
    share = max(_PER_QUESTION, budget // 2)
    parts: list[Block] = []
    is_in_header = len(asked) == 1 and len(reveal(question.question)) <= MAX_ACT
    if not is_in_header:
        nth = f"{number + 1}. " if len(asked) > 1 else ""
        parts.append(section(untrusted(nth + excerpt(question.question, share))))
    if answers:
        answer = answers[number] or NO_ANSWER
        return [*parts, quote(answer, share)]
    if not item.is_pending:
        return parts
    small: list[Plain] = [] if question.required else [label("Optional.")]
    if question.choices:
        offered = " · ".join([*question.choices, "Other"])
        small.append(untrusted(f"{_HINTS[question.type]} {fit(offered, share)}"))
    if question.default:
        words = fit(question.default, _DEFAULT)
        small.append(untrusted(f"Without an answer the agent continues with: {words}"))
    return [*parts, *notes(small)]


_EQUAL = 2_000
_PATHS = 300


def standing_approval(frame: Frame) -> list[Block]:
    """Return the bounds of a standing approval, its uses and its buttons."""
    approval = frame.approval
    item, bounds = approval.items[0], bounds_of(approval)
    equal = fitted(boxes(bounds.tool, bounds.equal, (), forms_of(item)), budget=_EQUAL)
    # An ended one shows its end instead of its bounds.
    is_over = not (item.is_pending or item.state is _S.AUTHORIZED)
    return [
        *([] if is_over else [*exactly(equal), context(*_limits(item, bounds))]),
        *_uses_so_far(approval, item),
        *button_row(_standing_buttons(frame, item, is_whole=equal.is_complete)),
    ]


def exactly(equal: Listing) -> list[Block]:
    """Return the arguments that all similar calls have."""
    heading = template("*Similar calls have exactly these arguments:*")
    return [section(heading), rich_text(*map(box, equal.boxes))]


def free_arguments(paths: Sequence[str]) -> list[Plain]:
    """Name the arguments that may differ."""
    names = ", ".join(path.removeprefix("args.") for path in paths)
    said = label(fit(f"These may be anything: {names}.", _PATHS))
    return [said] if paths else []


def amount_text(item: Item, path: str, micro: int) -> str:
    """Return an amount in the format that the policy has for its argument."""
    text, form = micro_text(micro), forms_of(item).formats.get(path[len("args.") :])
    return (formatted(text, form) if form else None) or text


def _limits(item: Item, bounds: Bounds) -> list[Template | Plain]:
    """Return the limits in words, one per part."""
    parts: list[Template | Plain] = [*free_arguments(bounds.may_differ)]
    if bounds.amount:
        amount = bounds.amount.removeprefix("args.")
        each, total = (
            amount_text(item, bounds.amount, micro)
            for micro in (bounds.each_micro, bounds.total_micro)
        )
        parts.append(label(f"{amount}: at most {each} each, {total} in all."))
    parts.append(label(f"At most {counted(bounds.uses)}."))
    parts.append(template("Until {at}.", at=when(bounds.until_ms)))
    parts.append(
        label("Escalated calls still go to people; denied and frozen ones do not run.")
    )
    return parts


def left_text(approval: Approval) -> str:
    """Return the remaining calls and amount, in words."""
    bounds = bounds_of(approval)
    uses, total = left_of(approval)
    words = f"{uses} of {counted(bounds.uses)} left"
    if not bounds.amount:
        return words
    left, most = (
        amount_text(approval.items[0], bounds.amount, micro)
        for micro in (total, bounds.total_micro)
    )
    return f"{words}, {left} of {most}"


def _uses_so_far(approval: Approval, item: Item) -> list[Block]:
    """Return the remaining calls, or why the standing approval ended."""
    revoked = item.revoked
    said: list[Template | Plain] = []
    if item.state is _S.AUTHORIZED:
        said.append(label(f"{left_text(approval)}."))
    elif approval.uses:
        said.append(template("Calls that it covered: {n}.", n=len(approval.uses)))
    if revoked is not None and revoked.by is not None:
        said.append(template("*Revoked* by {who}.", who=who(revoked.by)))
    elif revoked is not None:
        said.append(label(revoked.reason))
    return notes(said)


def _standing_buttons(frame: Frame, item: Item, *, is_whole: bool) -> list[Block]:
    count = len(frame.approval.uses)
    uses = frame.button(0, Action.USES, text=f"Uses ({count})")
    if item.state is _S.AUTHORIZED:
        question = confirm(
            label("Revoke the standing approval?"),
            label("Similar calls need approval again. Calls not yet started end."),
            yes=label("Revoke"),
        )
        return [frame.button(0, Action.REVOKE, confirm=question), uses]
    if not item.is_pending:
        return [uses] if count else []
    if frame.is_late:
        return []
    approve = frame.button(0, Action.APPROVE, text="Allow")
    # People must not allow calls that the card does not show.
    is_offered = is_whole and item.tier is not Tier.DENY
    return [*([approve] if is_offered else []), frame.button(0, Action.REJECT)]


_REMARKS = 3
_REMARK = 300
_MANY = 2_000


def notification_footer(frame: Frame) -> list[Block]:
    """Return the reports about calls that run without review, and the buttons."""
    if not frame.approval.is_auto_approved:
        return []
    return [*_remarks(frame), *_notification_buttons(frame)]


def report_line(event: Event) -> Message:
    """Return the line under a notification about a report."""
    by = template("⚠️ *Reported* by {who}.", who=actor(event.actor))
    return said(by, *([quote(event.reason, _IN_THREAD)] if event.reason else []))


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
        f"{n} of {fit(tool, NAME)} ({fit(agent, NAME)})"
        for (tool, agent), n in counts.most_common()
    ]
    sentence = template(
        "🔔 *{n} more without review*, too many for a message each. {failed} failed "
        "so far.",
        n=len(ran),
        failed=failed,
    )
    stop = label(f"To stop a tool, write {command} freeze tool NAME.")
    return said(sentence, quote("\n".join(lines), _MANY), context(stop))


def _remarks(frame: Frame) -> list[Block]:
    """Return the newest reports, and the number of the others."""
    blocks: list[Block] = []
    for remark in frame.approval.remarks[-_REMARKS:]:
        by, at = who(remark.by), when(remark.at_ms)
        blocks.append(section(template("⚠️ *Reported* by {who} {at}.", who=by, at=at)))
        blocks += [quote(remark.text, _REMARK)] if remark.text else []
    more = len(frame.approval.remarks) - _REMARKS
    if more > 0:
        blocks.append(context(template("Reports before that: {more}.", more=more)))
    return blocks


def _notification_buttons(frame: Frame) -> list[Block]:
    """Return a freeze button for each tool shown, and the button to report the calls.

    Slack accepts each action once in a block, so each tool has a separate block.
    """
    # Reversed, so that the first call of each tool wins.
    first = {item.tool: item for item in reversed(frame.approval.items)}
    tools = [*first.values()][::-1]
    rows = [[_freeze(frame, item, is_only=len(tools) == 1)] for item in tools]
    # An approval has at least one item, so there is a row.
    rows[-1].append(frame.button(None, Action.REPORT))
    return [actions(*row) for row in rows]


def _freeze(frame: Frame, item: Item, *, is_only: bool) -> Block:
    return frame.button(
        item.index,
        Action.FREEZE_TOOL,
        text="" if is_only else f"Freeze {fit(item.tool, NAME)}",
        confirm=confirm(
            label("Freeze the tool?"),
            label("No agent can start the tool until someone ends the freeze."),
            yes=label("Freeze"),
        ),
    )


TOLD_APPROVED = template(
    "🧪 This was a seeded defect, and you approved it. No agent asked for it, and "
    "nothing ran. The card says what was wrong."
)
TOLD_NOTICED = template(
    "🧪 Well seen: this was a seeded defect. No agent asked for it, and nothing could "
    "run. The card says what was wrong."
)
NOT_HERE = template(
    "This button does nothing on this card. Please decide: approve, edit, reject or "
    "respond."
)
ENDED = template("This was a seeded defect, and it has ended; nothing was counted.")

_WHAT = template(
    "No agent asked for this call, and nothing could run it. Your policy shows such "
    "cards now and then, to find out whether a mistake is noticed."
)
_HOW = {
    APPROVED: template("A reviewer approved it."),
    NOTICED: template("A reviewer did not approve it."),
}
_NOBODY = template("Nobody answered it in time.")


def ended_card(card: SeededCard, answer: str) -> Message:
    """Return the card after its answer, or after its time is over."""
    return Message(
        (
            header(label("🧪 Seeded defect")),
            context(_HOW.get(answer, _NOBODY)),
            rich_text(box(fit(call_title(card.shown.items[0]), LINE))),
            section(_WHAT),
            section(label(f"What was wrong: {card.defect}")),
        ),
        "This card was a seeded defect.",
    )


_AT_ONCE = 2
"""Maximum questions on one card; the next one follows an answer."""

_BLOCKS_OF_CHECK = 2

_WHAT_FOR = template(
    "Asked of people who took no part in it. Your answer is counted and kept in the "
    "audit log; it undoes nothing."
)

_ASKED = template("🔍 *Spot check:* was this right?")


def spot_checks(frame: Frame, room: int = BLOCKS_IN_MESSAGE) -> list[Block]:
    """Return the pending questions, and for a single call also the answer.

    Args:
        frame: of the card.
        room: blocks left on the card. A question without room appears once the pending
            calls take fewer blocks.
    """
    approval = frame.approval
    most = min(_AT_ONCE, (room - 1) // _BLOCKS_OF_CHECK)
    waiting = [item for item in approval.items if item.is_to_be_checked][: max(most, 0)]
    blocks = [block for item in waiting for block in _check(frame, item)]
    if waiting:
        blocks.append(context(_WHAT_FOR))
    check = approval.items[0].spot_check
    if not approval.is_batch and check is not None and check.by is not None:
        blocks.append(context(_answer(check)))
    return blocks


def check_asked_note(approval: Approval, item: Item) -> Message:
    """Return the reply under a card that mentions the people who are asked."""
    roles = item.spot_check.of if item.spot_check else ()
    whom = of_roles(roles, but=took_part(approval, item))
    sentence = joined(" ", [_ASKED, template("Please answer on the card.")])
    blocks = (section(whom.before(sentence)), *_title_of(approval, item))
    return Message(blocks, spoken(sentence))


def check_answered_note(approval: Approval, item: Item, check: SpotCheck) -> Message:
    """Return the reply with a person's answer."""
    return said(_answer(check), *_title_of(approval, item))


def _title_of(approval: Approval, item: Item) -> list[Block]:
    """Return the title of one of several calls; a single call needs none."""
    if not approval.is_batch:
        return []
    return [rich_text(box(fit(call_title(item), NOTE)))]


def _answer(check: SpotCheck) -> Template:
    found: LiteralString = "*wrong*" if check.answer == WRONG else "right"
    by = template("")
    if check.by is not None:
        by = template(" ({who}, {at})", who=who(check.by), at=when(check.at_ms))
    return template("🔍 *Spot check:* it was " + found + "{by}.", by=by)


def _check(frame: Frame, item: Item) -> list[Block]:
    n = item.index + 1
    asked = _ASKED
    if frame.approval.is_batch:
        asked = template("🔍 *Spot check of call {n}:* was it right?", n=n)
    return [
        section(asked),
        actions(
            frame.button(item.index, Action.CHECK_RIGHT),
            frame.button(item.index, Action.CHECK_WRONG),
        ),
    ]


def plain_card(frame: Frame) -> Message:
    """Return the fallback card: ids only, and each call can only be rejected."""
    approval = frame.approval
    said = [
        template("Calls that cannot be displayed: {id}.", id=short_ref(approval.id))
    ]
    # No approval: people must not approve calls that the card does not show.
    rejectable = [
        item for item in approval.items if item.is_pending and Verb.REJECT in item.allow
    ]
    blocks: list[Block] = []
    if rejectable:
        said.append(template("Please reject them, or let them expire."))
        # One menu: Slack accepts each action once in a block.
        words = label("Reject a call…")
        menu = frame.menu(rejectable, Action.REJECT, prefix="Call ", placeholder=words)
        blocks.append(actions(menu))
    # Without a version, because it mentions no one.
    payload: Block = {"approval": approval.id}
    shown: Block = {"event_type": CARD_EVENT, "event_payload": payload}
    text = card_fallback(approval)
    return Message((section(joined(" ", said)), *blocks), text, metadata=shown)
