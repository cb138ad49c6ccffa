"""Ask an agent: handle app mentions, direct messages, edits and deletions."""

from __future__ import annotations

import html
import logging
from dataclasses import dataclass
from datetime import timedelta

from keyturn.bot.listener_context import (
    ListenerContext,
    UserFacingError,
    UserText,
    to_mrkdwn,
)
from keyturn.bot.listeners import message_events
from keyturn.bot.listeners.message_events import Mention, Message
from keyturn.bot.listeners.router import NOT_RECORDED, Router
from keyturn.bot.listeners.thread_reply import (
    as_message,
    handle_thread_reply,
    reply_privately,
)
from keyturn.bot.payload import BadPayload, Json
from keyturn.bot.text import template
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.errors import StoreUnavailable, TooManySpeakers
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.store.keys import MESSAGE_LIFETIME

logger = logging.getLogger(__name__)

_EMPTY = template(
    "Tell me what to do, such as: `refund order 78291`. The first word may name the "
    "agent that I should ask."
)
_NO_AGENT = template(
    "No agent is set up here. The gateway's operator can add one in its settings."
)
_ASKED_BEFORE = template(
    "The agent has your message as it was before, and editing it changes nothing. To "
    "ask for something else, please write a new message."
)
_TOO_OLD = template(
    "This message is too old to ask the agent by editing it, so nothing was asked. "
    "Please write a new message."
)
_DELETED = template(
    "You deleted a message that the agent has already read. That stops nothing: calls "
    "that wait for approval still wait. A reviewer can reject them."
)
# A day less than the store remembers a message: an edit near the end could otherwise
# ask a second time.
_EDITABLE_S = (MESSAGE_LIFETIME - timedelta(days=1)).total_seconds()
_NOT_KEPT_YET = template(
    "The gateway cannot keep anything right now. Slack repeats your message for a few "
    "minutes; if nothing is said here by then, please ask again."
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


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """Which agent is asked, and what."""

    agent: str
    text: str


def register(router: Router) -> None:
    """Answer app mentions in channels and direct messages to the bot.

    For a mention in a channel Slack may send both events: `message_events.mention`
    reads the ``message`` of direct messages alone.
    """
    router.on_event("app_mention", _mentioned)
    router.on_event("message", _mentioned)


def parse_request(
    text: str, *, bot_user: str, agents: tuple[str, ...], default_agent: str
) -> AgentRequest:
    """Read which agent a message is for; its first word may name one.

    Args:
        text: as Slack sends it: with mentions as ids, and & < > escaped.
        bot_user: the bot's own id; its mentions are not part of the message.
        agents: the names that are known.
        default_agent: who is asked when no name comes first.
    """
    mention = message_events.without_bot(text, bot_user)
    first, _, rest = mention.partition(" ")
    named = {agent.lower(): agent for agent in agents}
    agent = named.get(first.rstrip(":,").lower())
    words = mention if agent is None else rest.strip()
    return AgentRequest(agent or default_agent, html.unescape(words))


async def _mentioned(ctx: ListenerContext, body: Json) -> None:
    gone = message_events.deleted_message(body)
    if gone is not None:
        await _deleted(ctx, gone)
        return
    mention = message_events.mention(body)
    # The bot's own messages come as events, too; one would ask an agent with the
    # agent's answer.
    if mention is None or mention.user == ctx.bot_user or mention.team != ctx.team:
        return
    # Under a card first: the person there answers the card, and must not become the
    # requester of a new run, who may not decide.
    if await handle_thread_reply(ctx, mention) or await _refused_edit(ctx, mention):
        return
    await _ask(ctx, mention)


async def _ask(ctx: ListenerContext, mention: Mention) -> None:
    config = ctx.config
    wanted = parse_request(
        mention.text,
        bot_user=ctx.bot_user,
        agents=config.agents,
        default_agent=config.default_agent,
    )
    asker = await ctx.reviewers.resolve(mention.user, user_team=mention.user_team)
    problem = _problem(asker, wanted)
    if problem is not None:
        await _reply_once(ctx, mention, problem)
        if problem is _UNKNOWN:
            # Slack may not have delivered that sentence either. An error makes it send
            # the event again.
            raise UserFacingError(NOT_RECORDED)
        return
    try:
        is_new = await ctx.service.ask_agent(
            wanted.agent,
            mention.agent_thread,
            wanted.text,
            requester=Person(team=ctx.team, user=mention.user, name=asker.name),
            origin=Origin(channel=mention.channel, thread_ts=mention.thread_ts),
            # Slack delivers an event again when our answer was late or lost, and a
            # mention as another event when its message was edited.
            message_key=mention.message_key,
        )
    except StoreUnavailable:
        ctx.tasks.later(
            reply_privately(ctx, mention, as_message(_NOT_KEPT_YET)), name="reply"
        )
        raise
    except TooManySpeakers:
        await _reply_once(ctx, mention, _CROWDED)
        return
    if mention.edited_ts and not is_new:
        await _reply_once(ctx, mention, _ASKED_BEFORE)
    word = "asked" if is_new else "asked_before"
    logger.info("agent.%s agent=%s user=%s", word, wanted.agent, mention.user)


async def _refused_edit(ctx: ListenerContext, mention: Mention) -> bool:
    """Tell a person who edited a message that the agent keeps the first text.

    An edit that mentions the bot for the first time asks, as a new message does.
    """
    if not mention.edited_ts:
        return False
    if await _was_asked(ctx, mention.message_key):
        await _reply_once(ctx, mention, _ASKED_BEFORE)
        return True
    if _seconds(mention.edited_ts) - _seconds(mention.ts) < _EDITABLE_S:
        return False
    # Whether so old a message asked before is not known any more.
    await _reply_once(ctx, mention, _TOO_OLD)
    return True


async def _deleted(ctx: ListenerContext, gone: Message) -> None:
    if gone.team != ctx.team or not await _was_asked(ctx, gone.message_key):
        return
    if await ctx.is_first(gone.event_id):
        reply = ctx.send(
            "chat.postMessage",
            to=gone.user,
            channel=gone.channel,
            thread_ts=gone.thread_ts,
            text=to_mrkdwn(_DELETED),
        )
        ctx.tasks.later(reply, name="reply")


async def _was_asked(ctx: ListenerContext, message_key: str) -> bool:
    return await ctx.service.was_asked(message_key)


def _seconds(ts: str) -> float:
    try:
        return float(ts)
    except ValueError:
        raise BadPayload("event.ts", "is not a time stamp") from None


async def _reply_once(
    ctx: ListenerContext, mention: Mention, sentence: UserText
) -> None:
    if await ctx.is_first(mention.event_id):
        ctx.tasks.later(
            reply_privately(ctx, mention, as_message(sentence)), name="reply"
        )


def _problem(asker: Reviewer, wanted: AgentRequest) -> UserText | None:
    if asker.account is not AccountKind.MEMBER:
        return _UNKNOWN if asker.account is AccountKind.UNKNOWN else _OUTSIDER
    if not wanted.agent:
        return _NO_AGENT
    return None if wanted.text else _EMPTY
