"""Messages about a failed run: one per outage, updated in place."""

from __future__ import annotations

from typing import LiteralString

from keyturn.bot.blocks import Block, Message, actions, button, context, section
from keyturn.bot.cards.refs import when
from keyturn.bot.cards.security_messages import actor_ref
from keyturn.bot.ids import Action, seal_outage
from keyturn.bot.text import Template, fit, joined, label, template, untrusted
from keyturn.gateway.approvals.events import Event, EventName

_REASON = 600

RUN_TEXTS: dict[EventName, LiteralString] = {
    EventName.RUN_WAITING: "The run waits and is retried by itself.",
    EventName.RUN_PARKED: "The run has stopped.",
    EventName.RUN_RETRIED: "The run is tried again.",
    EventName.RUN_RESUMED: "The run went on.",
    EventName.RUN_DROPPED: "The run was dropped.",
}
"""What notifications and screen readers read."""

ANNOUNCED: LiteralString = "The run came to a halt."
"""The same of the message before it says how the run stands."""

_TITLES: dict[EventName, LiteralString] = {
    EventName.RUN_WAITING: "⏳ *This run waits.*",
    EventName.RUN_PARKED: "🛑 *This run has stopped.*",
    EventName.RUN_RESUMED: "▶️ *This run went on* {at}. It stood still from {since}:",
}


def run_announced(event: Event) -> Message:
    """Return what is posted first, before it can be edited: true for ever.

    Args:
        event: one of `keyturn.gateway.approvals.events.TROUBLED_RUN`, with an outage.
    """
    since = when(_ms(event, "since_ms"))
    sentence = template("⚠️ *This run came to a halt* {since}.", since=since)
    rest = template("The result is posted here in a moment, or further below.")
    return Message((section(sentence), context(rest)), ANNOUNCED)


def run_state(event: Event, *, key: bytes, team: str) -> Message:
    """Return the message about a run that failed, as it stands after an event.

    Its reason is a sentence of the gateway that may hold the names of agents and
    threads, so it stands in plain text.

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
            return template("⏹️ *This run was dropped* by {who} {at}.", who=who, at=at)
        case EventName.RUN_DROPPED:
            return template("⏹️ *This run was dropped* {at}: nobody tried it.", at=at)
        case EventName.RUN_RESUMED:
            return template(_TITLES[event.name], at=at, since=since)
        case _:
            return template(_TITLES[event.name])


def _what_follows(event: Event) -> Template:
    since = when(_ms(event, "since_ms"))
    until_ms = _ms(event, "until_ms")
    stood_still = template("It has stood still since {since}.", since=since)
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
