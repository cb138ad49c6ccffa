"""Pass a person's message on to an agent."""

from __future__ import annotations

import hashlib
import html
import logging
import re
from dataclasses import dataclass

from bot import payload
from bot.blocks import template
from bot.desk import Desk, Said, spoken
from bot.listeners.doors import Doors
from bot.payload import Json, Mention
from bot.web import SlackError
from gateway.approvals.decisions import Reviewer, Standing
from gateway.approvals.record import Origin, Person
from gateway.errors import StoreUnavailable

logger = logging.getLogger(__name__)

_EMPTY = template(
    "Tell me what to do, such as: `refund order 78291`. The first word may name the "
    "agent that I should ask."
)
_NO_AGENT = template(
    "No agent is set up here, so there is nobody to ask. Whoever runs the gateway "
    "names agents in its settings."
)


_NOT_KEPT_YET = template(
    "The gateway cannot keep anything right now. Slack repeats your message for a few "
    "minutes; if nothing is said here by then, please ask again."
)
_OUTSIDER = template("Only members of this workspace can ask an agent.")
_UNKNOWN = template(
    "Slack did not say who you are, so nothing was done. Please try again in a moment."
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which agent is asked, and what."""

    agent: str
    text: str


def register(doors: Doors) -> None:
    """Answer mentions in channels and lines in the bot's own chat."""
    doors.on_event("app_mention", _mentioned)
    doors.on_event("message", _mentioned)


def asked(
    text: str, *, bot_user: str, agents: tuple[str, ...], default_agent: str
) -> Asked:
    """Read which agent a message is for; its first word may name one.

    Args:
        text: as Slack sends it: with mentions as ids, and & < > escaped.
        bot_user: the bot's own id; its mentions are no part of the message.
        agents: the names that are known.
        default_agent: who is asked when no name comes first.
    """
    said = re.sub(rf"<@{re.escape(bot_user)}(\|[^>]*)?>", " ", text).strip()
    first, _, rest = said.partition(" ")
    named = {agent.lower(): agent for agent in agents}
    agent = named.get(first.rstrip(":,").lower())
    words = said if agent is None else rest.strip()
    return Asked(agent or default_agent, html.unescape(words))


async def _mentioned(desk: Desk, body: Json) -> None:
    said = payload.mention(body)
    if said is None or said.user == desk.bot_user or said.team != desk.team:
        return
    config = desk.config
    wanted = asked(
        said.text,
        bot_user=desk.bot_user,
        agents=config.agents,
        default_agent=config.default_agent,
    )
    asker = await desk.reviewers.resolve(said.user, user_team=said.user_team)
    problem = _problem(asker, wanted)
    if problem is not None:
        if await _is_first(desk, said.event_id):
            desk.tasks.later(_tell(desk, said, problem), name="tell")
        return
    try:
        is_new = await desk.service.ask_agent(
            wanted.agent,
            f"slack:{said.team}:{said.channel}:{said.thread_ts}",
            wanted.text,
            requester=Person(team=desk.team, user=said.user, name=asker.name),
            origin=Origin(channel=said.channel, thread_ts=said.thread_ts),
            # Slack delivers an event again when our answer was late or lost.
            once=f"event:{said.event_id}",
        )
    except StoreUnavailable:
        desk.tasks.later(_tell(desk, said, _NOT_KEPT_YET), name="tell")
        raise
    word = "asked" if is_new else "asked_before"
    logger.info("agent.%s agent=%s user=%s", word, wanted.agent, said.user)


def _problem(asker: Reviewer, wanted: Asked) -> Said | None:
    if asker.standing is not Standing.MEMBER:
        return _UNKNOWN if asker.standing is Standing.UNKNOWN else _OUTSIDER
    if not wanted.agent:
        return _NO_AGENT
    return None if wanted.text else _EMPTY


async def _is_first(desk: Desk, event_id: str) -> bool:
    # Slack delivers an event again, signed anew, when our answer was late or lost.
    name = f"event:{event_id}".encode()
    digest = f"sha256:{hashlib.sha256(name).hexdigest()}"
    return await desk.service.store.cards.is_first(desk.keys, digest)


async def _tell(desk: Desk, said: Mention, sentence: Said) -> None:
    try:
        await desk.slack.call(
            "chat.postEphemeral",
            channel=said.channel,
            user=said.user,
            thread_ts=said.thread_ts if said.thread_ts != said.ts else None,
            text=spoken(sentence),
        )
    except SlackError as error:
        logger.warning("person.untold user=%s why=%s", said.user, error)
