"""Messages that belong to no card: about freezes, security events and agents' runs.

A failed run has one message per outage, which is updated in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    Message,
    actions,
    button,
    confirm,
    context,
    notes,
    quote,
    rich_text,
    said,
    section,
    titled,
)
from keyturn.bot.cards.refs import actor, agent_ref, when
from keyturn.bot.ids import COMMAND, Action, seal_name
from keyturn.bot.text import (
    LINE,
    NAME,
    TEXT,
    Ref,
    Template,
    chunks,
    code,
    excerpt,
    fit,
    joined,
    label,
    on_one_line,
    spoken,
    template,
    untrusted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.sandbox.blockkit import limits

_HINT = (
    "No call runs because of it. Please tell the operator of Keyturn: 'keyturn "
    "security' lists what was found, and docs/failures.md explains each kind."
)


def security_message(event: Event) -> Message:
    """Return the message about a security event.

    Names may come from an intruder in the store, so they are plain text.
    """
    kind, about = _code(event.reason), _code(event.data.get("about", ""))
    found = template("🛡️ *Security event:* {kind} ({about}).", kind=kind, about=about)
    count = event.data.get("count", "")
    if count.isascii() and count.isdecimal():
        more = int(count[:9])
        found = template("🛡️ *Security events:* {n} more of {kind}.", n=more, kind=kind)
    named = [event.data.get("name", ""), event.data.get("approval", ""), event.agent]
    words = " · ".join(filter(None, named))
    names = [section(untrusted(fit(words, LINE)))] if words else []
    return said(found, *names, context(label(_HINT)))


def _code(text: str) -> Ref:
    with suppress(ValueError):
        return code(text)
    return code("store")


_HEADLINES: dict[EventName, LiteralString] = {
    EventName.AGENT_PAUSED: "⏸️ *Paused* after many rejections.",
    EventName.FREEZE_SET: "🧊 *Frozen* by {who}.",
    EventName.FREEZE_LIFTED: "▶️ *Unfrozen* by {who}.",
}
FREEZE_EVENTS = frozenset({EventName.AGENT_FLOODS, *_HEADLINES})
"""Events that are posted in the channel, not in the thread of one card."""

_MEANS: dict[EventName, LiteralString] = {
    EventName.AGENT_PAUSED: (
        "No cards are posted for its calls. To end the pause, write:"
    ),
    EventName.FREEZE_SET: (
        "Nothing starts, not even approved calls. To end the freeze, write:"
    ),
}


def freeze_message(event: Event, *, command: str = COMMAND) -> Message:
    """Return the message about a freeze, its end, or a pause.

    Names and reasons may come from agents and people, so they are plain text.

    Args:
        event: the freeze or pause.
        command: the app's slash command.
    """
    headline = _HEADLINES[event.name]
    by: dict[str, Ref] = {}
    if "{who}" in headline:
        by["who"] = actor(event.actor)
    kind, name = scope_of(event)
    what = f"The {kind} {name}" if name else "Everything"
    more = [section(untrusted(fit(what, LINE)))]
    if event.reason:
        more.append(quote(event.reason, TEXT))
    if event.name in _MEANS:
        lifted = f"{kind} {name}" if name else "everything"
        lifting = fit(f"{command} unfreeze {lifted}", LINE)
        more.append(context(untrusted(f"{_MEANS[event.name]} {lifting}")))
    return said(template(headline, **by), *more)


_KINDS = 10
"""Maximum number of tools in the message about a flood."""

_FLOOD = template(
    "Further calls share cards, up to 50 of a tool on each, without notifications. "
    "Escalated calls still have separate cards. With *Review together* on Home, you "
    "can decide many calls of one tool at once."
)


def flood_message(
    event: Event, waiting: Mapping[str, int], elsewhere: int, *, key: bytes, team: str
) -> Message:
    """Return the message about an agent that floods people.

    It has no button if the agent's name is too long for one. The spoken text does not
    name the agent: Slack would interpret parts of the name there.

    Args:
        event: the flood.
        waiting: the number of the agent's waiting calls by tool, in this channel.
        elsewhere: number of those in other channels.
        key: seals the button.
        team: the workspace.
    """
    agent, named = agent_ref(event.agent)
    many: LiteralString = (
        "🌊 *Many requests:* {agent} sent at least {n} in ten minutes."
    )
    n = _ms(event, "requests")
    rows = [
        f"{count} × {fit(on_one_line(tool), NAME)}"
        for tool, count in sorted(waiting.items(), key=lambda row: (-row[1], row[0]))
    ]
    if len(rows) > _KINDS:
        rows[_KINDS:] = [f"… and {len(rows) - _KINDS} more tools"]
    if elsewhere:
        rows.append(f"{elsewhere} in other channels")
    listed = [rich_text(*titled("Waiting calls:", "\n".join(rows)))] if rows else []
    value = seal_name(event.agent, key=key, team=team, purpose=Action.FREEZE_AGENT)
    question = confirm(
        label("Freeze the agent?"),
        label("None of its calls starts until someone ends the freeze."),
        yes=label("Freeze"),
    )
    freeze = button(
        Action.FREEZE_AGENT,
        label("Freeze agent"),
        value=value,
        style="danger",
        confirm=question,
    )
    has_button = len(value) <= limits.BUTTON_VALUE
    head = section(template(many, agent=agent, n=n))
    foot = [context(_FLOOD), *([actions(freeze)] if has_button else [])]
    unnamed = template(many, agent=template("an agent"), n=n)
    return Message((head, *notes(named), *listed, *foot), spoken(unnamed))


def scope_of(event: Event) -> tuple[str, str]:
    """Return the scope of one of `FREEZE_EVENTS`: agent, tool or tenant, and a name."""
    of_agents = {EventName.AGENT_FLOODS, EventName.AGENT_PAUSED}
    if event.tool and event.name not in of_agents:
        return "tool", event.tool
    return ("agent", event.agent) if event.agent else ("tenant", "")


def run_announced(event: Event) -> Message:
    """Return the first message, before it can be edited: its text stays true.

    Args:
        event: one of `keyturn.gateway.approvals.events.TROUBLED_RUN`, with an outage.
    """
    since = when(_ms(event, "since_ms"))
    sentence = template("⚠️ *The run came to a halt* {since}.", since=since)
    rest = template("The result is posted here in a moment, or further below.")
    return said(sentence, context(rest))


def run_state(event: Event, *, key: bytes, team: str) -> Message:
    """Return the message about a failed run, after an event.

    Its reason is a sentence of the gateway that may contain the names of agents and
    threads, so it is plain text.

    Args:
        event: one of `keyturn.gateway.approvals.events.TROUBLED_RUN`, with an outage.
        key: seals the button.
        team: the workspace.
    """
    title, rest = _told(event)
    more: list[Block] = []
    if event.reason:
        more.append(section(untrusted(fit(event.reason, TEXT))))
    more.append(context(joined(" ", [rest, _KEPT])))
    if event.name is EventName.RUN_PARKED:
        outage = event.data["outage"]
        value = seal_name(outage, key=key, team=team, purpose=Action.TRY_AGAIN)
        again = button(Action.TRY_AGAIN, label("Try again"), value=value)
        more.append(actions(again))
    return said(title, *more)


_KEPT = template(
    "What people decide is kept. An approved call that Keyturn ran does not run again."
)


def _told(event: Event) -> tuple[Template, Template]:
    """Return the state of a failed run, and what follows."""
    since, at = when(_ms(event, "since_ms")), when(event.at_ms)
    who = actor(event.actor)
    match event.name:
        case EventName.RUN_WAITING:
            title = template("⏳ *The run waits.* No progress since {at}.", at=since)
            rest = template("It goes on when a process can run it.")
            if until_ms := _ms(event, "until_ms"):
                until = when(until_ms)
                rest = template("It is retried by itself until {at}.", at=until)
        case EventName.RUN_PARKED:
            stopped: LiteralString = "🛑 *The run has stopped.* No progress since {at}."
            title, rest = template(stopped, at=since), _if_parked(event)
        case EventName.RUN_RETRIED:
            title = template("🔁 *Tried again* for {who} {at}.", who=who, at=at)
            rest = template("This message will show the result.")
        case EventName.RUN_DROPPED:
            title = template("⏹️ *The run was dropped* {at}.", at=at)
            if event.actor:
                dropped: LiteralString = "⏹️ *The run was dropped* by {who} {at}."
                title = template(dropped, who=who, at=at)
            rest = template("It is not retried. A new message begins a new run.")
        case _:
            title = template("▶️ *The run continued* {at}.", at=at)
            rest = template("No progress from {since}.", since=since)
    return title, rest


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
_UNANSWERED: LiteralString = (
    "⌛ The agent got no answer to its question: nobody answered in time, or it takes "
    "no such answer. The run ended, and calls that had not run will not run. To "
    "continue, write here again."
)


def agent_answer(text: str) -> Message:
    """Return an agent's answer at the end of a run: untrusted, so plain text.

    A text too long for one message is cut in the middle, with a mark.
    """
    parts = chunks(excerpt(text, _MAX_ANSWER), _SECTION)
    return Message(
        blocks=tuple(section(untrusted(part)) for part in parts),
        text="The agent answered.",
    )


def no_answer() -> Message:
    """Return the message about a run that ended without an answer.

    A model may end with an empty text, or with an unreadable call.
    """
    return said(
        template(
            "The agent ended without an answer. Write to it here to ask what it did, "
            "or to go on."
        )
    )


def shortened(message: Message) -> Message:
    """Return the replacement of a message that Slack refuses.

    Shortening it again changes nothing.
    """
    sentence = template("Slack refuses the rest of this message, so it is not shown.")
    said = untrusted(excerpt(message.text, _SECTION))
    return Message((section(said), section(sentence)), message.text)


def corrupt_record(approval_id: str) -> Message:
    """Return the reply under a card whose record is corrupt, and thus void."""
    sentence = template(
        "⚠️ The record of this approval is corrupt, so none of its calls can be decided "
        "or run, even if the card says otherwise. The agent is told. Please ask the "
        "gateway's operator to check who else writes to its store."
    )
    return said(sentence, context(template("{id}", id=code(approval_id))))


def run_failed() -> Message:
    """Return the message about an agent that could not be resumed after a decision."""
    return said(
        template(
            "⚠️ The agent could not be resumed, and the gateway stopped trying. The "
            "decision is kept. Please tell the operator of the agent."
        )
    )


def question_message(event: Event) -> Message | None:
    """Return the message about another library's question, or about its end."""
    if event.name is EventName.RUN_UNANSWERED:
        return said(template(_UNANSWERED))
    text = event.data.get("text")
    if not text:
        return None
    # Untrusted.
    parts = chunks(excerpt(text, _MAX_QUESTION), _SECTION)
    at = when(int(event.data.get("until_ms") or 0))
    note = template(_HOW + " Without an answer by {at}, the run ends.", at=at)
    head = template("❓ The agent asks something that cannot be answered in Slack.")
    return said(head, *(section(untrusted(one)) for one in parts), context(note))
