"""Render the cards of questions, of standing approvals, and of calls without review.

A question is the agent's words: in plain text or boxes, with visible marks for hidden
characters. The card has all questions; the form behind Answer repeats them.

All calls that a standing approval covers share its card. A separate card appears only
for a call whose worker stopped while it ran.

On the card of calls that run without review (tier ``notify``), people need to act only
on a call in doubt. Its buttons freeze a tool and report the calls.
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
    section,
)
from keyturn.bot.cards import buttons
from keyturn.bot.cards.approval import metadata, reviewers
from keyturn.bot.cards.buttons import question_buttons
from keyturn.bot.cards.call_rows import agent_statement, call_box, listings, title
from keyturn.bot.cards.channel_messages import actor_ref
from keyturn.bot.cards.fallbacks import card_fallback, event_fallback
from keyturn.bot.cards.frame import Frame, rows_of
from keyturn.bot.cards.listing import Listing, boxes, fitted, is_misleading
from keyturn.bot.cards.mentions import mentions_for, reached
from keyturn.bot.cards.quality_checks import spot_checks
from keyturn.bot.cards.refs import asked_by, people, short_ref, when, who
from keyturn.bot.cards.states import (
    NOTHING_RAN,
    approvals,
    because,
    counted,
    needs,
    state_counts,
    still_needed,
    what_ran,
    why,
)
from keyturn.bot.cards.warnings import sql_warnings
from keyturn.bot.ids import COMMAND, Action
from keyturn.bot.text import (
    Plain,
    Template,
    Untrusted,
    code,
    excerpt,
    fit,
    joined,
    label,
    reveal,
    template,
    untrusted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval, Item, Remark
from keyturn.gateway.approvals.similar import Bounds, micro_text
from keyturn.gateway.approvals.standing import bounds_of, givers, left_of, used_micro
from keyturn.gateway.protocol.questions import NO_ANSWER, Question, QuestionType
from keyturn.gateway.protocol.records import ItemState, Tier

_S = ItemState
_HEADER = 140
_AROUND = 2_700
"""Maximum characters of the text around the questions."""
_DEFAULT = 75
"""Characters of a default: hidden characters make it longer than its source."""
_PER_QUESTION = 70 + _DEFAULT
"""Characters of labels and the default for each question."""
_IN_THREAD = 1_500

_SIGNS: dict[ItemState, LiteralString] = {
    _S.PENDING: "❓",
    _S.ANSWERED: "💬",
    _S.REJECTED: "🚫",
    _S.EXPIRED: "⌛",
    _S.SUPERSEDED: "⏩",
    _S.WITHDRAWN: "↩",
}
_STANDS: dict[ItemState, LiteralString] = {
    _S.ANSWERED: "💬 *Answered* by {who}, {at}.",
    _S.REJECTED: "🚫 *Skipped* by {who}, {at}. The agent is told.",
    _S.EXPIRED: "⌛ *Nobody answered in time* ({at}). The agent is told.",
    _S.SUPERSEDED: "⏩ *Cancelled* {at}: a newer message came. No answer is needed.",
    _S.WITHDRAWN: "↩ *Withdrawn* by the agent, {at}. No answer is needed.",
}
_HINTS: dict[QuestionType, LiteralString] = {
    QuestionType.MULTIPLE_CHOICE: "Choose one:",
    QuestionType.MULTI_SELECT: "Choose any:",
}


def question_card(frame: Frame) -> Message:
    """Return the current card of the questions of a call."""
    approval = frame.approval
    item, asked = approval.items[0], approval.items[0].questions
    blocks = [
        header(_title(item)),
        context(*asked_by(frame), template("{id}", id=short_ref(approval.id))),
        *_asks(frame, "please answer:"),
        *reached(frame),
        *(agent_statement(frame) if item.is_pending else []),
        *(
            block
            for number, question in enumerate(asked)
            for block in _question(item, number, question)
        ),
        *_warning(item),
        section(_standing(frame, item)),
        *button_row(question_buttons(frame, item)),
    ]
    return Message(tuple(blocks), card_fallback(approval), metadata(approval))


def question_note(event: Event, approval: Approval) -> Message | None:
    """Return the line under the card about the end of its questions, or None.

    The card itself shows answers and their authors.
    """
    item = approval.items[0]
    is_answered = item.state is _S.ANSWERED
    text = item.decision.text if item.decision and not is_answered else ""
    if event.item != item.id or item.is_pending or item.state is _S.SUPERSEDED:
        return None
    # Without the name, which would subscribe that person to the thread.
    sentence = template(_NOTES[item.state])
    quotes = [quote(text, _IN_THREAD)] if text else []
    return Message((section(sentence), *quotes), event_fallback(event, item))


_NOTES: dict[ItemState, LiteralString] = {
    _S.ANSWERED: "💬 Answered.",
    _S.REJECTED: "🚫 Skipped. The agent is told.",
    _S.EXPIRED: "⌛ Nobody answered in time. The agent is told.",
    _S.WITHDRAWN: "↩ No answer is needed any more.",
}


def _title(item: Item) -> Untrusted:
    asked, sign = item.questions, _SIGNS.get(item.state, "❓")
    count = len(asked)
    if count > 1:
        verb = "asks" if item.is_pending else "asked"
        return untrusted(f"{sign} The agent {verb} {count} questions")
    return untrusted(f"{sign} {fit(asked[0].question, _HEADER)}")


def _asks(frame: Frame, words: LiteralString) -> list[Block]:
    """Mention the people who have to answer, while they can."""
    if frame.is_late or not frame.approval.items[0].is_pending:
        return []
    whom = mentions_for(frame.approval)
    return [section(whom.before(template(words)))] if whom.roles else []


def _question(item: Item, number: int, question: Question) -> list[Block]:
    asked, answers = item.questions, item.decision.answers if item.decision else ()
    budget = (TEXT_BUDGET - _AROUND) // len(asked) - _PER_QUESTION
    share = max(_PER_QUESTION, budget // 2)
    parts: list[Block] = []
    is_in_header = len(asked) == 1 and len(reveal(question.question)) <= _HEADER
    if not is_in_header:
        nth = f"{number + 1}. " if len(asked) > 1 else ""
        parts.append(section(untrusted(nth + excerpt(question.question, share).text)))
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


def _warning(item: Item) -> list[Block]:
    if not is_misleading(item):
        return []
    odd = template("⚠️ *Hidden or look-alike characters* are in it, shown as ⟦U+…⟧.")
    return [context(odd)]


def _standing(frame: Frame, item: Item) -> Template:
    if item.is_pending:
        at = when(frame.approval.expires_at_ms)
        if frame.is_late:
            return template("⌛ *The time to answer ended* {at}.", at=at)
        return template(
            "⏳ *Waiting for an answer* until {at}; then the agent continues without "
            "it.",
            at=at,
        )
    at, by = when(item.changed_at_ms), item.decision
    if by is None:
        return template(_STANDS.get(item.state, _STANDS[_S.WITHDRAWN]), at=at)
    # An unanswered question is withdrawn by the person who asked the agent.
    state = _S.REJECTED if item.state is _S.WITHDRAWN else item.state
    return template(_STANDS[state], who=who(by.by), at=at)


_NAME = 60
_EQUAL = 2_000
_MOST_PATHS = 12
_PATH = 60
_TITLES: dict[ItemState, LiteralString] = {
    _S.PENDING: "🔁 Allow similar calls?",
    _S.AUTHORIZED: "🔁 Similar calls are allowed",
    _S.REJECTED: "🚫 Similar calls are not allowed",
    _S.EXPIRED: "⌛ Similar calls are not allowed",
    _S.LAPSED: "⏹ Similar calls are no longer allowed",
}
_NOT_GIVEN: LiteralString = "↩ Similar calls are not allowed"


def standing_card(frame: Frame) -> Message:
    """Return the current card of a standing approval."""
    approval = frame.approval
    item, bounds = approval.items[0], bounds_of(approval)
    equal = fitted(boxes(bounds.tool, bounds.equal, ()), budget=_EQUAL)
    # An ended one shows its end instead of its bounds.
    is_over = not (item.is_pending or item.state is _S.AUTHORIZED)
    blocks = [
        header(label(_TITLES.get(item.state, _NOT_GIVEN))),
        section(untrusted(f"{fit(bounds.tool, _NAME)}, by {fit(bounds.agent, _NAME)}")),
        *_asks(frame, "please decide:"),
        *([] if is_over else _allowed(bounds, equal)),
        section(_standing_state(frame, item)),
        *_why_it_ended(item),
        *button_row(_standing_buttons(frame, item, is_whole=equal.is_complete)),
        context(template("{id}", id=short_ref(approval.id))),
    ]
    return Message(tuple(blocks), card_fallback(approval), metadata(approval))


def _allowed(bounds: Bounds, equal: Listing) -> list[Block]:
    return [
        section(template("*Calls with exactly these arguments:*")),
        rich_text(*map(box, equal.boxes)),
        context(*_limits(bounds)),
    ]


def _limits(bounds: Bounds) -> list[Template | Plain]:
    """Return the limits in words, one per part."""
    free = [fit(path.removeprefix("args."), _PATH) for path in bounds.may_differ]
    more = len(free) - _MOST_PATHS
    named = ", ".join(free[:_MOST_PATHS]) + (f" and {more} more" if more > 0 else "")
    parts: list[Template | Plain] = []
    if free:
        parts.append(label(f"These may be anything: {named}."))
    if bounds.amount:
        amount = bounds.amount.removeprefix("args.")
        each, total = micro_text(bounds.each_micro), micro_text(bounds.total_micro)
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
    return f"{words}, {micro_text(total)} of {micro_text(bounds.total_micro)}"


def _standing_state(frame: Frame, item: Item) -> Template:
    approval = frame.approval
    if item.is_pending:
        return _waits_for_votes(frame, item)
    at = when(item.changed_at_ms)
    if item.state is _S.AUTHORIZED:
        uses, _ = left_of(approval)
        given = template(
            "✅ *Given* by {who}, {at}. *{n} of {of} left.*",
            who=people(givers(approval)),
            at=at,
            n=uses,
            of=bounds_of(approval).uses,
        )
        return joined(" ", [given, *_amount_left(approval)])
    parts = [_standing_end(item)]
    if approval.uses:
        parts.append(template("Calls that it covered: {n}.", n=len(approval.uses)))
    return joined(" ", parts)


def _standing_end(item: Item) -> Template:
    at, why = when(item.changed_at_ms), item.revoked
    if item.state is _S.REJECTED and item.decision:
        return template(
            "🚫 *Rejected* by {who}, {at}.", who=who(item.decision.by), at=at
        )
    if why is not None and why.by is not None:
        return template("⏹ *Revoked* by {who}, {at}.", who=who(why.by), at=at)
    if item.state is _S.LAPSED and why is None:
        return template("⏹ *Ended* {at}: the time is over.", at=at)
    return template("⏹ *Ended* {at}.", at=at)


def _why_it_ended(item: Item) -> list[Block]:
    revoked = item.revoked
    if revoked is None or revoked.by is not None:
        return []
    return [context(label(revoked.reason))]


def _amount_left(approval: Approval) -> list[Template]:
    bounds = bounds_of(approval)
    if not bounds.amount:
        return []
    used = code(micro_text(used_micro(approval)))
    total = code(micro_text(bounds.total_micro))
    return [template("Used so far: {used} of {total}.", used=used, total=total)]


def _waits_for_votes(frame: Frame, item: Item) -> Template:
    at = when(frame.approval.expires_at_ms)
    if frame.is_late:
        return template(
            "⌛ *The time to decide ended* {at}. Nothing is allowed.", at=at
        )
    if item.tier is Tier.DENY:
        return template("🚫 *No longer allowed by the policy.*")
    return template(
        "⏳ *Waiting* until {at}: {votes}{more}.",
        at=at,
        votes=approvals(item),
        more=still_needed(item),
    )


def _standing_buttons(frame: Frame, item: Item, *, is_whole: bool) -> list[Block]:
    if item.state is _S.AUTHORIZED:
        return [_revoke(frame), _uses(frame)]
    if not item.is_pending:
        return [_uses(frame)] if frame.approval.uses else []
    if frame.is_late:
        return []
    reject = frame.button(
        0, Action.REJECT, spoken="Reject: similar calls still need approval"
    )
    approve = frame.button(
        0,
        Action.APPROVE,
        text="Allow",
        spoken="Allow similar calls within these limits",
    )
    # People must not allow calls that the card does not show.
    return [approve, reject] if is_whole and item.tier is not Tier.DENY else [reject]


def _revoke(frame: Frame) -> Block:
    question = confirm(
        label("Revoke the standing approval?"),
        label("Similar calls need approval again. Calls that have not started end."),
        yes=label("Revoke"),
    )
    return frame.button(0, Action.REVOKE, confirm=question)


def _uses(frame: Frame) -> Block:
    return frame.button(0, Action.USES, text=f"Uses ({len(frame.approval.uses)})")


_REMARKS = 3
_AGENT = 60
_TOOL = 40
_OTHERS = 400
_REMARK = 300
_NOTE = 80
_MANY = 2_000

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
        section(
            template("🔔 *{n} calls without review*", n=len(approval.items))
            if approval.is_batch
            else template(_HEADS.get(approval.items[0].state, _RUNS))
        ),
        _run_origin(frame),
        *reviewers(frame),
        *(
            block
            for index, shown in listings(approval).items()
            for block in _run_row(frame, approval.items[index], shown)
        ),
        *_other_runs(frame),
        *_remarks(frame),
        *spot_checks(frame),
        *_notification_buttons(frame),
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
        blocks.append(quote(event.reason, _IN_THREAD))
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
    stop = label(f"To stop a tool, write {command} freeze tool NAME.")
    blocks = (section(sentence), quote("\n".join(lines), _MANY), context(stop))
    return Message(blocks, f"{len(ran)} more calls ran without review.")


def _run_origin(frame: Frame) -> Block:
    approval = frame.approval
    return context(
        *asked_by(frame),
        *([label(state_counts(approval))] if approval.is_batch else []),
        template("{id}", id=short_ref(approval.id)),
    )


def _run_row(frame: Frame, item: Item, shown: Listing) -> list[Block]:
    sentences = [_run_state(item, frame.approval)]
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
        *button_row(offered),
    ]


def _why_no_review(item: Item) -> list[Template | Untrusted]:
    cover = item.cover
    if cover is not None:
        by = template(
            "Allowed by the standing approval {id}, given by {who}",
            id=short_ref(cover.approval),
            who=people(cover.given_by),
        )
        return [by]
    # The headline already implies the policy's tier.
    text = why(item)
    return [because(needs(item), text, _NOTE)] if text else []


def _run_state(item: Item, approval: Approval) -> Template:
    sentence = _ENDS[item.state]
    if item.is_restored and item.state is _S.IN_DOUBT:
        sentence = _RESTORED
    elif item.has_started and item.state is _S.AUTHORIZED:
        sentence = _PAUSED
    sentence = sentence.replace(NOTHING_RAN, what_ran(item))
    return template(sentence, at=when(item.changed_at_ms or approval.created_at_ms))


def _other_runs(frame: Frame) -> list[Block]:
    listed = {item.index for item in rows_of(frame.approval)}
    others = [item for item in frame.approval.items if item.index not in listed]
    if not others:
        return []
    more = template("*{n} more:*", n=len(others))
    tools = Counter(item.tool for item in others)
    text = "\n".join(f"{n} of {fit(tool, _NOTE)}" for tool, n in tools.most_common())
    return [
        section(more),
        quote(text, _OTHERS),
        actions(
            frame.button(
                others[0].index,
                Action.VIEW_ALL,
                text="View the other calls",
                spoken="View the calls that are not on this card",
            )
        ),
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
    return [*blocks, *([quote(remark.text, _REMARK)] if remark.text else [])]


def _notification_buttons(frame: Frame) -> list[Block]:
    """Return a freeze button for each tool shown, and the button to report the calls.

    Slack accepts each action once in a block, so each tool has a separate block.
    """
    shown = rows_of(frame.approval)
    # Reversed, so that the first call of each tool wins.
    first = {item.tool: item for item in reversed(shown)}
    tools = [item for item in shown if first[item.tool] is item]
    rows = [[_freeze(frame, item, is_only=len(tools) == 1)] for item in tools]
    # An approval has at least one item, so there is a row.
    rows[-1].append(frame.button(None, Action.REPORT))
    return [actions(*row) for row in rows]


def _freeze(frame: Frame, item: Item, *, is_only: bool) -> Block:
    return frame.button(
        item.index,
        Action.FREEZE_TOOL,
        text="" if is_only else f"Freeze {fit(item.tool, _TOOL)}",
        spoken=f"Freeze the tool of call {item.index + 1}",
        confirm=confirm(
            label("Freeze the tool?"),
            label("No agent can start the tool until someone ends the freeze."),
            yes=label("Freeze"),
        ),
    )
