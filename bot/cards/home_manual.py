"""Explain at the end of the Home tab how approvals work."""

from __future__ import annotations

from typing import LiteralString

from twokey.bot.blocks import divider, header, section
from twokey.bot.objects import Block
from twokey.bot.text_types import (
    Label,
    Template,
    channel,
    label,
    slash_command,
    template,
)

_HOW: LiteralString = (
    "When an agent wants to do something that needs a person, a card shows exactly "
    "what would run. It runs only if somebody who may decide approves it: once, and as "
    "shown.\n"
    "*Approve* runs it as shown. *Edit* lets you change it first. *Reject* runs "
    "nothing and tells the agent why. *Respond* runs nothing and gives the agent your "
    "answer.\n"
    "*I'm on it* tells the others that you look at it. *More time* lets it wait "
    "longer. *Ask the requester…* asks the person for whom the agent works; the card "
    "stays open. `{command} delegate @colleague 4h` lets somebody decide in your "
    "place while you are away. `{command} help` names the other commands."
)


def manual(place: str, command: str) -> list[Block]:
    """Return the text for a place where cards appear and the slash command."""
    return [
        divider(),
        header(label("How approvals work")),
        section(template(_HOW, command=slash_command(command))),
        section(_where(place)),
    ]


def _where(place: str) -> Template | Label:
    if place.startswith("#"):
        return label(f"Cards appear in {place}, unless the policy names another place.")
    return template(
        "Cards appear in {where}, unless the policy names another place.",
        where=channel(place),
    )
