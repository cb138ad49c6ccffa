"""Open modals, bind each to its call on the server, and verify submissions.

The server stores what a modal was opened for under its ``view.id``: a person, item,
version and hash. A submission counts for these alone; what it claims itself is ignored.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import LiteralString

from keyturn.bot.blocks import Block, ensure_valid_view, notice
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.undelivered import reason
from keyturn.bot.ids import View
from keyturn.bot.listener_context import ListenerContext, UserFacingError
from keyturn.bot.listeners.router import AckBody
from keyturn.bot.listeners.verify_click import (
    Target,
    find_binding,
    read_seal,
    verify_seal,
)
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import Template, joined, label, template
from keyturn.bot.web import RateLimited, SlackError, SlackRefused, text_at
from keyturn.gateway.approvals.decisions import (
    Decided,
    Forbidden,
    Outcome,
    Voted,
)
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.timing import is_over
from keyturn.gateway.store.cards import ViewBinding

logger = logging.getLogger(__name__)

_NOT_OPENED: LiteralString = (
    "Slack did not open the window in time. Nothing was recorded; please click again."
)
_NOT_TURNED: LiteralString = (
    "Slack did not show the page in time. Nothing was recorded; please click again."
)
_TOO_MANY: LiteralString = (
    "Slack takes no more windows of this app right now. Nothing was recorded; please "
    "click again in {n} seconds."
)
_TOO_DEEP: LiteralString = (
    "Slack shows no more than three windows on top of each other. Nothing was "
    "recorded; please close one, then click again."
)
_REFUSED: LiteralString = (
    " and does not let this app show the window. Nothing was recorded; please tell the "
    "operator of Keyturn."
)
_RETRY_S, _TRY_FOR_S = 1.0, 60.0

_PASSING = frozenset(
    {"exchanged_trigger_id", "expired_trigger_id", "hash_conflict", "not_found"}
)
"""Refusals after which another click helps."""
NOT_BOUND: LiteralString = (
    "This window is not known any more, so nothing was recorded. Please open it again "
    "from the card."
)


async def open_view(
    ctx: ListenerContext, clicked: Clicked, target: Target, view: Block, **kept: str
) -> None:
    """Open a modal for the person who clicked, bound to the call they look at.

    From inside a modal it opens on top of that one.

    Raises:
        UserFacingError: Slack did not open it.
    """
    view_id = await open_modal(ctx, clicked, view)
    # Slack names the view in its answer, so it cannot be bound earlier. A submission
    # that finds no binding, as after a failure of the store, is refused: `NOT_BOUND`.
    await bind_view(ctx, view_id, clicked.action.user, target, view, **kept)


async def open_modal(ctx: ListenerContext, clicked: Clicked, view: Block) -> str:
    """Open a modal for the person who clicked; return its id, to bind it to something.

    Raises:
        UserFacingError: Slack did not open it.
    """
    ensure_valid_view(view)
    action = clicked.action
    is_in_modal = bool(action.view_id) and not clicked.action.is_home
    method = "views.push" if is_in_modal else "views.open"
    try:
        # A trigger id lives three seconds and counts once, so nothing slow may come
        # before this call, and it is not tried again.
        reply = await ctx.slack.call(method, trigger_id=action.trigger_id, view=view)
    except SlackError as error:
        logger.warning("view.not_opened why=%s", error)
        raise UserFacingError(_not_shown(error, _NOT_OPENED)) from None
    return text_at(reply, "view", "id")


def _not_shown(error: SlackError, late: LiteralString) -> Template:
    """Return why somebody does not see a window, and what to do about it."""
    if isinstance(error, RateLimited):
        # Two at least, so that the sentence needs no other form for one.
        return template(_TOO_MANY, n=max(2, math.ceil(error.retry_after_s)))
    if not isinstance(error, SlackRefused) or error.error in _PASSING:
        return template(late)
    if error.error == "push_limit_reached":
        return template(_TOO_DEEP)
    return joined("", [reason(error.error), template(_REFUSED)])


Form = Callable[[Frame, int], Block]
"""Makes the modal of one call, by its index."""


async def open_form(
    ctx: ListenerContext, clicked: Clicked, target: Target, form: Form
) -> None:
    """Open the form of the call that somebody clicked on; raises `UserFacingError`."""
    await open_view(ctx, clicked, target, _filled(ctx, target, form))


async def replace_form(
    ctx: ListenerContext, submitted: Submitted, target: Target, form: Form
) -> AckBody:
    """Return the answer that shows another form in place of the one submitted."""
    view = _filled(ctx, target, form)
    # Bound before Slack shows it, for once: the view id is known already. A crash in
    # between leaves the old form with a binding that refuses it.
    await bind_view(ctx, submitted.view.view_id, submitted.view.user, target, view)
    return {"response_action": "update", "view": view}


def _filled(ctx: ListenerContext, target: Target, form: Form) -> Block:
    return form(ctx.frame(target.approval, target.now_ms), target.item.index)


async def update_view(
    ctx: ListenerContext, clicked: Clicked, target: Target, view: Block
) -> None:
    """Show another page in the modal in which somebody clicked.

    Raises:
        UserFacingError: says why not.
    """
    ensure_valid_view(view)
    action = clicked.action
    try:
        await ctx.slack.call(
            "views.update",
            view_id=action.view_id,
            # Slack refuses the update when the view changed since the click: of two
            # quick clicks on "Next page" the second is told to try again, and skips no
            # page.
            hash=action.view_hash or None,
            view=view,
        )
    except SlackError as error:
        logger.warning("view.not_turned why=%s", error)
        raise UserFacingError(_not_shown(error, _NOT_TURNED)) from None
    await bind_view(ctx, action.view_id, action.user, target, view)


async def show_when_taken(ctx: ListenerContext, view_id: str, page: Block) -> None:
    """Show a page in a modal for which nobody waits; one that is closed stays so.

    Without it the modal goes on saying that it is not ready, so it is tried again.
    """
    until = time.monotonic() + _TRY_FOR_S
    while True:
        try:
            await ctx.slack.call("views.update", view_id=view_id, view=page)
        except SlackRefused as error:
            logger.warning("view.not_shown view=%s why=%s", view_id, error)
        except SlackError as error:
            wait_s = error.retry_after_s if isinstance(error, RateLimited) else _RETRY_S
            if time.monotonic() + wait_s < until:
                await asyncio.sleep(wait_s)
                continue
            logger.warning("view.not_shown view=%s why=%s", view_id, error)
        return


async def bind_view(
    ctx: ListenerContext,
    view_id: str,
    user: str,
    target: Target,
    view: Block,
    **kept: str,
) -> None:
    """Remember what a modal is opened for; ``kept`` are more fields of the binding."""
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
    """Return what a submitted modal is about.

    Its seal has to be ours, and its binding has to name this person and this item.

    Raises:
        UserFacingError: says why it cannot count.
    """
    view = submitted.view
    sealed = read_seal(view.private_metadata)
    # `private_metadata` alone is not enough: it is sealed, but it says nothing of who
    # opened the modal, and a seal of another modal would fit.
    binding = await find_binding(ctx, view.view_id)
    wanted = (view.user, sealed.approval, sealed.index, sealed.version)
    if binding is None or view.team != ctx.team:
        logger.warning("view.refused why=not_bound")
        raise UserFacingError(template(NOT_BOUND))
    if wanted != (binding.user, binding.approval, binding.index, binding.version):
        logger.warning("view.refused why=other_binding approval=%s", binding.approval)
        raise UserFacingError(template(NOT_BOUND))
    target = await verify_seal(ctx, sealed, *purposes)
    # The seal proves the version. The hash is compared as well: what was bound is what
    # this person looked at, and a purpose bound for one form is good for no other.
    if (binding.action_hash, binding.purpose) != (
        target.action_hash,
        target.purpose,
    ):
        logger.warning("view.refused why=other_hash approval=%s", binding.approval)
        raise UserFacingError(template(NOT_BOUND))
    return replace(target, staged=binding.staged)


async def find_moved(
    ctx: ListenerContext, submitted: Submitted, purpose: View
) -> Target | None:
    """Return the batch of a submitted modal, if it moved since the modal was bound.

    What the seal stood for then is not kept, so it cannot be checked: the binding
    proves whose form of which approval it is. Nothing may be decided by it.
    """
    view = submitted.view
    binding = await find_binding(ctx, view.view_id)
    if binding is None or view.team != ctx.team:
        return None
    if (binding.user, binding.purpose) != (view.user, purpose):
        return None
    loaded = await ctx.service.read(binding.approval)
    keys = ctx.service.store.keys_of_approval(binding.approval)
    if loaded is None or keys is None:
        return None
    approval, now_ms = loaded.approval, loaded.now_ms
    is_waiting = approval.state is ApprovalState.OPEN and not is_over(approval, now_ms)
    if not is_waiting:
        return None
    return Target(loaded, None, purpose, keys, binding.staged)


def form_reply(outcome: Outcome, *, now_ms: int) -> AckBody:
    """Return the response to a modal after a decision: close it, or show a sentence."""
    if isinstance(outcome, Decided):
        return {"response_action": "clear"}
    title = "Recorded" if isinstance(outcome, Voted) else "Not done"
    view = notice(label(title), outcome_text(outcome, now_ms=now_ms))
    # This may pass, such as a freeze, or a lookup that failed: what was written stays.
    may_pass = isinstance(outcome, Forbidden)
    return {"response_action": "push" if may_pass else "update", "view": view}


def rejected_inputs(errors: Mapping[str, str]) -> AckBody:
    """Return the answer that keeps a modal open, with sentences under its inputs."""
    return {"response_action": "errors", "errors": dict(errors)}
