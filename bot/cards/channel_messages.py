"""Messages about freezes, paused agents, security events and failed runs.

A failed run has one message per outage, which is updated in place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    actions,
    box,
    button,
    context,
    rich_text,
    section,
)
from keyturn.bot.cards.refs import when
from keyturn.bot.ids import COMMAND, Action, seal_outage
from keyturn.bot.text import (
    Ref,
    Template,
    code,
    excerpt,
    fit,
    joined,
    label,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.security import SecurityKind

SECURITY_EVENTS = frozenset({EventName.SECURITY_DETECTED})
"""Events that are posted in the channel, not in the thread of one card."""

_TEXT = "Keyturn found data in its store that it could not verify."
_FOUND: dict[str, LiteralString] = {
    SecurityKind.SEAL_WRONG: "Data in the store ({about}) was not written by Keyturn.",
    SecurityKind.REPLAYED: "Older data ({about}) was put back into the store.",
    SecurityKind.RECORD_FORGED: "A stored record ({about}) could not be verified.",
    SecurityKind.KEY_UNKNOWN: (
        "A call did not run: the gateway does not know the key that signed its {about}."
    ),
}
_OTHER: LiteralString = "Keyturn noticed a problem ({about})."
_MORE: LiteralString = "{count} more of this kind ({about}) were found."
_HINT = (
    "Keyturn refused it: no call runs because of it. You don't need to decide "
    "anything. Please tell the operator of Keyturn: 'keyturn security' lists what was "
    "found, and docs/failures.md explains each kind."
)
_LONGEST_NAME = 200


def security_message(event: Event) -> Message:
    """Return the message about one of `SECURITY_EVENTS`.

    Names may come from an intruder in the store, so they are plain text.
    """
    headline = section(template("🛡️ *Security event*"))
    blocks: list[Block] = [headline, section(_what_happened(event))]
    named = [event.data.get("name", ""), event.data.get("approval", ""), event.agent]
    if any(named):
        words = " · ".join(one for one in named if one)
        blocks.append(section(untrusted(fit(words, _LONGEST_NAME))))
    return Message((*blocks, context(label(_HINT))), _TEXT)


def _what_happened(event: Event) -> Template:
    count = event.data.get("count", "")
    if count.isascii() and count.isdecimal():
        return template(_MORE, count=int(count[:9]), about=_code(event.reason))
    found = _FOUND.get(event.reason, _OTHER)
    return template(found, about=_code(event.data.get("about", "")))


def _code(text: str) -> Ref:
    with suppress(ValueError):
        return code(text)
    return code("store")


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
    EventName.AGENT_PAUSED: (
        "No cards are posted for its calls. To end the pause, write:"
    ),
    EventName.FREEZE_SET: (
        "Nothing starts, not even approved calls. To end the freeze, write:"
    ),
}


def freeze_message(event: Event, *, command: str = COMMAND) -> Message:
    """Return the message about one of `FREEZE_EVENTS`.

    Names and reasons may come from agents and people, so they are plain text.

    Args:
        event: the freeze or pause.
        command: the app's slash command.
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
        blocks.append(rich_text(box(reason)))
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
    # "T0/U0ANA" by Slack, "cli/ana" by the command line; other names are shown as
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
    return context(untrusted(f"{_MEANS[event.name]} {lifting}"))


RUN_TEXTS: dict[EventName, LiteralString] = {
    EventName.RUN_WAITING: "The run waits and is retried by itself.",
    EventName.RUN_PARKED: "The run has stopped.",
    EventName.RUN_RETRIED: "The run is tried again.",
    EventName.RUN_RESUMED: "The run continued.",
    EventName.RUN_DROPPED: "The run was dropped.",
}
"""Text for notifications and screen readers."""

ANNOUNCED: LiteralString = "The run came to a halt."
"""The same text for the first message, before the run's state is known."""

_TITLES: dict[EventName, LiteralString] = {
    EventName.RUN_WAITING: "⏳ *The run waits.*",
    EventName.RUN_PARKED: "🛑 *The run has stopped.*",
    EventName.RUN_RESUMED: "▶️ *The run continued* {at}. No progress from {since}:",
}


def run_announced(event: Event) -> Message:
    """Return the first message, before it can be edited: its text stays true.

    Args:
        event: one of `keyturn.gateway.approvals.events.TROUBLED_RUN`, with an outage.
    """
    since = when(_ms(event, "since_ms"))
    sentence = template("⚠️ *The run came to a halt* {since}.", since=since)
    rest = template("The result is posted here in a moment, or further below.")
    return Message((section(sentence), context(rest)), ANNOUNCED)


def run_state(event: Event, *, key: bytes, team: str) -> Message:
    """Return the message about a failed run, after an event.

    Its reason is a sentence of the gateway that may contain the names of agents and
    threads, so it is plain text.

    Args:
        event: one of `keyturn.gateway.approvals.events.TROUBLED_RUN`, with an outage.
        key: seals the button.
        team: the workspace.
    """
    blocks: list[Block] = [section(_title(event))]
    if event.reason:
        blocks.append(section(untrusted(fit(event.reason, _REASON))))
    blocks.append(context(_what_follows(event)))
    if event.name is EventName.RUN_PARKED:
        outage = event.data["outage"]
        value = seal_outage(outage, key=key, team=team, purpose=Action.TRY_AGAIN)
        again = button(Action.TRY_AGAIN, label("Try again"), value=value)
        blocks.append(actions(again))
    return Message(tuple(blocks), RUN_TEXTS[event.name])


def _title(event: Event) -> Template:
    since, at = when(_ms(event, "since_ms")), when(event.at_ms)
    match event.name:
        case EventName.RUN_RETRIED:
            who = actor_ref(event.actor)
            return template("🔁 *Tried again* for {who} {at}. Before:", who=who, at=at)
        case EventName.RUN_DROPPED if event.actor:
            who = actor_ref(event.actor)
            return template("⏹️ *The run was dropped* by {who} {at}.", who=who, at=at)
        case EventName.RUN_DROPPED:
            return template("⏹️ *The run was dropped* {at}: nobody tried it.", at=at)
        case EventName.RUN_RESUMED:
            return template(_TITLES[event.name], at=at, since=since)
        case _:
            return template(_TITLES[event.name])


def _what_follows(event: Event) -> Template:
    since = when(_ms(event, "since_ms"))
    until_ms = _ms(event, "until_ms")
    stood_still = template("No progress since {since}.", since=since)
    kept = template(
        "What people decide is kept, and an approved call that ran does not run again."
    )
    match event.name:
        case EventName.RUN_WAITING if until_ms:
            rest = template(
                "It is retried by itself until {until}.", until=when(until_ms)
            )
        case EventName.RUN_WAITING:
            rest = template("It goes on when a process can run it.")
        case EventName.RUN_PARKED:
            return joined(" ", [stood_still, _if_parked(event), kept])
        case EventName.RUN_RETRIED:
            rest = template("This message will show the result.")
        case EventName.RUN_DROPPED:
            return template("It is not retried. A new message begins a new run.")
        case _:
            return kept
    return joined(" ", [stood_still, rest, kept])


def _if_parked(event: Event) -> Template:
    can_pass = event.data.get("can_pass") == "1"
    sentence: LiteralString = (
        "It is retried when its gateway starts again, or by *Try again*"
        if can_pass
        else "It is not retried by itself. Once the cause is fixed, press *Try again*"
    )
    return joined(
        "",
        [
            template(sentence),
            template(" (its requester and the reviewers of its calls may)."),
        ],
    )


def _ms(event: Event, name: str) -> int:
    text = event.data.get(name, "")
    # Events of other kinds have no such field.
    return int(text) if text.isdigit() else 0
