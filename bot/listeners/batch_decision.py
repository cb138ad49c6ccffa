"""Submit one gesture on every waiting call of a batch, and say what it did."""

from __future__ import annotations

from twokey.bot.blocks import notice
from twokey.bot.cards.outcome import outcome_text
from twokey.bot.gestures import Clicked, Submitted
from twokey.bot.listener_context import ListenerContext, UserText
from twokey.bot.listeners.router import AckBody
from twokey.bot.listeners.verify_click import Target, log_outcome
from twokey.bot.text_types import Template, joined, label, template
from twokey.gateway.approvals.batch_deciding import Partition
from twokey.gateway.approvals.decisions import (
    BatchDecided,
    BatchOutcome,
    BatchRefused,
    Invalid,
)
from twokey.gateway.store.atomic_write import Loaded


async def decide_batch(
    ctx: ListenerContext,
    target: Target,
    partition: Partition,
    act: Clicked | Submitted,
) -> BatchOutcome:
    """Let the gateway decide every waiting call, all of them or none.

    Args:
        ctx: what the listener works with.
        target: the batch that the reviewer looked at.
        partition: what they said of each call that waits.
        act: the click or the submitted form: who, by which signed request.
    """
    decided = [index for index, decision in partition.items() if decision]
    items = [target.approval.items[index] for index in decided]
    reviewer, voters = await ctx.deciders_of(*act.who, *items)
    outcome = await ctx.service.decide_batch(
        target.click(act.digest),
        partition,
        reviewer.with_(gesture=act.gesture),
        voters=voters,
        seen=Loaded(target.approval, target.now_ms),
    )
    log_outcome(target, outcome, "batch", reviewer)
    return outcome


def batch_reply(outcome: BatchOutcome, *, now_ms: int) -> UserText | None:
    """Say what the card does not show: votes that count, and what was refused."""
    if isinstance(outcome, BatchDecided):
        return _settled(outcome)
    if not isinstance(outcome, BatchRefused):
        return outcome_text(outcome, now_ms=now_ms)
    nothing = template(
        "Nothing was recorded, because of call {n}.", n=outcome.index + 1
    )
    # Sentences of `Invalid` may quote arguments, and are shown in a form only.
    if isinstance(outcome.refusal, Invalid):
        return joined(" ", [nothing, template("What was said of it is not accepted.")])
    why = outcome_text(outcome.refusal, now_ms=now_ms)
    if isinstance(why, Template):
        return joined(" ", [nothing, why])
    # It names roles of the policy, so it stands in plain text.
    return label(f"{nothing.text} {why.text}")


def batch_form_reply(outcome: BatchOutcome, *, now_ms: int) -> AckBody:
    """Return what becomes of a modal after a gesture: gone, or a calm sentence."""
    said = batch_reply(outcome, now_ms=now_ms)
    if said is None:
        return {"response_action": "clear"}
    is_recorded = isinstance(outcome, BatchDecided)
    title = label("Recorded" if is_recorded else "Not done")
    return {"response_action": "update", "view": notice(title, said)}


def _settled(outcome: BatchDecided) -> UserText | None:
    told: list[Template] = []
    decided = len({*outcome.approved, *outcome.edited, *outcome.rejected})
    if outcome.waiting:
        told.append(
            template(
                "Your decision on {all} calls is recorded; {more} of them need more "
                "people.",
                all=decided,
                more=len(outcome.waiting),
            )
        )
    if outcome.left_out:
        told.append(
            template(
                "{n} calls were escalated meanwhile and are left out: please decide "
                "each of them on its own.",
                n=len(outcome.left_out),
            )
        )
    return joined(" ", told) if told else None
