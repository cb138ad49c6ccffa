"""Messages that belong to no card: about freezes, security events and agents' runs.

A failed run has one message per outage, which is updated in place.
"""

from __future__ import annotations

from contextlib import suppress
from typing import LiteralString

from keyturn.bot.blocks import Block, Message, actions, button, context, quote, section
from keyturn.bot.cards.refs import when
from keyturn.bot.ids import COMMAND, Action, seal_outage
from keyturn.bot.text import (
    Ref,
    Template,
    chunks,
    code,
    excerpt,
    fit,
    joined,
    label,
    template,
    untrusted,
    user,
)
from keyturn.gateway.approvals.events import Event, EventName, SecurityKind

SECURITY_EVENTS = frozenset({EventName.SECURITY_DETECTED})
"""Events that are posted in the channel, not in the thread of one card."""

_TEXT = "Keyturn found data in its store that it could not verify."
_FOUND: dict[str, LiteralString] = {
    SecurityKind.SEAL_WRONG: "Data in the store ({about}) was changed outside Keyturn.",
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
        blocks.append(quote(event.reason, _REASON))
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
    return template(sentence + " (its requester and the reviewers of its calls may).")


def _ms(event: Event, name: str) -> int:
    text = event.data.get(name, "")
    # Events of other kinds have no such field.
    return int(text) if text.isdigit() else 0


_MAX_ANSWER = 8_000
_MAX_QUESTION = 3_000
_SECTION = 2_800
_HOW: LiteralString = "The agent's operator can answer in the agent's own program."


def agent_answer(text: str) -> Message:
    """Return an agent's answer at the end of a run: untrusted, so plain text.

    A text too long for one message is cut in the middle, with a mark.
    """
    parts = chunks(excerpt(text, _MAX_ANSWER).text, _SECTION)
    return Message(
        blocks=tuple(section(untrusted(part)) for part in parts),
        text="The agent answered.",
    )


def no_answer() -> Message:
    """Return the message about a run that ended without an answer.

    A model may end with an empty text, or with an unreadable call.
    """
    sentence = template(
        "The agent ended without an answer. Write to it here to ask what it did, or to "
        "go on."
    )
    return Message((section(sentence),), "The agent ended without an answer.")


def shortened(message: Message) -> Message:
    """Return the replacement of a message that Slack refuses.

    Shortening it again changes nothing.
    """
    sentence = template("Slack refuses the rest of this message, so it is not shown.")
    said = untrusted(excerpt(message.text, _SECTION).text)
    return Message((section(said), section(sentence)), message.text)


def corrupt_record(approval_id: str) -> Message:
    """Return the reply under a card whose record is corrupt, and thus void."""
    sentence = template(
        "⚠️ The record of {id} is corrupt, so none of its calls can be decided or "
        "run, even if the card says otherwise. The agent is told. Please ask the "
        "gateway's operator to check who else writes to its store.",
        id=code(approval_id),
    )
    text = "The record of an approval is corrupt, so nothing of it runs."
    return Message((section(sentence),), text)


def run_failed() -> Message:
    """Return the message about an agent that could not be resumed after a decision."""
    sentence = template(
        "⚠️ The agent could not be resumed, and the gateway stopped trying. The "
        "decision is kept. Please tell the operator of the agent."
    )
    return Message((section(sentence),), "The agent could not be resumed.")


def question_message(event: Event) -> Message | None:
    """Return the message about another library's question, or about its end."""
    is_end = event.data.get("ends") == "ended"
    if event.name is EventName.RUN_UNANSWERED:
        return _unanswered(is_end=is_end)
    text = event.data.get("text")
    if not text:
        return None
    until_ms = int(event.data.get("until_ms") or 0)
    return _unanswerable(text, until_ms=until_ms, is_end=is_end)


def _unanswerable(text: str, *, until_ms: int, is_end: bool) -> Message:
    """Return the message about a question, whose text is untrusted."""
    head = template("❓ The agent asks something that cannot be answered in Slack:")
    parts = chunks(excerpt(text, _MAX_QUESTION).text, _SECTION)
    ends: LiteralString = "the run ends" if is_end else "the agent continues"
    fmt: LiteralString = _HOW + " Without an answer by {at}, " + ends + "."
    note = context(template(fmt, at=when(until_ms)))
    blocks = (section(head), *(section(untrusted(one)) for one in parts), note)
    return Message(blocks, "The agent asks something that cannot be answered in Slack.")


def _unanswered(*, is_end: bool) -> Message:
    if is_end:
        sentence = template(
            "⌛ The run ended: nobody answered the agent's question in time. Calls "
            "that had not run will not run. To continue, write here again."
        )
        return Message(
            (section(sentence),), "Nobody answered in time, so the run ended."
        )
    sentence = template(
        "⌛ Nobody answered the agent's question in time. The agent was told so, and "
        "what it asked about did not run."
    )
    return Message(
        (section(sentence),), "Nobody answered the agent's question in time."
    )
