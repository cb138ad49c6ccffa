"""Bind the business state that a call depends on into its action hash.

The author of a tool names the state that must not change between the request and the
run: the version of an order, a balance, an ETag. The action document contains it as the
member `MEMBER`, so the action hash covers it: a vote is for one action in one state.
"""

from __future__ import annotations

from pydantic import JsonValue

from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import parse_object

MEMBER = "state"
MAX_BYTES = 4096
"""Longest state as canonical JSON; a card has to show it."""


class BusinessState(Record):
    """The state that a `recheck` returned; null is a valid state."""

    value: JsonValue = None

    def is_same(self, other: BusinessState) -> bool:
        """Return whether both are the same JSON."""
        # Canonical bytes, because True == 1 in Python and is not in JSON.
        return digest.canonical(self.value) == digest.canonical(other.value)


def state_in(document: str) -> BusinessState | None:
    """Return the state in an action document; None if it has none."""
    if not _may_have_state(document):
        return None
    action = parse_object(document)
    # By the key, not the value: null is a valid state.
    return BusinessState(value=action[MEMBER]) if MEMBER in action else None


def with_state(document: str, state: BusinessState) -> str:
    """Return an action document with another state.

    Raises:
        BadJson: when it is not strict JSON or the document becomes too large.
    """
    action = {**parse_object(document), MEMBER: state.value}
    return digest.bounded(action)


def is_same_but_state(one: str, other: str) -> bool:
    """Return whether two documents are equal, apart from the value of the state."""
    if one == other:
        return True
    first, second = parse_object(one), parse_object(other)
    # A document with a state and one without are different actions.
    if MEMBER not in first or MEMBER not in second:
        return False
    return digest.canonical({**first, MEMBER: None}) == digest.canonical(
        {**second, MEMBER: None}
    )


def stateless_hash(document: str) -> str:
    """Return the hash of a document without its state.

    The idempotency key is derived from it: the same effect has one key in every state.
    """
    if not _may_have_state(document):
        return digest.action_hash(document)
    action = parse_object(document)
    if MEMBER not in action:
        return digest.action_hash(document)
    rest = {name: value for name, value in action.items() if name != MEMBER}
    return digest.action_hash(digest.canonical(rest).decode("utf-8"))


def _may_have_state(document: str) -> bool:
    """Return whether a document may contain a state; most do not and are not parsed."""
    # A JSON name may also be written with escapes.
    return f'"{MEMBER}"' in document or "\\u" in document
