"""Messages about freezes (kill switches) and paused agents."""

from __future__ import annotations

from contextlib import suppress
from typing import LiteralString

from twokey.bot.blocks import Message, box, context, rich_text, section
from twokey.bot.ids import COMMAND
from twokey.bot.objects import Block
from twokey.bot.text import excerpt, fit
from twokey.bot.text_types import Ref, code, template, untrusted, user
from twokey.gateway.approvals.events import Event, EventName

FREEZE_EVENTS = frozenset(
    {EventName.AGENT_PAUSED, EventName.FREEZE_SET, EventName.FREEZE_LIFTED}
)
"""Events that are posted in the channel, not in the thread of one card."""

_NAME = 200
_REASON = 600

_HEADLINES: dict[EventName, tuple[LiteralString, LiteralString]] = {
    EventName.AGENT_PAUSED: ("⏸️ *Paused*", "An agent is paused."),
    EventName.FREEZE_SET: ("🧊 *Frozen* by {who}", "Something is frozen."),
    EventName.FREEZE_LIFTED: (
        "▶️ *Unfrozen* by {who}",
        "Something was unfrozen.",
    ),
}
_MEANS: dict[EventName, LiteralString] = {
    EventName.AGENT_PAUSED: "Nobody is asked about its calls. To end the pause, write:",
    EventName.FREEZE_SET: (
        "Even approved calls do not start. To end the freeze, write:"
    ),
}


def freeze_message(event: Event, *, command: str = COMMAND) -> Message:
    """Return the message about one of `FREEZE_EVENTS`.

    Names and reasons may come from agents and people, so they stand in plain text.

    Args:
        event: what happened.
        command: the slash command that the app has.
    """
    headline, text = _HEADLINES[event.name]
    head = (
        template(headline)
        if _is_pause(event)
        else template(headline, who=actor_ref(event.actor))
    )
    blocks: list[Block] = [section(head), section(untrusted(fit(_what(event), _NAME)))]
    if event.reason:
        reason = excerpt(event.reason, _REASON).text
        blocks.append(rich_text(box(reason), block_id=f"freeze:{event.seq}"))
    if event.name is not EventName.FREEZE_LIFTED:
        blocks.append(_hint(event, command))
    return Message(tuple(blocks), text)


def scope_of(event: Event) -> tuple[str, str]:
    """Return the scope of one of `FREEZE_EVENTS`: agent, tool or tenant, and a name."""
    if event.tool and not _is_pause(event):
        return "tool", event.tool
    return ("agent", event.agent) if event.agent else ("tenant", "")


def actor_ref(actor: str) -> Ref:
    """Mention the Slack user who did it, or show the name of a command-line user."""
    _, _, person = actor.partition("/")
    # "T0/U0ANA" by Slack, "cli/ana" by the command line; anything else is
    # "somebody".
    for ref, text in ((user, person), (code, actor)):
        with suppress(ValueError):
            return ref(text)
    return code("somebody")


def _is_pause(event: Event) -> bool:
    return event.name is EventName.AGENT_PAUSED


def _what(event: Event) -> str:
    kind, name = scope_of(event)
    return f"The {kind} {name}" if name else "Everything"


def _hint(event: Event, command: str) -> Block:
    kind, name = scope_of(event)
    what = f"{kind} {name}" if name else "everything"
    lifting = fit(f"{command} unfreeze {what}", _NAME)
    return context(template(_MEANS[event.name]), untrusted(lifting))
