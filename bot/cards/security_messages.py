"""Messages about security events."""

from __future__ import annotations

from contextlib import suppress
from typing import LiteralString

from twokey.bot.blocks import Message, context, section
from twokey.bot.objects import Block
from twokey.bot.text import fit
from twokey.bot.text_types import Ref, Template, code, label, template, untrusted
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.security import SecurityKind

SECURITY_EVENTS = frozenset({EventName.SECURITY_DETECTED})
"""Events that are posted in the channel, not in the thread of one card."""

_TEXT = "Twokey found data in its store that it could not verify."
_FOUND: dict[str, LiteralString] = {
    SecurityKind.SEAL_WRONG: "Data in the store ({about}) was not written by Twokey.",
    SecurityKind.REPLAYED: "Older data ({about}) was put back into the store.",
    SecurityKind.RECORD_FORGED: "A stored record ({about}) could not be verified.",
    SecurityKind.KEY_UNKNOWN: (
        "A call did not run: the gateway does not know the key that signed its {about}."
    ),
}
_OTHER: LiteralString = "Twokey noticed a problem ({about})."
_MORE: LiteralString = "{count} more of this kind ({about}) were found."
_HINT = (
    "Twokey refused it: no call runs because of it. You don't need to decide "
    "anything. Please tell the operator of Twokey: 'twokey security' lists what was "
    "found, and docs/operations.md says what each kind means."
)
_NAME = 200


def security_message(event: Event) -> Message:
    """Return the message about one of `SECURITY_EVENTS`.

    Names may be of those who changed the store, so they stand in plain text.
    """
    headline = section(template("🛡️ *Security event*"))
    blocks: list[Block] = [headline, section(_what(event))]
    named = [event.data.get("name", ""), event.data.get("approval", ""), event.agent]
    if any(named):
        words = " · ".join(one for one in named if one)
        blocks.append(section(untrusted(fit(words, _NAME))))
    return Message((*blocks, context(label(_HINT))), _TEXT)


def _what(event: Event) -> Template:
    count = event.data.get("count", "")
    if count.isascii() and count.isdecimal():
        return template(_MORE, count=int(count[:9]), about=_code(event.reason))
    found = _FOUND.get(event.reason, _OTHER)
    return template(found, about=_code(event.data.get("about", "")))


def _code(text: str) -> Ref:
    with suppress(ValueError):
        return code(text)
    return code("store")
