"""Approve every pending call of a batch at once."""

from __future__ import annotations

from twokey.bot.cards.call_rows import needs_own_click
from twokey.bot.cards.outcome import outcome_text
from twokey.bot.gestures import Clicked
from twokey.bot.ids import Action
from twokey.bot.listener_context import ListenerContext, UserFacingError, UserText
from twokey.bot.listeners.router import Router
from twokey.bot.listeners.verify_click import log_outcome, outcome_reply, verify_click
from twokey.bot.text_types import Template, joined, label, template
from twokey.gateway.approvals.decisions import Approve, Decided, Outcome, Voted
from twokey.gateway.store.atomic_write import Loaded


def register(router: Router) -> None:
    """Answer the button that approves all of a batch."""
    router.on_action(Action.APPROVE_ALL, _approve_all)


async def _approve_all(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await verify_click(ctx, clicked, Action.APPROVE_ALL)
    approval = target.approval
    waiting = [item for item in approval.items if item.is_pending]
    shown = await ctx.service.as_of_now(Loaded(approval, target.now_ms))
    if any(
        # By the policy of now, not of the card: a call may have been escalated since it
        # was drawn. `decide_pending` asks once more for each item.
        needs_own_click(approval, shown.approval.items[one.index])
        for one in waiting
    ):
        raise UserFacingError(
            template(
                "Nothing was recorded: a call that is escalated, needs a reason, or is "
                "not shown whole here, needs a decision of its own."
            )
        )
    decision = Approve()
    reviewer, voters = await ctx.deciders_of(*clicked.who, *waiting)
    outcomes = await ctx.service.decide_pending(
        target.click(clicked.digest),
        approval.digest,
        decision,
        reviewer.with_(gesture=clicked.gesture),
        voters=voters,
    )
    for outcome in outcomes:
        log_outcome(target, outcome, decision.kind, reviewer)
    return summarize(outcomes, now_ms=target.now_ms)


def summarize(outcomes: list[Outcome], *, now_ms: int) -> UserText | None:
    """Say what the card does not show: votes that count, and what was refused."""
    refused = [each for each in outcomes if not isinstance(each, Decided | Voted)]
    voted = [each for each in outcomes if isinstance(each, Voted)]
    if len(outcomes) == 1 or not (refused or voted):
        return outcome_reply(outcomes[0], now_ms=now_ms)
    if not refused:
        return template(
            "Your approval of {all} calls is recorded; {more} of them need more "
            "people.",
            all=len(outcomes),
            more=len(voted),
        )
    first = outcome_text(refused[0], now_ms=now_ms)
    done, all_ = len(outcomes) - len(refused), len(outcomes)
    if isinstance(first, Template):
        done_so_far = template(
            "{done} of {all} calls are recorded.", done=done, all=all_
        )
        return joined(" ", [done_so_far, first])
    # It names roles of the policy, so it stands in plain text.
    return label(f"{done} of {all_} calls are recorded. {first.text}")
