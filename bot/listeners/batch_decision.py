"""Apply one decision to all pending calls of a batch, and word the reply."""

from __future__ import annotations

from twokey.bot.blocks import notice
from twokey.bot.cards.reply_texts import outcome_text
from twokey.bot.interactions import Clicked, Submitted
from twokey.bot.listener_context import ListenerContext, UserText
from twokey.bot.listeners.router import AckBody
from twokey.bot.listeners.verify_click import Target, displayed, log_outcome
from twokey.bot.text_types import Template, joined, label, template
from twokey.gateway.approvals.batch_deciding import Partition
from twokey.gateway.approvals.collected import is_collected
from twokey.gateway.approvals.decisions import (
    BatchDecided,
    BatchOutcome,
    BatchRefused,
    Forbidden,
    Invalid,
)
from twokey.gateway.store.atomic_write import Loaded


async def decide_batch(
    ctx: ListenerContext,
    target: Target,
    partition: Partition,
    interaction: Clicked | Submitted,
) -> BatchOutcome:
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
    seen = target.approval
    if is_collected(seen):
        outcome = await ctx.service.collected_cards.decide(
            seen, click, partition, reviewer, voters=voters
        )
    else:
        outcome = await ctx.service.decide_batch(
            click,
            partition,
            reviewer,
            voters=voters,
            seen=Loaded(seen, target.now_ms),
        )
    log_outcome(target, outcome.kind, "batch", reviewer)
    return outcome


def batch_reply(outcome: BatchOutcome, *, now_ms: int) -> UserText | None:
    """Say what the card does not show: votes that count, and what was refused."""
    if isinstance(outcome, BatchDecided):
        return _decided_reply(outcome)
    if not isinstance(outcome, BatchRefused):
        return outcome_text(outcome, now_ms=now_ms)
    nothing = template(
        "Nothing was recorded, because of call {n}.", n=outcome.index + 1
    )
    # Sentences of `Invalid` may quote arguments, and are shown in a form only.
    if isinstance(outcome.refusal, Invalid):
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
    why = outcome_text(outcome.refusal, now_ms=now_ms)
    if isinstance(why, Template):
        return joined(" ", [nothing, why])
    # It names roles of the policy, so it stands in plain text.
    return label(f"{nothing.text} {why.text}")


def batch_form_reply(outcome: BatchOutcome, *, now_ms: int) -> AckBody:
    """Return the response to a submitted modal: close it, or show the reply in it."""
    reply = batch_reply(outcome, now_ms=now_ms)
    if reply is None:
        return {"response_action": "clear"}
    is_recorded = isinstance(outcome, BatchDecided)
    title = label("Recorded" if is_recorded else "Not done")
    # This may pass: what was chosen stays.
    may_pass = isinstance(outcome, BatchRefused) and isinstance(
        outcome.refusal, Forbidden
    )
    action = "push" if may_pass else "update"
    return {"response_action": action, "view": notice(title, reply)}


def _decided_reply(outcome: BatchDecided) -> UserText | None:
    sentences: list[Template] = []
    if outcome.waiting:
        sentences += _still_waiting(outcome)
    left_out = len(outcome.left_out)
    if left_out == 1:
        sentences.append(
            template(
                "1 call is left out, because it needs another look: please open it "
                "from the card."
            )
        )
    elif left_out:
        sentences.append(
            template(
                "{n} calls are left out, because they need another look: please open "
                "each of them from the card.",
                n=left_out,
            )
        )
    return joined(" ", sentences) if sentences else None


def _still_waiting(outcome: BatchDecided) -> list[Template]:
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
