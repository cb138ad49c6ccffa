"""Build a card's buttons: a row of common actions, and a menu of rare ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from keyturn.bot.blocks import (
    Block,
    Message,
    actions,
    button_row,
    confirm,
    context,
    notes,
    option,
    overflow,
    quote,
    section,
)
from keyturn.bot.cards.frame import Frame, is_table
from keyturn.bot.cards.inquiries import ask_requester
from keyturn.bot.cards.listing import call_title
from keyturn.bot.cards.refs import calls_named
from keyturn.bot.cards.states import FINDINGS, asked_again, votes_missing
from keyturn.bot.cards.table import in_order, noticed, same_calls, sums, totals_of
from keyturn.bot.ids import Action, choice
from keyturn.bot.text import NAME, fit, joined, label, template, untrusted
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.timing import is_extendable, is_pressing
from keyturn.gateway.approvals.waiting_changes import can_snooze
from keyturn.gateway.protocol.records import Finding, ItemState, Tier, Verb

MAX_ROWS = 5
"""Maximum number of pending calls that one message offers."""

BY_VERB: dict[Verb, Action] = {
    Verb.RESPOND: Action.RESPOND_WORDS,
    Verb.EDIT: Action.EDIT_WORDS,
    Verb.REJECT: Action.REJECT_WORDS,
}
"""Decisions that a person's text can become, in the order of the buttons."""

_SHOWN = 600


def offer(
    frame: Frame, allowed: Mapping[int, Collection[Verb]], words: str, *, ts: str
) -> Message:
    """Return the private message that asks what to do with a person's text.

    Args:
        frame: of the card.
        allowed: for each call, by its index, this person's permitted decisions.
        words: their text; it is shown, and stays on the server.
        ts: of the message that contains it.
    """
    blocks: list[Block] = [
        section(
            template(
                "Choose how to use your message: as your answer, as the reason for an "
                "edit, or as the reason to reject. The agent has not read it. Nothing "
                "is recorded until you submit the form."
            )
        ),
        quote(words, _SHOWN),
    ]
    for index, verbs in list(allowed.items())[:MAX_ROWS]:
        item = frame.approval.items[index]
        if frame.approval.is_batch:
            nth = template(
                "Call {n} of {of}", n=index + 1, of=len(frame.approval.items)
            )
            blocks.append(context(nth, untrusted(fit(item.tool, NAME))))
        made = [
            frame.button(index, action)
            for verb, action in BY_VERB.items()
            if verb in verbs
        ]
        blocks.append(actions(*made, block_id=f"words:{ts}:{index}"))
    if len(allowed) > MAX_ROWS:
        more = template("{n} more: use their buttons.", n=len(allowed) - MAX_ROWS)
        blocks.append(context(more))
    text = "Choose how to use your message: as an answer, for an edit, or to reject."
    return Message(tuple(blocks), text)


def ts_of(block: str) -> str:
    """Return the ``ts`` of the message with a button's text; "" for another block."""
    kind, _, rest = block.partition(":")
    # Untrusted input, but it only selects a key that also contains the user who
    # clicked.
    return rest.rpartition(":")[0] if kind == "words" else ""


_TOTAL = 180
_TOTAL_OF_FEW = 80
_MANY = 2
_HOUR_MS = 60 * 60 * 1000
_NIGHT_MS = 15 * _HOUR_MS
"""Time left for a snooze until 9:00; the exact time depends on the person's zone."""
_IN_MENU = 5
"""Maximum number of options in Slack's overflow menu."""


def decisions(frame: Frame, item: Item, *, is_shown_whole: bool) -> list[Block]:
    """Return the row under one call, with its current actions.

    Approve appears only if the card shows every character of the call. Otherwise Full
    details comes first, and its last page has Approve. The row of a single call also
    has the buttons about the card's time.
    """
    view = view_all(frame, item)
    if item.state is ItemState.IN_DOUBT:
        *found, note = findings(frame, item)
        return [*found, *menu([note, view])]
    # Past the deadline no button decides, although the record may still be open: the
    # sweeper closes it within seconds.
    if not frame.can_decide(item):
        return [] if is_shown_whole else [view]
    forms = form_buttons(frame, item)
    rare = [one for one in forms if one["action_id"] == Action.RESPOND]
    usual = [one for one in forms if one not in rare]
    if not is_shown_whole:
        first = [view_all(frame, item, is_shown_whole=False)]
    else:
        first = [_approve(frame, item)] if Verb.APPROVE in item.allow else []
        rare.append(view)
        (usual if frame.is_usual else rare).extend(allow_similar(frame, item))
    if not frame.approval.is_batch:
        rare += ask_requester(frame, item.index)
        rare += time_buttons(frame, is_in_full=False)
        # A sixth option would be a button on the card; Full details has it.
        rare += snooze(frame)[: max(0, _IN_MENU - len(rare))]
    return [*first, *usual, *menu(rare)]


def menu(rare: Sequence[Block]) -> list[Block]:
    """Return buttons as one menu; a single one stays a button, which saves a click.

    Each option is sealed like its button. None may need a confirmation: Slack has one
    for the whole menu. Buttons beyond the menu's size, the last ones, come after it.
    """
    if len(rare) < _MANY:
        return [*rare]
    rare, beside = rare[:_IN_MENU], rare[_IN_MENU:]
    options = [
        option(
            label(str(cast("Block", one["text"])["text"])),
            choice(str(one["action_id"]), str(one["value"])),
        )
        for one in rare
    ]
    return [*beside, overflow(Action.MORE, options)]


def question_buttons(frame: Frame, item: Item) -> list[Block]:
    """Return Answer and Skip, while a question is pending."""
    if not frame.can_decide(item):
        return []
    question = confirm(
        label("Skip the question?"),
        label("The agent continues without an answer."),
        yes=label("Skip"),
    )
    return [
        frame.button(item.index, Action.ANSWER),
        frame.button(item.index, Action.SKIP, confirm=question),
    ]


def form_buttons(frame: Frame, item: Item) -> list[Block]:
    """Return the buttons of the allowed decisions, except Approve."""
    if item.is_question:
        return question_buttons(frame, item)
    return [
        frame.button(item.index, Action(verb.value))  # an action has its verb's name
        for verb in Verb
        if verb in item.allow and verb is not Verb.APPROVE
    ]


def approve_all(frame: Frame) -> Block:
    """Return the button that approves every pending call of a batch.

    Its value is sealed over the batch digest: adding, dropping, changing or moving a
    call invalidates it.
    """
    waiting = [item for item in frame.approval.items if item.is_pending]
    needs_others = any(votes_missing(item) > 1 for item in waiting)
    once = " once everybody who is needed has approved" if needs_others else ""
    # First: Slack's text is short, and a duplicate is the likeliest mistake.
    same = same_calls(frame.approval)
    return frame.button(
        None,
        Action.APPROVE_ALL,
        text=f"Approve all {len(waiting)}",
        confirm=confirm(
            label(f"Approve {len(waiting)} calls?"),
            label(" ".join([*same, *_summed(frame, waiting, once)])),
            yes=label("Approve all"),
        ),
    )


def _summed(frame: Frame, waiting: Sequence[Item], once: str) -> list[str]:
    """Describe the pending calls: their effect, their total, and their warnings."""
    is_handed = any(item.handed_to for item in waiting)
    what = "are handed over" if is_handed else "run"
    indexes = {item.index for item in waiting}
    total = sums(totals_of(frame.approval), indexes)
    most = _TOTAL if is_table(frame.approval) else _TOTAL_OF_FEW
    in_total = f": {total} in total" if 0 < len(total) <= most else ""
    found = noticed(frame.approval) if is_table(frame.approval) else frozenset[int]()
    marked = found & indexes
    named = fit(calls_named(marked).text, NAME) if marked else ""
    warned = f"Look at {named} first, marked with ⚠️."
    return [
        f"All {len(waiting)} {what} as shown{once}{in_total}.",
        *([warned] if marked else []),
    ]


def open_call(frame: Frame) -> Block:
    """Return the menu that opens one call of a table, most urgent calls first."""
    found = noticed(frame.approval)
    doubt = ItemState.IN_DOUBT
    items = sorted(
        in_order(frame.approval, found),
        key=lambda item: (item.state is not doubt, not item.is_pending),
    )
    return frame.menu(
        items, Action.VIEW_ALL, prefix="#", placeholder=label("Open a call…")
    )


def time_buttons(frame: Frame, *, is_in_full: bool) -> list[Block]:
    """Return "I'm on it" and, when time is short or in the full view, "More time"."""
    approval, now_ms = frame.approval, frame.now_ms
    if approval.state is not ApprovalState.OPEN or frame.is_late:
        return []
    is_due = is_in_full or is_pressing(approval, now_ms=now_ms)
    is_offered = is_due and is_extendable(approval, now_ms=now_ms)
    offered = [Action.TAKE, *([Action.EXTEND] if is_offered else [])]
    return [frame.button(None, action) for action in offered]


def snooze(frame: Frame) -> list[Block]:
    """Return the buttons of the snoozes that end before the approval expires."""
    approval = frame.approval
    if approval.state is not ApprovalState.OPEN or not can_snooze(approval):
        return []
    left_ms = approval.expires_at_ms - frame.now_ms
    lengths = (Action.SNOOZE, _HOUR_MS), (Action.SNOOZE_OVERNIGHT, _NIGHT_MS)
    return [frame.button(None, one) for one, least_ms in lengths if left_ms > least_ms]


def _approve(frame: Frame, item: Item) -> Block:
    # If a reason is needed, the form opens, and a second confirmation is too much.
    has_form = Verb.APPROVE in item.requires_reason
    is_asked = item.tier is Tier.ESCALATE and not has_form
    question = confirm(
        label("Approve although escalated?"),
        untrusted(fit(call_title(item), frame.budget.note)),
        yes=label("Approve"),
    )
    return frame.button(
        item.index,
        Action.APPROVE,
        text=f"Approve {item.act}".rstrip(),
        confirm=question if is_asked else None,
    )


def allow_similar(frame: Frame, item: Item) -> list[Block]:
    """Return the button that allows similar calls, if the policy permits it."""
    can_approve = Verb.APPROVE in item.allow and item.tier is Tier.APPROVE
    if not (item.can_cover and can_approve) or item.edit is not None:
        return []
    return [frame.button(item.index, Action.ALLOW_SIMILAR)]


def ask_again(frame: Frame) -> list[Block]:
    """Return who had calls asked again, and a button or menu for the other calls."""
    refused = [item for item in frame.approval.items if item.was_refused]
    several = frame.approval.is_batch
    said = [
        joined(
            " ",
            [
                *([template("Call {n}:", n=item.index + 1)] if several else []),
                asked_again(item, by),
            ],
        )
        for item in refused
        if (by := item.handed.again_by) is not None
    ]
    # Only reviewers may have a call asked again.
    left = [
        item
        for item in refused
        if item.handed.again_by is None and item.requirement.roles
    ]
    text = f"Ask again: call {left[0].index + 1}" if left and several else ""
    hint = label("Ask again: call…")
    offered = (
        [frame.menu(left, Action.ASK_AGAIN, prefix="#", placeholder=hint)]
        if len(left) > 1
        else [frame.button(item.index, Action.ASK_AGAIN, text=text) for item in left]
    )
    return [*notes(said[:MAX_ROWS]), *button_row(offered)]


def view_all(frame: Frame, item: Item, *, is_shown_whole: bool = True) -> Block:
    """Return the button that opens all of a call."""
    text = "" if is_shown_whole else "Full details to approve"
    return frame.button(
        item.index, Action.VIEW_ALL, text=text, is_primary=not is_shown_whole
    )


FOUND = {
    Action.RECONCILE_EXECUTED: Finding.EXECUTED,
    Action.RECONCILE_RERUN: Finding.RERUN,
    Action.RECONCILE_SKIP: Finding.SKIP,
}
"""The finding of each button about a call in doubt."""


def findings(frame: Frame, item: Item) -> list[Block]:
    """Return the buttons for the findings about a call in doubt."""
    again = label(if_repeated(item))
    question = confirm(label("Run it again?"), again, yes=label("Run again"))
    offered = findings_of(item)
    found = [
        frame.button(
            item.index,
            action,
            text=offered[finding],
            confirm=question if finding is Finding.RERUN else None,
        )
        for action, finding in FOUND.items()
        if finding in offered
    ]
    return [*found, frame.button(item.index, Action.RECONCILE_NOTE)]


def findings_of(item: Item) -> dict[Finding, str]:
    """Return the possible findings about a call in doubt, with their labels."""
    labels = {finding: words.capitalize() for finding, words in FINDINGS.items()}
    if not item.has_failed:
        labels[Finding.EXECUTED] = "It ran"
    if item.is_auto_approved:
        del labels[Finding.RERUN]  # the agent has gone on
    return labels


def if_repeated(item: Item) -> str:
    """Describe the effect of running a call in doubt again."""
    if item.idempotent:
        return "The tool is declared safe to repeat with the same key."
    return "If it already worked, this does it a second time."
