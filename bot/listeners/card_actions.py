"""Answer the buttons of a message that decide no call.

More time, I'm on it, and a question to the requester are about pending calls. Report
and Freeze tool are about a call that ran without review, Try again about a failed run.
A spot check asks, by two buttons, whether a call was right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, time, timedelta, tzinfo
from typing import LiteralString

from keyturn.bot.cards.inquiries import requester_ref
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action, Input, View, name_in
from keyturn.bot.listener_context import ListenerContext, UserFacingError, UserText
from keyturn.bot.listeners import targets
from keyturn.bot.listeners.deciding import page_of
from keyturn.bot.listeners.router import NOT_CONFIRMED, AckBody, on_action, on_submit
from keyturn.bot.listeners.targets import Target
from keyturn.bot.listeners.usable_copy import is_usable_copy
from keyturn.bot.modals import call_form
from keyturn.bot.payload import Clicked, Submitted
from keyturn.bot.text import label, template
from keyturn.gateway.approvals import decisions, waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.record import Inquiry
from keyturn.gateway.approvals.waiting_changes import refusal
from keyturn.gateway.errors import NotConfirmed
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.runs.jobs import RunState, StalledRun

logger = logging.getLogger(__name__)

_LAST = 1_000_000
_HOUR_MS = 60 * 60 * 1000
_NOBODY: LiteralString = "There is nobody to ask: the requester is not known in Slack."
_NO_READER: LiteralString = (
    "The requester's account is deactivated or belongs to a bot, so nobody would read "
    "your question. Nothing was recorded."
)
_NO_CARD: LiteralString = (
    "Please try again once the card is posted: the requester is asked in its thread. "
    "Nothing was recorded."
)
_ALREADY: LiteralString = "You reported this already; nothing more was recorded."
_OTHER_WORKSPACE: LiteralString = (
    "This message belongs to another workspace, so nothing was done."
)
_NOT_OURS: LiteralString = (
    "This button does not belong to this message, so nothing was done. Please use the "
    "newest message about this run or agent."
)
_OVER: LiteralString = (
    "This run is not stopped any more: it went on, or it was dropped. Nothing was done."
)
_TRIED: LiteralString = (
    "This run is being tried again already. The message will show the result."
)
_TRYING: LiteralString = (
    "The run is being tried again. The message will show the result."
)


def tomorrow_ms(now_ms: int, zone: tzinfo) -> int:
    """Return the time of tomorrow, 9:00, in a time zone."""
    day = datetime.fromtimestamp(now_ms / 1000, zone).date() + timedelta(days=1)
    return int(datetime.combine(day, time(9), zone).timestamp() * 1000)


@on_action(Action.EXTEND, Action.TAKE, Action.SNOOZE, Action.SNOOZE_OVERNIGHT)
async def _retime(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    """Return a refusal as a sentence; card and modal show a success."""
    action = Action(clicked.action_id)
    target = await targets.verify_click(ctx, clicked, action)
    before = target.approval
    # As fresh as for a decision: only reviewers may keep a call open longer.
    reviewer = await ctx.reviewer_of(*clicked.who, *before.items, decides=True)
    reviewer = reviewer.with_(gesture=clicked.gesture)
    change: Callable[..., Change | decisions.Refusal] = waiting_changes.snooze
    until = list[int]()
    match action:
        case Action.EXTEND:
            change = waiting_changes.extend
        case Action.TAKE:
            change = waiting_changes.acknowledge
        case Action.SNOOZE:
            until = [target.now_ms + _HOUR_MS]
        case _:
            zone = await ctx.reviewers.zone(clicked.user)
            until = [tomorrow_ms(target.now_ms, zone)]
    try:
        result: Change | decisions.Refusal = await ctx.service.change_own(
            before.id, change, *until, reviewer
        )
    except NotConfirmed:
        # Not retried as other clicks are: each retry would add more time.
        logger.warning("time.unconfirmed approval=%s", before.id)
        raise UserFacingError(NOT_CONFIRMED) from None
    if not isinstance(result, Change):
        logger.info("time.refused why=%s approval=%s", result.kind, before.id)
        return outcome_text(result)
    approval = result.approval
    logger.info("time.changed what=%s approval=%s", result.events[0].name, approval.id)
    view_id = clicked.view_id
    binding = await targets.find_binding(ctx, view_id) if view_id else None
    if binding is None:
        return None
    loaded = Loaded(approval, target.now_ms)
    shown = replace(target, loaded=loaded, index=binding.index or 0)
    await targets.update_view(ctx, clicked, shown, await page_of(ctx, shown, _LAST))
    return None


@on_action(Action.ASK_REQUESTER)
async def _open_question(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.ASK_REQUESTER)
    approval = target.approval
    requester, reviewer = await asyncio.gather(
        _requester(ctx, target), _reviewer_of(ctx, target, clicked.who)
    )
    # Checked again on submission; this check saves the person from typing in vain.
    refused = refusal(approval, reviewer, target.now_ms, call=target.index)
    if refused is not None:
        raise UserFacingError(outcome_text(refused))
    if await ctx.service.store.cards.place(target.keys, approval.id) is None:
        raise UserFacingError(_NO_CARD)
    frame = ctx.frame(approval, target.now_ms)
    view = call_form.question_form(frame, target.index, requester)
    await targets.open_view(ctx, clicked, target, view)


@on_submit(View.ASK_REQUESTER)
async def _ask(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(ctx, submitted, View.ASK_REQUESTER)
    question = call_form.required_text(
        submitted.values, Input.QUESTION, "Please write a question."
    )
    reviewer = await _reviewer_of(ctx, target, submitted.who)
    approval = target.approval
    result: Change | Inquiry | decisions.Refusal = await ctx.service.change_own(
        approval.id,
        waiting_changes.ask,
        target.index if approval.is_batch else None,
        reviewer.with_(gesture=submitted.gesture),
        question,
    )
    is_kept = isinstance(result, Change | Inquiry)
    logger.info("requester.asked kept=%s approval=%s", is_kept, approval.id)
    if isinstance(result, Change | Inquiry):
        return {"response_action": "clear"}
    return targets.form_reply(result)


async def _reviewer_of(
    ctx: ListenerContext, target: Target, who: targets.Who
) -> decisions.Reviewer:
    items = target.approval.items if target.index is None else (target.item,)
    return await ctx.reviewer_of(*who, *items)


async def _requester(ctx: ListenerContext, target: Target) -> Person:
    """Return the person to ask; raises `UserFacingError` if no one would read it."""
    requester = target.approval.requester
    if requester is None or requester_ref(target.approval) is None:
        raise UserFacingError(_NOBODY)
    # If Slack does not identify them, they are asked: a question does no harm.
    found = await ctx.reviewers.resolve(requester.user, user_team=requester.team)
    if found.account in {decisions.AccountKind.DEACTIVATED, decisions.AccountKind.BOT}:
        raise UserFacingError(_NO_READER)
    return requester


@on_action(Action.ASK_AGAIN)
async def _ask_again(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    target = await targets.verify_click(ctx, clicked, Action.ASK_AGAIN)
    item, approval_id = target.item, target.approval.id
    reviewer = await ctx.reviewer_of(*clicked.who, item, decides=True)
    result: Change | decisions.Refusal = await ctx.service.change_own(
        approval_id,
        waiting_changes.ask_again,
        item.index,
        reviewer.with_(gesture=clicked.gesture),
    )
    is_kept = isinstance(result, Change)
    logger.info("call.wanted_again kept=%s approval=%s", is_kept, approval_id)
    if not isinstance(result, Change):
        return outcome_text(result)
    return template("Recorded. The agent's new question comes on a new card.")


@on_action(Action.REPORT)
async def _report(ctx: ListenerContext, clicked: Clicked) -> None:
    target = await targets.verify_click(ctx, clicked, Action.REPORT)
    reporter = await ctx.require_member(clicked.who)
    if any(one.by.is_same(reporter.person) for one in target.approval.remarks):
        raise UserFacingError(_ALREADY)
    # The form is sealed for the first call; the report is about all of them.
    await targets.open_form(
        ctx, clicked, replace(target, index=0), call_form.report_form
    )


@on_submit(View.REPORT)
async def _submit_report(ctx: ListenerContext, submitted: Submitted) -> AckBody:
    target = await targets.verify_submission(ctx, submitted, View.REPORT)
    reporter = await ctx.require_member(submitted.who)
    reporter = reporter.with_(gesture=submitted.gesture)
    text = call_form.submitted_report(submitted.values)
    # The check before the form was opened saves typing; this one counts, since two
    # forms of one person may be open.
    if not await ctx.service.report(target.approval.id, reporter, text):
        raise UserFacingError(_ALREADY)
    logger.info(
        "approval.reported approval=%s user=%s", target.approval.id, reporter.user
    )
    return {"response_action": "clear"}


@on_action(Action.FREEZE_TOOL)
async def _freeze_tool(ctx: ListenerContext, clicked: Clicked) -> UserText:
    target = await targets.verify_click(ctx, clicked, Action.FREEZE_TOOL)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=target.item.tool)
    reason = f"frozen from notification {target.approval.id}"
    return await _freeze(ctx, clicked, scope, reason)


@on_action(Action.FREEZE_AGENT)
async def _freeze_agent(ctx: ListenerContext, clicked: Clicked) -> UserText:
    agent = _named(ctx, clicked)
    scope = FreezeScope(kind=ScopeKind.AGENT, name=agent)
    return await _freeze(ctx, clicked, scope, "too many requests")


async def _freeze(
    ctx: ListenerContext, clicked: Clicked, scope: FreezeScope, reason: str
) -> UserText:
    groups = ctx.service.freezes.usergroups(scope)
    reviewer = await ctx.resolve(*clicked.who, groups=groups, fresh=True)
    result = await ctx.service.freezes.freeze_by(
        scope, reviewer.with_(gesture=clicked.gesture), reason
    )
    if isinstance(result, decisions.Forbidden):
        logger.info("freeze.refused user=%s scope=%s", reviewer.user, scope)
        raise UserFacingError(label(result.reason))
    # Its name is the agent's text, and Slack parses this as markup.
    if not result:
        return label(f"This {scope.kind} is frozen already; nothing changed.")
    return label(
        f"The {scope.kind} is frozen: nothing starts, not even approved calls. A "
        "message in the channel names the command that ends the freeze."
    )


@on_action(Action.CHECK_RIGHT, Action.CHECK_WRONG)
async def _answer_check(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    action = Action(clicked.action_id)
    target = await targets.verify_click(ctx, clicked, action)
    check = target.item.spot_check
    roles = check.of if check else ()
    user, team = clicked.who
    checks = ctx.service.spot_checks
    groups = checks.usergroups(*roles)
    # Not fresh: it decides nothing, so an answer of Slack that is a minute old
    # suffices.
    reviewer = await ctx.reviewers.resolve(
        user, user_team=team, groups=groups, fresh=False
    )
    why = await checks.answer(
        target.approval.id,
        target.item.index,
        reviewer.with_(gesture=clicked.gesture),
        is_right=action is Action.CHECK_RIGHT,
    )
    logger.info(
        "spot_check.answered answer=%s refused=%s approval=%s user=%s",
        action,
        bool(why),
        target.approval.id,
        user,
    )
    if why:
        raise UserFacingError(label(why))
    return template("Recorded, thank you.")


@on_action(Action.TRY_AGAIN)
async def _try_again(ctx: ListenerContext, clicked: Clicked) -> UserText | None:
    outage = await _proven(ctx, clicked)
    run = await _stopped(ctx, outage)
    scope = FreezeScope(kind=ScopeKind.AGENT, name=run.agent)
    groups = ctx.service.freezes.usergroups(scope)
    reviewer = await ctx.resolve(*clicked.who, groups=groups, fresh=True)
    forbidden = await ctx.service.runs.forbidden(run, reviewer)
    if forbidden is not None:
        logger.info("run.try_refused user=%s run=%s", reviewer.user, run.id)
        raise UserFacingError(label(forbidden.reason))
    by = f"{reviewer.team}/{reviewer.user}"
    # False if a gateway moved the run between the read and the write.
    is_moved = not await ctx.service.runs.retry(run, by, clicked.gesture)
    return template(_TRIED if is_moved else _TRYING)


def _named(ctx: ListenerContext, clicked: Clicked) -> str:
    """Return the outage or agent that a button names.

    Raises:
        UserFacingError: the button is forged.
    """
    if clicked.team != ctx.team:
        raise UserFacingError(_OTHER_WORKSPACE)
    name = name_in(
        clicked.value,
        keys=ctx.config.seal_keys,
        team=ctx.team,
        purpose=clicked.action_id,
    )
    if not name:
        logger.warning("click.refused why=bad_seal")
        raise UserFacingError(_NOT_OURS)
    return name


async def _proven(ctx: ListenerContext, clicked: Clicked) -> str:
    """Return the outage of a button.

    Raises:
        UserFacingError: the button is forged, or not on the newest message.
    """
    outage = _named(ctx, clicked)
    keys = ctx.service.store.keys_of_run(outage.partition(".")[0])
    place = await ctx.service.store.cards.place(keys, outage) if keys else None
    if keys is None or not await is_usable_copy(ctx, clicked, keys, outage, place):
        logger.warning("click.refused why=other_copy outage=%s", outage)
        raise UserFacingError(_NOT_OURS)
    return outage


async def _stopped(ctx: ListenerContext, outage: str) -> StalledRun:
    """Return the run of an outage while it is parked.

    Raises:
        UserFacingError: it is not parked.
    """
    run = await ctx.service.runs.find(outage.partition(".")[0])
    # A later outage of the same run has a separate message; this button must not retry
    # that one.
    if run is None or run.outage != outage:
        raise UserFacingError(_OVER)
    if run.state is not RunState.PARKED:
        raise UserFacingError(_TRIED)
    return run
