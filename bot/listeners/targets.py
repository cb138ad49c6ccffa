"""Verify the target of a click or a submitted modal; open modals bound to it.

A click carries a signed value (HMAC). The server stores the target of a modal under its
``view.id``: a person, item, version and hash. A submission counts only for these; its
own claims are ignored.

A seeded defect has no record that could be decided: its answers are counted in place of
the decisions that they look like. Until then it can be read like any other call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import LiteralString

from keyturn.bot.blocks import Block, ensure_valid_view, notice
from keyturn.bot.cards import special_cards
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.reminders import reason
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.delivery.seeded_defects import show_ended
from keyturn.bot.ids import Action, BadSeal, Sealed, View, unseal, verify
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners.router import AckBody
from keyturn.bot.listeners.usable_copy import is_usable_copy
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import label, template
from keyturn.bot.web import SlackError, SlackRefused, text_at
from keyturn.gateway.approvals import decisions, quorum, timing
from keyturn.gateway.approvals.deciding import REASON_POINTER
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.quorum import denial_reason
from keyturn.gateway.approvals.record import Approval, Item, approval_of, is_collected
from keyturn.gateway.approvals.timing import is_late
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.service.submit.quality_checks import refusal
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.reviewers.bot_records import Delegation
from keyturn.gateway.store.reviewers.cards import CardPlace, ViewBinding

logger = logging.getLogger(__name__)

_OTHER_COPY: LiteralString = (
    "This is not the newest copy of the card, so nothing was recorded. Please use the "
    "newest card of this approval."
)
_OTHER_WORKSPACE: LiteralString = (
    "This card belongs to another workspace, so nothing was recorded. Only people of "
    "that workspace can decide it."
)
_NOT_OURS: LiteralString = (
    "This button does not belong to this card, or the card or the key of Keyturn has "
    "changed, so nothing was recorded. Please use the card as it is now."
)
_NOT_SHOWN: LiteralString = (
    "Slack did not show the window. Nothing was recorded; please click again in a "
    "moment. {why}"
)
NOT_BOUND: LiteralString = (
    "This window is not known any more, so nothing was recorded. Please open it again "
    "from the card."
)


ON_HOME = frozenset({Action.VIEW_ALL, Action.APPROVE_ROW})
"""Purposes of the buttons about one call on the Home tab."""

Who = tuple[str, str]
"""User id and home team of a reviewer."""


@dataclass(frozen=True, slots=True)
class Target:
    """A verified target of a click or form, in the current version.

    ``index`` is None for the batch as a whole; ``purpose`` is the valid use of the
    seal. ``staged`` is the data bound to the submitted modal. ``is_seeded``: it is a
    seeded defect, which can be read but not decided. ``place`` and ``delegations`` were
    read together with the approval; None for delegations that were not read.
    """

    loaded: Loaded
    index: int | None
    purpose: str
    keys: Keys
    staged: str = ""
    is_seeded: bool = False
    place: CardPlace | None = None
    delegations: tuple[Delegation, ...] | None = None

    @property
    def approval(self) -> Approval:
        """Return the approval as it was read."""
        return self.loaded.approval

    @property
    def now_ms(self) -> int:
        """Return the time of the read, Unix milliseconds by the store's clock."""
        return self.loaded.now_ms

    @property
    def item(self) -> Item:
        """Return its item; the first one for a batch as a whole."""
        return self.approval.items[self.index or 0]

    @property
    def action_hash(self) -> str:
        """Return the hash of its item, or the digest of the batch as a whole."""
        return self.approval.digest if self.index is None else self.item.action_hash


async def verify_click(ctx: ListenerContext, clicked: Clicked, purpose: str) -> Target:
    """Return the target of a button on a card or in a modal.

    The value must be sealed for the current version of this approval, this workspace
    and this button. A card must be the one usable copy; a modal must be bound to this
    person and this approval.

    Raises:
        UserFacingError: explains why this click does not count.
    """
    target = await verify_seal(ctx, sealed_value(ctx, clicked), purpose)
    if not target.is_seeded:
        await verify_place(ctx, clicked, target)
        target = await of_member(ctx, target)
    if target.is_seeded:
        await refuse_seeded(ctx, target.loaded, clicked, purpose)
    return target


async def verify_place(ctx: ListenerContext, clicked: Clicked, target: Target) -> None:
    """Refuse a click from any place other than the button's.

    Raises:
        UserFacingError: explains the refusal.
    """
    approval = target.approval
    if clicked.is_home and target.purpose in ON_HOME:
        # Slack shows a Home tab only to its person. One button only opens the details,
        # and the other is sealed only for a row of this tab.
        return
    if clicked.view_id:
        # A button in a modal has no message for comparison. Its place is proven by the
        # binding that was stored when the modal was opened for this person.
        binding = await find_binding(ctx, clicked.view_id)
        if binding is None or (binding.user, binding.approval) != (
            clicked.user,
            approval.id,
        ):
            logger.warning("click.refused why=other_view approval=%s", approval.id)
            raise UserFacingError(_NOT_OURS)
        return
    if not (clicked.channel and clicked.message_ts):
        logger.warning("click.refused why=no_place approval=%s", approval.id)
        raise UserFacingError(_NOT_OURS)
    place = target.place
    if not await is_usable_copy(ctx, clicked, target.keys, approval.id, place):
        logger.warning("click.refused why=other_copy approval=%s", approval.id)
        raise UserFacingError(_OTHER_COPY)


async def find_binding(ctx: ListenerContext, view_id: str) -> ViewBinding | None:
    """Return the binding of a modal; None if the bot did not open it."""
    return await ctx.service.store.cards.bound_view(ctx.keys, view_id)


async def own_binding(
    ctx: ListenerContext, submitted: Submitted, *purposes: View
) -> ViewBinding | None:
    """Return the binding of a modal that was opened for this person and purpose."""
    binding = await find_binding(ctx, submitted.view_id)
    if binding is None or submitted.team != ctx.team:
        return None
    is_own = binding.user == submitted.user and binding.purpose in purposes
    return binding if is_own else None


def sealed_value(ctx: ListenerContext, clicked: Clicked) -> Sealed:
    """Read the seal of a button of this workspace.

    Raises:
        UserFacingError: the click is from another workspace.
    """
    # The MAC does not show it: it covers the team that the card was made for, and in a
    # channel shared by Slack Connect another company sees and clicks the same card.
    if clicked.team != ctx.team:
        logger.warning("click.refused why=other_workspace")
        raise UserFacingError(_OTHER_WORKSPACE)
    return read_seal(clicked.value)


def read_seal(text: str) -> Sealed:
    """Read a seal without trusting it; raises `UserFacingError` if it is malformed."""
    try:
        return unseal(text)
    except BadSeal:
        logger.warning("click.refused why=no_seal")
        raise UserFacingError(_NOT_OURS) from None


async def verify_seal(ctx: ListenerContext, sealed: Sealed, *purposes: str) -> Target:
    """Return the target of a seal, if it was made for the current record.

    Args:
        ctx: the listener's dependencies.
        sealed: the parts of the seal.
        purposes: the accepted purposes.

    Raises:
        UserFacingError: the value is forged, or the record has changed.
    """
    found = await ctx.service.read_clicked(sealed.approval)
    loaded = found.loaded if found else await seeded(ctx, sealed.approval)
    keys = ctx.service.store.keys_of_approval(sealed.approval)
    if loaded is None or keys is None:
        raise UserFacingError(outcome_text(decisions.Unknown()))
    approval, now_ms = loaded.approval, loaded.now_ms
    # Before the MAC: the content of a replaced version is not kept, so its MAC cannot
    # be checked. Nothing is decided, and the sentence describes the newest card.
    if sealed.version != approval.version:
        raise UserFacingError(
            outcome_text(
                decisions.explain_state(
                    approval, sealed.index, seen_version=sealed.version, now_ms=now_ms
                )
            )
        )
    accepted, team = ctx.config.seal_keys, ctx.team
    # Every accepted key and purpose: after a key change, older cards still work until
    # they are redrawn.
    proven = [
        purpose
        for purpose in purposes
        for key in accepted
        if verify(sealed, approval, key=key, team=team, purpose=purpose)
    ]
    if not proven:
        logger.warning("click.refused why=bad_seal approval=%s", approval.id)
        raise UserFacingError(_NOT_OURS)
    target = Target(loaded, sealed.index, proven[0], keys, is_seeded=found is None)
    if found is None:
        return target
    return replace(target, place=found.place, delegations=found.delegations)


async def of_member(ctx: ListenerContext, target: Target) -> Target:
    """Return the approval itself if a button is about one call of several.

    A collected card shows calls of separate approvals. An action on one of them
    continues as if its own card had been clicked.
    """
    if target.index is None or not is_collected(target.approval):
        return target
    approval_id, index = approval_of(target.item.id)
    found = await ctx.service.read(approval_id)
    loaded = found or await seeded(ctx, approval_id)
    if loaded is None:
        raise UserFacingError(outcome_text(decisions.Unknown()))
    return replace(target, loaded=loaded, index=index, is_seeded=found is None)


async def decide(
    ctx: ListenerContext,
    target: Target,
    decision: decisions.Decision,
    interaction: Clicked | Submitted,
) -> decisions.Outcome:
    """Submit a decision to the gateway.

    Args:
        ctx: the listener's dependencies.
        target: the call that the reviewer saw.
        decision: the reviewer's decision.
        interaction: the click or submitted form, with person and signed request.
    """
    if target.is_seeded:
        await refuse_seeded(ctx, target.loaded, interaction, target.purpose)
    # Before Slack is asked: the card may be drawn again meanwhile.
    click = await click_on(ctx, target, interaction)
    reviewer, voters = await ctx.deciders_of(
        *interaction.who, target.item, delegations=target.delegations
    )
    outcome = await ctx.service.decide(
        click,
        decision,
        reviewer.with_(gesture=interaction.gesture),
        voters=voters,
        read=target.loaded,
    )
    log_outcome(target, outcome.kind, decision.kind, reviewer)
    return outcome


async def click_on(
    ctx: ListenerContext, target: Target, interaction: Clicked | Submitted
) -> decisions.Click:
    """Return the gateway's record of a click or a submitted form."""
    place = target.place or await ctx.service.store.cards.place(
        target.keys, target.approval.id
    )
    return decisions.Click(
        approval=target.approval.id,
        index=target.index or 0,
        version=target.approval.version,
        action_hash=target.action_hash,
        request_digest=interaction.digest,
        # The content of the card that the person saw; "" without a card.
        display_digest=place.display_digest if place else "",
    )


async def require_permission(
    ctx: ListenerContext, target: Target, verb: Verb, who: Who
) -> None:
    """Refuse to open a form that would be refused on submission.

    The gateway checks all of this again at the decision; this check saves typing.

    Raises:
        UserFacingError: explains the refusal.
    """
    approval, item = target.approval, target.item
    if not item.is_pending or is_late(approval, item, target.now_ms):
        seen, now_ms = approval.version, target.now_ms
        state = decisions.explain_state(
            approval, item.index, seen_version=seen, now_ms=now_ms
        )
        raise UserFacingError(outcome_text(state))
    reviewer = await ctx.reviewer_of(*who, item, delegations=target.delegations)
    policy_now = await ctx.service.preview(approval, item.index, item.args)
    # Both: the current policy may require other people than the call's record, and the
    # gateway demands the stricter of the two.
    requirements = (item.requirement, policy_now.requirement)
    reason = denial_reason(approval, item, reviewer, verb, then_and_now=requirements)
    if reason is not None:
        logger.info("click.refused why=forbidden approval=%s", approval.id)
        raise UserFacingError(label(reason))
    if verb not in item.allow:
        raise UserFacingError("The policy does not allow this for this tool.")


async def require_reconciler(ctx: ListenerContext, target: Target, who: Who) -> None:
    """Refuse to open the form of a call that others reconcile, or have reconciled.

    The gateway checks all of this again on submission.

    Raises:
        UserFacingError: explains the refusal.
    """
    approval, item = target.approval, target.item
    if item.state is not ItemState.IN_DOUBT:
        stale = decisions.Stale(item=item)
        raise UserFacingError(outcome_text(stale))
    reviewer = await ctx.reviewer_of(*who, item)
    asked = (approval.principals, item.principals)
    reason = quorum.ineligible_reason(reviewer, item.requirement, *asked)
    if reason is not None:
        logger.info("click.refused why=forbidden approval=%s", approval.id)
        raise UserFacingError(label(reason))


def is_reason_invalid(outcome: decisions.Outcome) -> bool:
    """Return True if a decision failed only on its reason: missing or too long."""
    return isinstance(outcome, decisions.Invalid) and outcome.errors.keys() == {
        REASON_POINTER
    }


def outcome_reply(outcome: decisions.Outcome) -> UserText | None:
    """Return the reply to the person; None if the card itself shows it."""
    if isinstance(outcome, decisions.Decided):
        return None
    return outcome_text(outcome)


def log_outcome(
    target: Target, outcome: str, kind: str, reviewer: decisions.Reviewer
) -> None:
    """Log the outcome of a decision, ids only."""
    logger.info(
        "click.decided decision=%s outcome=%s approval=%s index=%s user=%s",
        kind,
        outcome,
        target.approval.id,
        target.index,
        reviewer.user,
    )


async def open_view(
    ctx: ListenerContext, clicked: Clicked, target: Target, view: Block, **kept: str
) -> None:
    """Open a modal for the person who clicked, bound to their call.

    From inside a modal it opens on top of that one.

    Raises:
        UserFacingError: Slack did not open it.
    """
    view_id = await open_modal(ctx, clicked, view)
    # Slack returns the view's id only in its answer, so it cannot be bound earlier. A
    # submission without a binding, as after a failure of the store, is refused:
    # `NOT_BOUND`.
    await bind_view(ctx, view_id, clicked.user, target, view, **kept)


async def open_modal(ctx: ListenerContext, clicked: Clicked, view: Block) -> str:
    """Open a modal for the person who clicked; return its id, to bind it.

    Raises:
        UserFacingError: Slack did not open it.
    """
    ensure_valid_view(view)
    is_in_modal = bool(clicked.view_id) and not clicked.is_home
    method = "views.push" if is_in_modal else "views.open"
    try:
        # A trigger id lives three seconds and is valid once, so nothing slow may
        # precede this call, and it is not retried.
        reply = await ctx.slack.call(method, trigger_id=clicked.trigger_id, view=view)
    except SlackError as error:
        raise _not_shown(error) from None
    return text_at(reply, "view", "id")


def _not_shown(error: SlackError) -> UserFacingError:
    logger.warning("view.not_shown why=%s", error)
    # Such as too many windows, or a trigger that is older than three seconds.
    why = error.error if isinstance(error, SlackRefused) else "no_answer"
    return UserFacingError(template(_NOT_SHOWN, why=reason(why)))


Form = Callable[[Frame, int], Block]
"""Makes the modal of one call, by its index."""


async def open_form(
    ctx: ListenerContext, clicked: Clicked, target: Target, form: Form
) -> None:
    """Open the form of the clicked call; raises `UserFacingError`."""
    await open_view(ctx, clicked, target, _filled(ctx, target, form))


async def replace_form(
    ctx: ListenerContext, submitted: Submitted, target: Target, form: Form
) -> AckBody:
    """Return the answer that shows another form in place of the submitted one."""
    view = _filled(ctx, target, form)
    # Here it is bound before Slack shows it, because the view id is known. A crash in
    # between leaves the old form with a binding that refuses it.
    await bind_view(ctx, submitted.view_id, submitted.user, target, view)
    return {"response_action": "update", "view": view}


def _filled(ctx: ListenerContext, target: Target, form: Form) -> Block:
    return form(ctx.frame(target.approval, target.now_ms), target.item.index)


async def update_view(
    ctx: ListenerContext, clicked: Clicked, target: Target, view: Block
) -> None:
    """Show another page in the clicked modal.

    Raises:
        UserFacingError: explains a refusal.
    """
    ensure_valid_view(view)
    try:
        await ctx.slack.call(
            "views.update",
            view_id=clicked.view_id,
            # Slack refuses the update if the view changed since the click: of two quick
            # clicks on "Next page" the second is refused, and skips no page.
            hash=clicked.view_hash or None,
            view=view,
        )
    except SlackError as error:
        raise _not_shown(error) from None
    await bind_view(ctx, clicked.view_id, clicked.user, target, view)


async def bind_view(
    ctx: ListenerContext,
    view_id: str,
    user: str,
    target: Target,
    view: Block,
    **kept: str,
) -> None:
    """Store the target of a modal; ``kept`` are more fields of the binding."""
    binding = ViewBinding(
        user=user,
        approval=target.approval.id,
        index=target.index,
        version=target.approval.version,
        action_hash=target.action_hash,
        purpose=str(view["callback_id"]),
        **kept,
    )
    await ctx.service.store.cards.bind_view(ctx.keys, view_id, binding)


async def verify_submission(
    ctx: ListenerContext, submitted: Submitted, *purposes: View
) -> Target:
    """Return the target of a submitted modal.

    Its seal has to be the bot's, and its binding has to name this person and this item.

    Raises:
        UserFacingError: explains why it cannot count.
    """
    sealed = read_seal(submitted.private_metadata)
    # `private_metadata` alone is not enough: it is sealed, but does not identify the
    # person who opened the modal, and a seal of another modal would fit.
    binding = await own_binding(ctx, submitted, *purposes)
    sealed_for = (sealed.approval, sealed.index, sealed.version)
    if binding is None or sealed_for != (
        binding.approval,
        binding.index,
        binding.version,
    ):
        logger.warning("view.refused why=not_bound approval=%s", sealed.approval)
        raise UserFacingError(NOT_BOUND)
    target = await verify_seal(ctx, sealed, *purposes)
    # The seal proves the version. The hash is compared as well: the binding has the
    # call that this person saw, and a purpose bound for one form is invalid for others.
    shown = (target.action_hash, target.purpose)
    if (binding.action_hash, binding.purpose) != shown:
        logger.warning("view.refused why=other_hash approval=%s", binding.approval)
        raise UserFacingError(NOT_BOUND)
    return replace(target, staged=binding.staged)


async def find_moved(
    ctx: ListenerContext, submitted: Submitted, purpose: View
) -> Target | None:
    """Return the batch of a submitted modal, if it changed since the modal was bound.

    The sealed content of that time is not kept, so it cannot be checked: the binding
    proves the form's person and approval. Nothing may be decided by it.
    """
    binding = await own_binding(ctx, submitted, purpose)
    if binding is None:
        return None
    loaded = await ctx.service.read(binding.approval)
    keys = ctx.service.store.keys_of_approval(binding.approval)
    if loaded is None or keys is None:
        return None
    approval, now_ms = loaded.approval, loaded.now_ms
    is_waiting = approval.state is ApprovalState.OPEN and not timing.is_over(
        approval, now_ms
    )
    if not is_waiting:
        return None
    return Target(loaded, None, purpose, keys, binding.staged)


def form_reply(outcome: decisions.Outcome) -> AckBody:
    """Return the response to a modal after a decision: close it, or show a sentence."""
    is_recorded = isinstance(outcome, decisions.Voted)
    return closing_reply(outcome_reply(outcome), is_recorded=is_recorded)


def closing_reply(reply: UserText | None, *, is_recorded: bool) -> AckBody:
    """Return the response that closes a modal, or shows a sentence.

    A refusal is shown on top, so that the person keeps their input: it may pass, such
    as a freeze, or a failed lookup.
    """
    if reply is None:
        return {"response_action": "clear"}
    view = notice("Recorded" if is_recorded else "Not done", reply)
    return {"response_action": "update" if is_recorded else "push", "view": view}


_APPROVALS = frozenset({Action.APPROVE, Action.APPROVE_ROW})
_DECISIONS = _APPROVALS | {
    *(Action.EDIT, Action.CHOOSE_EDIT, Action.REJECT, Action.RESPOND)
}


async def seeded(ctx: ListenerContext, approval_id: str) -> Loaded | None:
    """Return the seeded defect with this id as its card shows it, or None."""
    card = (await ctx.service.seeded_defects.read()).card
    if card is None or card.shown.id != approval_id:
        return None
    return Loaded(card.shown, await ctx.now_ms())


async def answered(
    ctx: ListenerContext,
    approval_id: str,
    reviewer: decisions.Reviewer,
    *,
    has_approved: bool,
    at: tuple[str, str] = ("", ""),
) -> UserText | None:
    """Count a decision; return the reply to the person, or None for another call.

    Args:
        ctx: the listener's dependencies.
        approval_id: the approval that the person decided.
        reviewer: the person.
        has_approved: they did not notice the defect.
        at: channel and ts of the clicked message; there are two if the answer to a post
            was lost.

    Raises:
        UserFacingError: the person could not decide such a call.
        StoreUnavailable: the write is not confirmed.
    """
    defects = ctx.service.seeded_defects
    card = (await defects.read()).card
    if card is None or card.shown.id != approval_id:
        return None
    if (why := refusal(card, reviewer)) is not None:
        raise UserFacingError(label(why))
    if not await defects.answer(card, reviewer, has_approved=has_approved):
        return special_cards.ENDED
    logger.info("seeded.answered approved=%s user=%s", has_approved, reviewer.user)
    ctx.tasks.later(_show_ended(ctx, *at), name="seeded")
    return special_cards.TOLD_APPROVED if has_approved else special_cards.TOLD_NOTICED


async def refuse_seeded(
    ctx: ListenerContext, loaded: Loaded, interaction: Clicked | Submitted, purpose: str
) -> None:
    """Count the use of a button or form of a seeded defect, unless it only reads.

    Raises:
        UserFacingError: the reply to the person.
    """
    if purpose == Action.VIEW_ALL:
        return
    at, has_approved = ("", ""), True
    if isinstance(interaction, Clicked):
        if purpose not in _DECISIONS:
            raise UserFacingError(special_cards.NOT_HERE)
        at = (interaction.channel, interaction.message_ts)
        has_approved = purpose in _APPROVALS
    reviewer = await ctx.reviewer_of(*interaction.who, *loaded.approval.items)
    reviewer = reviewer.with_(gesture=interaction.gesture)
    said = await answered(
        ctx, loaded.approval.id, reviewer, has_approved=has_approved, at=at
    )
    raise UserFacingError(said or special_cards.ENDED)


async def _show_ended(ctx: ListenerContext, channel: str, ts: str) -> None:
    ctx.home.changed.set()
    found = await ctx.service.seeded_defects.read()
    if found.card is None:
        return
    here = found.with_(channel=channel, ts=ts) if channel and ts else found
    try:
        # Immediately; the publisher repeats it, in case this is lost.
        await show_ended(ctx.slack, here, found.card)
    except SlackError as error:
        logger.warning("seeded.not_sent why=%s", error)
