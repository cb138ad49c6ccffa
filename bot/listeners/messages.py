"""Answer messages to the bot: under a card, or a request to an agent.

A mention or a direct message asks an agent. A reply under a card never starts one. A
reviewer can use the text as an answer to the agent, or as the reason of an edit or a
rejection. Slack opens a modal only after a click, so the reviewer gets buttons, and the
server keeps the text until one is clicked. Under a card with one question the reply is
its answer. If reviewers asked the requester, the requester's message is a reply to
them.
"""

from __future__ import annotations

import asyncio
import html
import logging
from datetime import timedelta
from functools import partial
from typing import LiteralString

from keyturn.bot import payload
from keyturn.bot.blocks import Message
from keyturn.bot.cards import buttons
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.ids import Action
from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.listeners import targets
from keyturn.bot.listeners.deciding import require_full_view
from keyturn.bot.listeners.router import NOT_RECORDED, on_action, on_event
from keyturn.bot.listeners.targets import Target
from keyturn.bot.listeners.usable_copy import shown_before
from keyturn.bot.modals import call_form, edit
from keyturn.bot.payload import Clicked, Json, Mention, without_bot
from keyturn.bot.text import label, template
from keyturn.bot.web import SlackError
from keyturn.gateway.approvals import decisions, waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.record import Inquiry, Origin, is_collected
from keyturn.gateway.approvals.waiting_changes import takes_reply
from keyturn.gateway.errors import StoreUnavailable, TooManySpeakers
from keyturn.gateway.protocol import questions
from keyturn.gateway.protocol.records import Person, Verb
from keyturn.gateway.store.keys import MESSAGE_LIFETIME
from keyturn.gateway.store.records.atomic_write import Loaded

logger = logging.getLogger(__name__)

_EMPTY = template(
    "Tell me what to do, such as: `refund order 78291`. The first word may name the "
    "agent that I should ask."
)
_NO_AGENT = template(
    "No agent is set up here. The gateway's operator can add one in its settings."
)
_EDITED = template(
    "Editing your message changes nothing. To ask for something else, please write a "
    "new message."
)
# A day less than the store remembers a message: otherwise an edit near the end could
# ask a second time.
_EDITABLE_S = (MESSAGE_LIFETIME - timedelta(days=1)).total_seconds()
_NOT_KEPT_YET = template(
    "The gateway cannot keep anything right now. Slack repeats your message for a few "
    "minutes; if nothing is said here by then, please write it again."
)
_OUTSIDER = template("Only members of this workspace can ask an agent.")
_CROWDED = template(
    "So many people have asked in this thread that I cannot keep track of who may not "
    "decide. Nothing was done: please ask again in a new thread."
)
_UNKNOWN = template(
    "Slack did not say who you are, so nothing was done yet. Slack repeats your "
    "message for a few minutes; if nothing is said here by then, please ask again."
)


def parse_request(
    text: str, *, bot_user: str, agents: tuple[str, ...], default_agent: str
) -> tuple[str, str]:
    """Return the agent of a message, which its first word may name, and the text.

    Args:
        text: from Slack: with mentions as ids, and & < > escaped.
        bot_user: the bot's user id; its mentions are not part of the message.
        agents: the known names.
        default_agent: the agent if the message names none.
    """
    mention = without_bot(text, bot_user)
    first, _, rest = mention.partition(" ")
    named = {agent.lower(): agent for agent in agents}
    agent = named.get(first.rstrip(":,").lower())
    words = mention if agent is None else rest.strip()
    return agent or default_agent, html.unescape(words)


# For a mention in a channel Slack may send both events: `payload.mention` reads only
# the ``message`` of direct messages.
@on_event("app_mention", "message")
async def _mentioned(ctx: ListenerContext, body: Json) -> None:
    mention = payload.mention(body)
    # The bot's messages are events, too; one would ask an agent with the agent's
    # answer.
    if mention is None or mention.user == ctx.bot_user or mention.team != ctx.team:
        return
    try:
        # A reply under a card first: its author must not become the requester of a new
        # run, who may not decide.
        if not (await _is_reply(ctx, mention) or await _is_late_edit(ctx, mention)):
            await _ask(ctx, mention)
    except StoreUnavailable:
        _reply_later(ctx, mention, as_message(_NOT_KEPT_YET))
        raise


async def _ask(ctx: ListenerContext, mention: Mention) -> None:
    config = ctx.config
    agent, words = parse_request(
        mention.text,
        bot_user=ctx.bot_user,
        agents=config.agents,
        default_agent=config.default_agent,
    )
    asker = await ctx.reviewers.resolve(mention.user, user_team=mention.user_team)
    problem = _problem(asker, agent, words)
    if problem is not None:
        await _reply_once(ctx, mention, problem)
        if problem is _UNKNOWN:
            # Slack may not have delivered that sentence either. An error makes it send
            # the event again.
            raise UserFacingError(NOT_RECORDED)
        return
    try:
        is_new = await ctx.service.ask_agent(
            agent,
            mention.agent_thread,
            words,
            requester=Person(team=ctx.team, user=mention.user, name=asker.name),
            origin=Origin(channel=mention.channel, thread_ts=mention.thread_ts),
            # Slack delivers an event again after a late or lost response, and a mention
            # as another event after an edit of its message.
            message_key=mention.message_key,
        )
    except TooManySpeakers:
        await _reply_once(ctx, mention, _CROWDED)
        return
    word = "asked" if is_new else "asked_before"
    logger.info("agent.%s agent=%s user=%s", word, agent, mention.user)


async def _is_late_edit(ctx: ListenerContext, mention: Mention) -> bool:
    """Inform a person who edited a message that the agent keeps the first text.

    An edit that mentions the bot for the first time asks, like a new message. The store
    no longer has the requests of very old messages, so their edits never ask.
    """
    if not mention.edited_ts:
        return False
    is_old = float(mention.edited_ts) - float(mention.ts) >= _EDITABLE_S
    if not (is_old or await ctx.service.was_asked(mention.message_key)):
        return False
    await _reply_once(ctx, mention, _EDITED)
    return True


async def _reply_once(
    ctx: ListenerContext, mention: Mention, sentence: UserText
) -> None:
    if await ctx.is_first(mention.event_id):
        _reply_later(ctx, mention, as_message(sentence))


def _problem(asker: decisions.Reviewer, agent: str, words: str) -> UserText | None:
    if asker.account is not decisions.AccountKind.MEMBER:
        return _UNKNOWN if asker.account is decisions.AccountKind.UNKNOWN else _OUTSIDER
    if not agent:
        return _NO_AGENT
    return None if words else _EMPTY


MAX_TEXT = call_form.MAX_REASON
"""Maximum characters that fit into each of the forms."""

_REGISTERED_S = 1.5
"""Time that a reply waits for its card's registration; Slack waits 3 s."""

_LOOK_EVERY_S = 0.05

_NOTHING_WAITS = template(
    "Nothing under this card waits for a decision, so I passed nothing on. To ask an "
    "agent for something new, please mention me in a new message, outside this thread."
)
_NO_TEXT: LiteralString = (
    "Write what you want to say beside my name, and I offer to pass it on. Or use the "
    "buttons on the card."
)
_SEPARATE: LiteralString = (
    "The calls of this card are requests of their own. Choose *Open a call…* on the "
    "card to say it about one of them."
)
_SEVERAL: LiteralString = (
    "The agent has several questions here, so nothing was recorded. Please press "
    "*Answer* on the card."
)
_REPLIED = template(
    "Reviewers see your reply on the card, as you wrote it first. It decides nothing, "
    "and the agent is not told."
)
_NOT_KEPT: LiteralString = (
    "Your message is not kept any more, so nothing was recorded. Please mention me "
    "again, or use the buttons on the card."
)


async def _is_reply(ctx: ListenerContext, mention: Mention) -> bool:
    """Answer a message under a card; False if it is under none."""
    if mention.thread_ts == mention.ts:
        return False
    shown = await _card_above(ctx, mention)
    if not shown:
        return False
    # Recorded before the acknowledgement: Slack repeats an answer if this process loses
    # it, and the second one changes nothing.
    answered = await _answered(ctx, mention, shown)
    # Slack delivers an event again after a late response; the private reply would
    # appear twice.
    if await ctx.is_first(mention.event_id):
        if answered is None:
            ctx.tasks.later(_offer(ctx, mention, shown), name="reply")
        else:
            _reply_later(ctx, mention, answered)
    return True


async def _card_above(ctx: ListenerContext, mention: Mention) -> str:
    """Return the id of the approval in the message above a reply; "" for none.

    Slack shows a card a moment before its registration in the store. Without the wait,
    a reply in between would ask an agent instead of answering the card.

    Raises:
        UserFacingError: Slack does not answer; the event must be repeated.
        StoreUnavailable: the store does not answer.
    """
    loop, cards = asyncio.get_running_loop(), ctx.service.store.cards
    until_s = loop.time() + _REGISTERED_S
    while True:
        shown = await cards.shown_at(ctx.keys, mention.channel, mention.thread_ts)
        is_by_another = mention.parent_user not in {"", ctx.bot_user}
        if shown or is_by_another:
            return shown
        if loop.time() >= until_s:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    try:
        return await shown_before(ctx, mention.channel, mention.thread_ts)
    except SlackError as error:
        logger.warning("card.not_looked_for ts=%s why=%s", mention.thread_ts, error)
        raise UserFacingError(NOT_RECORDED) from None


def _reply_later(ctx: ListenerContext, mention: Mention, message: Message) -> None:
    ctx.tasks.later(_reply(ctx, mention, message), name="reply")


async def _reply(ctx: ListenerContext, mention: Mention, message: Message) -> None:
    """Answer a message in its place, visible only to its author."""
    try:
        await ctx.slack.call(
            "chat.postEphemeral",
            channel=mention.channel,
            user=mention.user,
            thread_ts=mention.thread or None,
            blocks=message.blocks or None,
            text=message.text,
        )
    except SlackError as error:
        logger.warning("message.not_sent user=%s why=%s", mention.user, error)


def as_message(sentence: UserText) -> Message:
    """Make a message of one sentence."""
    return Message((), to_mrkdwn(sentence))


async def _offer(ctx: ListenerContext, mention: Mention, approval: str) -> None:
    """Offer this person to pass their text on, or tell them why not."""
    try:
        message = await _offered(ctx, mention, approval)
    except UserFacingError as error:
        message = as_message(error.message)
    except StoreUnavailable as error:
        logger.warning("thread_reply.not_offered why=%s", error)
        message = as_message(NOT_RECORDED)
    await _reply(ctx, mention, message)


async def _answered(
    ctx: ListenerContext, mention: Mention, approval: str
) -> Message | None:
    """Record a reply that is an answer; None if the card asked them nothing."""
    loaded = await ctx.service.read(approval)
    by = Person(team=ctx.team, user=mention.user)
    is_asked = loaded is not None and takes_reply(loaded.approval, by)
    if loaded is None or not (loaded.approval.is_question or is_asked):
        return None
    try:
        if is_asked:
            return await _reply_to_reviewers(ctx, mention, loaded, by)
        return await _answer_question(ctx, mention, loaded)
    except UserFacingError as error:
        return as_message(error.message)


async def _offered(ctx: ListenerContext, mention: Mention, approval_id: str) -> Message:
    """Return the options for this person's text.

    Raises:
        UserFacingError: there are none.
    """
    loaded = await ctx.service.read(approval_id)
    keys = ctx.service.store.keys_of_approval(approval_id)
    waiting = (
        [item for item in loaded.approval.items if item.is_pending] if loaded else []
    )
    if loaded is None or keys is None or not waiting:
        raise UserFacingError(_NOTHING_WAITS)
    if is_collected(loaded.approval):
        raise UserFacingError(_SEPARATE)
    words = _words(ctx, mention)
    if len(words) > MAX_TEXT:
        raise UserFacingError(
            template(
                "Your message has {n} characters, and {most} fit into a form. Please "
                "write a shorter one.",
                n=len(words),
                most=MAX_TEXT,
            )
        )
    who, allowed = (mention.user, mention.user_team), dict[int, list[Verb]]()
    refused: UserText = _NOTHING_WAITS
    for item in waiting:
        target = Target(loaded, item.index, "", keys)
        for verb in buttons.BY_VERB:
            try:
                await targets.require_permission(ctx, target, verb, who)
            except UserFacingError as error:
                refused = error.message
            else:
                allowed.setdefault(item.index, []).append(verb)
    if not allowed:
        raise UserFacingError(refused)
    # On the server and not in the button: a value has at most 2,000 characters, and the
    # client can change it.
    await ctx.service.store.cards.keep_words(
        keys, approval_id, user=mention.user, ts=mention.ts, words=words
    )
    frame = ctx.frame(loaded.approval, loaded.now_ms)
    return buttons.offer(frame, allowed, words, ts=mention.ts)


def _words(ctx: ListenerContext, mention: Mention) -> str:
    words = html.unescape(without_bot(mention.text, ctx.bot_user))
    if not words:
        raise UserFacingError(_NO_TEXT)
    return words


async def _answer_question(
    ctx: ListenerContext, mention: Mention, loaded: Loaded
) -> Message:
    """Record a reply as the answer to the one question of a card.

    Raises:
        UserFacingError: it answers none, or the person may not answer.
    """
    approval, words = loaded.approval, _words(ctx, mention)
    item = approval.items[0]
    question, *others = item.questions
    if others:
        raise UserFacingError(_SEVERAL)
    try:
        answer = questions.answer_of_reply(question, words)
    except ValueError as error:
        raise UserFacingError(label(str(error))) from None
    reviewer, voters = await ctx.deciders_of(mention.user, mention.user_team, item)
    outcome = await ctx.service.decide(
        decisions.Click(
            approval=approval.id,
            index=0,
            version=approval.version,
            action_hash=item.action_hash,
        ),
        decisions.Respond(answers=(answer,)),
        reviewer.with_(gesture=decisions.Gesture.THREAD_REPLY),
        voters=voters,
    )
    if isinstance(outcome, decisions.Invalid):
        raise UserFacingError(label(" ".join(outcome.errors.values())))
    logger.info("question.replied outcome=%s id=%s", outcome.kind, approval.id)
    return as_message(outcome_text(outcome))


async def _reply_to_reviewers(
    ctx: ListenerContext, mention: Mention, loaded: Loaded, by: Person
) -> Message:
    """Record the requester's reply to reviewers; raises `UserFacingError`."""
    words, approval = _words(ctx, mention), loaded.approval
    result: Change | Inquiry | decisions.Refusal = await ctx.service.change_own(
        approval.id, waiting_changes.reply, by, words, mention.ts
    )
    logger.info("requester.replied id=%s", approval.id)
    # An `Inquiry`: delivered again, or edited; the first text is the evidence.
    if isinstance(result, Change | Inquiry):
        return as_message(_REPLIED)
    return as_message(outcome_text(result))


@on_action(*buttons.BY_VERB.values())
async def _chosen(ctx: ListenerContext, clicked: Clicked) -> None:
    action = Action(clicked.action_id)
    verb = next(verb for verb, one in buttons.BY_VERB.items() if one is action)
    target = await targets.verify_seal(ctx, targets.sealed_value(ctx, clicked), action)
    words = await ctx.service.store.cards.kept_words(
        target.keys,
        target.approval.id,
        user=clicked.user,
        # The key of the text includes the user of this click, so a forged block id
        # cannot select another person's text.
        ts=buttons.ts_of(clicked.block_id),
    )
    if not words:
        logger.warning("click.refused why=no_words approval=%s", target.approval.id)
        raise UserFacingError(_NOT_KEPT)
    await targets.require_permission(ctx, target, verb, clicked.who)
    if verb is Verb.EDIT:
        await require_full_view(ctx, target, clicked.user)
    await targets.open_form(ctx, clicked, target, partial(_VIEWS[verb], words=words))


_VIEWS = {
    Verb.RESPOND: call_form.response_form,
    Verb.EDIT: edit.view,
    Verb.REJECT: call_form.rejection_form,
}
