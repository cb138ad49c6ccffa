"""Bind the business state that a call depends on into its action hash.

The author of a tool names the state that must not change between the request and the
run: the version of an order, a balance, an ETag. The document holds it as the member
`MEMBER`, so the action hash covers it: a vote is for one action in one state.
"""

from __future__ import annotations

from pydantic import JsonValue

from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import parse_object

MEMBER = "state"
MAX_BYTES = 4096
"""How long a state may be as canonical JSON; a card has to show it."""


class BusinessState(Record):
    """The state that a `recheck` returned; null is a state like any other."""

    value: JsonValue = None

    def is_same(self, other: BusinessState) -> bool:
        """Return whether both are the same JSON."""
        # Canonical bytes, because True == 1 in Python and is not in JSON.
        return digest.canonical(self.value) == digest.canonical(other.value)


def state_in(document: str) -> BusinessState | None:
    """Return the state in an action document; None when its tool names none."""
    if not _may_have_state(document):
        return None
    action = parse_object(document)
    # By the key and not by the value: a state of null is a state, too.
    return BusinessState(value=action[MEMBER]) if MEMBER in action else None


def with_state(document: str, state: BusinessState) -> str:
    """Return an action document with another state.

    Raises:
        BadJson: when it is not strict JSON or the document becomes too large.
    """
    action = {**parse_object(document), MEMBER: state.value}
    return digest.bounded(action)


def is_same_but_state(one: str, other: str) -> bool:
    """Return whether two documents differ in nothing, or in the value of the state."""
    if one == other:
        return True
    first, second = parse_object(one), parse_object(other)
    # One that got a state, or lost it, is another action.
    if MEMBER not in first or MEMBER not in second:
        return False
    return digest.canonical({**first, MEMBER: None}) == digest.canonical(
        {**second, MEMBER: None}
    )


def stateless_hash(document: str) -> str:
    """Return the hash of a document without its state.

    The idempotency key is made of it: the same effect has one key in every state.
    """
    if not _may_have_state(document):
        return digest.action_hash(document)
    action = parse_object(document)
    if MEMBER not in action:
        return digest.action_hash(document)
    rest = {name: value for name, value in action.items() if name != MEMBER}
    return digest.action_hash(digest.canonical(rest).decode("utf-8"))


def _may_have_state(document: str) -> bool:
    """Return whether a document may name a state; most do not, and are not parsed."""
    # A name can also be written with escapes.
    return f'"{MEMBER}"' in document or "\\u" in document
