"""Modals of standing approvals: allow calls like one, and list those it covered."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from keyturn.bot.blocks import (
    Block,
    context,
    input_block,
    modal,
    number_input,
    option,
    section,
    select,
)
from keyturn.bot.cards import special_cards
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.listing import boxes, call_title, fitted, forms_of
from keyturn.bot.cards.refs import when
from keyturn.bot.cards.states import UNREVIEWED_STATE_NAMES
from keyturn.bot.ids import Input, View
from keyturn.bot.modals import form
from keyturn.bot.modals.call_form import call_form, reason_field
from keyturn.bot.modals.call_form import hint as note
from keyturn.bot.text import LINE, fit, label, template, untrusted
from keyturn.gateway.approvals.past_calls import PastCalls
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.similar import Use, exact_micro, micro_text
from keyturn.gateway.approvals.standing import bounds_of
from keyturn.gateway.metrics.report import short_duration
from keyturn.gateway.policy.rules import SimilarRule
from keyturn.gateway.policy.standing import Chosen, Offer
from keyturn.gateway.protocol.records import Verb

_TIMES = (
    (timedelta(minutes=15), "15 minutes"),
    (timedelta(minutes=30), "30 minutes"),
    (timedelta(hours=1), "1 hour"),
    (timedelta(hours=2), "2 hours"),
    (timedelta(hours=4), "4 hours"),
    (timedelta(hours=8), "8 hours"),
    (timedelta(days=1), "1 day"),
    (timedelta(days=3), "3 days"),
    (timedelta(days=7), "7 days"),
)
_FIRST = timedelta(hours=1)
_USES = 10
_EQUAL = 2_000
_PATHS = 300
_AGAIN = "The same call may run again each time."
_ONCE = "A call that repeats one already done or rejected still needs approval."


def view(frame: Frame, index: int, offer: Offer, past: PastCalls) -> Block:
    """Return the modal to allow similar calls; ``past`` proposes the largest amount."""
    item, rule = frame.approval.items[index], offer.rule
    equal = boxes(item.tool, offer.equal, (), forms_of(item))
    shown = fitted(equal, budget=_EQUAL)
    times = _times(rule)
    first = [value for value, _ in times if int(value) <= _FIRST.total_seconds()]
    blocks = [
        *_past(past),
        *special_cards.exactly(shown),
        *map(context, special_cards.free_arguments(rule.may_differ)),
        input_block(
            label("For how long"),
            select(
                Input.LASTING.value,
                [option(label(words), value) for value, words in times],
                initial=first[-1] if first else times[0][0],
            ),
            block_id=Input.LASTING.value,
        ),
        _number(
            Input.USES,
            "How many calls at most",
            str(_first_uses(rule)),
            f"The policy allows up to {rule.uses}.",
        ),
        *_amounts(item, offer, past.each_micro),
        *([reason_field()] if Verb.APPROVE in item.requires_reason else []),
        note(
            "You approve the call on the card as well. Similar calls that the policy "
            "escalates still need approval; denied ones do not run. "
            + (_AGAIN if offer.may_repeat else _ONCE)
        ),
    ]
    title, submit = "Allow similar calls", "Approve and allow"
    return call_form(frame, index, blocks, View.ALLOW_SIMILAR, title, submit)


def submitted(item: Item, offer: Offer, state: form.State) -> tuple[Chosen, str]:
    """Read the modal: the bounds and the reason; the gateway checks the bounds.

    Raises:
        InvalidInputs: an input has no acceptable value.
    """
    errors: dict[str, str] = {}
    uses, rest = divmod(_amount(state, Input.USES) or 0, 10**6)
    if rest or not 1 <= uses <= offer.rule.uses:
        errors[Input.USES.value] = f"Please write a number from 1 to {offer.rule.uses}."
    lasting = _lasting(state, offer.rule)
    if not lasting:
        errors[Input.LASTING.value] = "Please choose a time."
    each, total = 0, 0
    if offer.rule.sum:
        most = offer.rule.total_micro
        each, total = (
            -1 if (found := _amount(state, name)) is None else found
            for name in (Input.EACH, Input.TOTAL)
        )
        for name, found in ((Input.EACH, each), (Input.TOTAL, total)):
            if not 0 <= found <= most:
                wanted = f"Please write an amount from 0 to {micro_text(most)}."
                errors[name.value] = wanted
        if not errors and each > total:
            errors[Input.EACH.value] = "This is more than all calls together may have."
    reason = form.text_of(state, Input.REASON)
    if Verb.APPROVE in item.requires_reason and not reason:
        errors[Input.REASON.value] = "Please say why you approve."
    if errors:
        raise form.InvalidInputs(errors)
    chosen = Chosen(lasting=lasting, uses=uses, each_micro=each, total_micro=total)
    return chosen, reason


def _times(rule: SimilarRule) -> list[tuple[str, str]]:
    """Return the times to choose from, in seconds and in words; the longest is last."""
    found = {time: words for time, words in _TIMES if time <= rule.within}
    longest = short_duration(int(rule.within.total_seconds() * 1000))
    found.setdefault(rule.within, longest)
    return [(str(int(time.total_seconds())), words) for time, words in found.items()]


def _lasting(state: form.State, rule: SimilarRule) -> timedelta:
    """Return the chosen time; zero if it is not offered."""
    value = form.choice_of(state, Input.LASTING)
    offered = {value for value, _ in _times(rule)}
    return timedelta(seconds=int(value) if value in offered else 0)


def _past(past: PastCalls) -> list[Block]:
    """Return what these limits would have covered, as the form proposes them."""
    if not past.within:
        return []
    was = "were" if past.corrected > 1 else "was"
    text = (
        f"The limits below would have covered {past.within} of the last "
        f"{past.decided} calls of this tool. {past.corrected or 'None'} of those {was} "
        "changed or rejected."
    )
    return [section(label(text))]


def _amounts(item: Item, offer: Offer, each: int) -> list[Block]:
    rule = offer.rule
    if not rule.sum:
        return []
    name = fit(rule.sum.removeprefix("args."), _PATHS)
    # At most what calls of this size could use: people widen a narrow limit.
    total = min(each * _first_uses(rule), rule.total_micro) or rule.total_micro
    most = special_cards.amount_text(item, rule.sum, rule.total_micro)
    hint = f"The policy allows up to {most}."
    return [
        _number(Input.EACH, f"{name}: at most in one call", micro_text(each), hint),
        _number(Input.TOTAL, f"{name}: at most in all calls", micro_text(total), hint),
    ]


def _first_uses(rule: SimilarRule) -> int:
    return min(_USES, rule.uses)


def _number(name: Input, title: str, initial: str, hint: str) -> Block:
    number = number_input(name.value, decimal=name is not Input.USES, initial=initial)
    return input_block(label(title), number, block_id=name.value, hint=label(hint))


def _amount(state: form.State, name: Input) -> int | None:
    """Return a number in millionths; None for any other input."""
    value = form.input_state(state, name).get("value")
    return exact_micro(value.strip()) if isinstance(value, str) else None


MOST = 40
"""Maximum number of listed calls, the newest; Slack accepts 100 blocks in a modal."""


def newest_uses(approval: Approval) -> tuple[Use, ...]:
    """Return the uses on the list, newest first."""
    return tuple(reversed(approval.uses[-MOST:]))


def uses_list(approval: Approval, items: Mapping[str, Item]) -> Block:
    """Return the list; ``items`` are the calls that are still stored, by id."""
    path, standing = bounds_of(approval).amount, approval.items[0]
    shown = newest_uses(approval)
    blocks = [context(label(f"{special_cards.left_text(approval)}."))]
    if not shown:
        blocks.append(section(template("No calls covered yet.")))
    for use in shown:
        item = items.get(use.item)
        title = label("A call that is kept no longer")
        blocks.append(
            section(untrusted(fit(call_title(item), LINE)) if item else title)
        )
        used = special_cards.amount_text(standing, path, use.amount_micro)
        amount = [label(used)] if path else []
        state = label(UNREVIEWED_STATE_NAMES[item.state] if item else "not kept")
        at = template("{at}", at=when(use.at_ms))
        blocks.append(context(at, *amount, state))
    more = len(approval.uses) - len(shown)
    if more > 0:
        blocks.append(context(label(f"{more} older ones are in the audit log.")))
    return modal("Uses", blocks, callback_id=View.USES)
