"""Approve or reject all pending calls of a batch, and word the reply."""

from __future__ import annotations

from dataclasses import replace

from keyturn.bot.blocks import notice
from keyturn.bot.cards.batch_footer import decided_alone
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, View
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.router import AckBody, Router
from keyturn.bot.listeners.verify_click import (
    Target,
    displayed,
    log_outcome,
    of_member,
    require_permission,
    verify_click,
)
from keyturn.bot.listeners.views import open_view, rejected_inputs, verify_submission
from keyturn.bot.modals import reject
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text_types import Template, joined, label, template
from keyturn.gateway.approvals.decisions import (
    Approve,
    Forbidden,
    GestureDecided,
    GestureOutcome,
    GestureRefused,
    Invalid,
    Reject,
)
from keyturn.gateway.approvals.gestures import Partition
from keyturn.gateway.protocol.verbs import Verb


async def decide_batch(
    ctx: ListenerContext,
    target: Target,
    partition: Partition,
    interaction: Clicked | Submitted,
) -> GestureOutcome:
    """Let the gateway decide every waiting call, all of them or none.

    Args:
        ctx: what the listener works with.
        target: the batch that the reviewer looked at.
        partition: what they said of each call that waits.
        interaction: the click or the submitted form: who, by which signed request.
    """
    decided = [index for index, decision in partition.items() if decision]
    items = [target.approval.items[index] for index in decided]
    reviewer, voters = await ctx.deciders_of(*interaction.who, *items)
    reviewer = reviewer.with_(gesture=interaction.gesture)
    click = target.click(interaction.digest, displayed(ctx, target))
    outcome = await ctx.service.decide_card(
        target.approval,
        click,
        partition,
        reviewer,
        voters=voters,
        seen=target.loaded,
    )
    log_outcome(target, outcome.kind, "batch", reviewer)
    return outcome


def batch_reply(outcome: GestureOutcome, *, now_ms: int) -> UserText | None:
    """Say what the card does not show: votes that count, and what was refused."""
    if isinstance(outcome, GestureDecided):
        return _decided_reply(outcome)
    if not isinstance(outcome, GestureRefused):
        return outcome_text(outcome, now_ms=now_ms)
    first = min(outcome.refusals)
    refusal = outcome.refusals[first]
    nothing = template("Nothing was recorded, because of call {n}.", n=first + 1)
    # Sentences of `Invalid` may quote arguments, and are shown in a form only.
    if isinstance(refusal, Invalid):
        return joined(
            " ",
            [
                nothing,
                template(
                    "It cannot be decided like this any more: the policy may ask for a "
                    "reason now. Please open that call from the card."
                ),
            ],
        )
    why = outcome_text(refusal, now_ms=now_ms)
    if isinstance(why, Template):
        return joined(" ", [nothing, why])
    # It names roles of the policy, so it stands in plain text.
    return label(f"{nothing.text} {why.text}")


def batch_form_reply(outcome: GestureOutcome, *, now_ms: int) -> AckBody:
    """Return the response to a submitted modal: close it, or show the reply in it."""
    reply = batch_reply(outcome, now_ms=now_ms)
    if reply is None:
        return {"response_action": "clear"}
    is_recorded = isinstance(outcome, GestureDecided)
    title = label("Recorded" if is_recorded else "Not done")
    # This may pass: what was chosen stays.
    may_pass = isinstance(outcome, GestureRefused) and isinstance(
        outcome.refusals[min(outcome.refusals)], Forbidden
    )
    action = "push" if may_pass else "update"
    return {"response_action": action, "view": notice(title, reply)}


def _decided_reply(outcome: GestureDecided) -> UserText | None:
    sentences: list[Template] = []
    if outcome.waiting:
        sentences += _still_waiting(outcome)
    left_out = len(outcome.left_out)
    if left_out == 1:
        sentences.append(
            template("1 call needs its own review: open it from the card.")
        )
    elif left_out:
        sentences.append(
            template(
                "{n} calls need their own review: open each from the card.",
                n=left_out,
            )
        )
    return joined(" ", sentences) if sentences else None


def _still_waiting(outcome: GestureDecided) -> list[Template]:
    """Say what was recorded of calls that need more people, and how many those are."""
    refused = (*outcome.rejected, *outcome.withdrawn)
    decided = len({*outcome.approved, *outcome.edited, *refused})
    waiting = len(outcome.waiting)
    calls = template("{n} calls", n=decided) if decided > 1 else template("1 call")
    is_approval = len(outcome.approved) == decided
    said = template("Your approval of" if is_approval else "Your decision on")
    recorded = joined(" ", [said, calls, template("is recorded.")])
    need = template(
        "One more person is needed" if outcome.needs_one else "More people are needed"
    )
    if waiting == decided:
        return [recorded, joined("", [need, template(".")])]
    return [recorded, joined(" ", [need, template("for {n} of them.", n=waiting)])]


async def _approve_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ALL)
    approval = target.approval
    waiting = [item for item in approval.items if item.is_pending]
    # What only the policy of now escalates is left out by `decide_batch`, and named.
    if decided_alone(approval):
        raise UserFacingError(
            template(
                "Nothing was recorded: a call that is escalated, needs a reason, or is "
                "not shown whole here, needs a decision of its own."
            )
        )
    outcome = await decide_batch(
        ctx, target, {item.index: Approve() for item in waiting}, clicked
    )
    return batch_reply(outcome, now_ms=target.now_ms)


def register(router: Router) -> None:
    """Answer the buttons Approve all and Reject all, and the form with the reason."""
    router.on_action(Action.APPROVE_ALL, _approve_all)
    router.on_action(Action.REJECT_ALL, _ask_reason)
    router.on_submit(View.REJECT_ALL, _reject_all)


async def _ask_reason(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await verify_click(ctx, clicked, Action.REJECT_ALL)
    # The seal holds which calls wait, so there is one; they need the same people.
    first = next(item for item in target.approval.items if item.is_pending)
    one = await of_member(ctx, replace(target, index=first.index))
    await require_permission(ctx, one, Verb.REJECT, clicked.who)
    view = reject.view_of_all(ctx.frame(target.approval, target.now_ms))
    await open_view(ctx, clicked, target, view)


async def _reject_all(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await verify_submission(ctx, submitted, View.REJECT_ALL)
    waiting = [item for item in target.approval.items if item.is_pending]
    said = reject.submitted_reason(
        submitted.view.values, needed=reject.needs_reason(waiting)
    )
    if said.errors:
        return rejected_inputs(said.errors)
    rejection = Reject(reason=said.text)
    outcome = await decide_batch(
        ctx, target, {item.index: rejection for item in waiting}, submitted
    )
    return batch_form_reply(outcome, now_ms=target.now_ms)
