"""Canonical bytes and hashes of calls, batches and cards.

A hash is written ``sha256:<64 hex>`` in JSON and on cards, and stored as 32 raw bytes.
Every hash covers a domain tag, a NUL and the canonical bytes (RFC 8785), so that hashes
of different kinds cannot be confused.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from json.encoder import encode_basestring
from typing import Any, cast

from pydantic import JsonValue

from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import (
    MAX_BYTES,
    JsonObject,
    accept,
    parse_object,
)

ACTION_TAG = "keyturn/v1/action"
BATCH_TAG = "keyturn/v1/batch"
DISPLAY_TAG = "keyturn/v1/display"
POLICY_TAG = "keyturn/v1/policy"
CLAIM_TAG = "keyturn/v1/claim"
TURN_TAG = "keyturn/v1/turn"
EDIT_TAG = "keyturn/v1/edit"

_PREFIX = "sha256:"
_ARGS_FIRST = '{"args":'
_DECODER = json.JSONDecoder()
_MOST_ZEROS = 6


def canonical(value: JsonValue) -> bytes:
    """Return the RFC 8785 bytes of a value; 64-bit integers keep all digits.

    Raises:
        BadJson: when the value is not strict JSON.
    """
    return _text(value).encode("utf-8")


def parsed(value: JsonValue) -> JsonValue:
    """Return a value after a round trip through canonical bytes: 1.0 becomes 1.

    Raises:
        BadJson: when the value is not strict JSON.
    """
    return cast("JsonValue", json.loads(_text(value)))


def _text(value: JsonValue) -> str:
    return _written(accept(value))


def _written(value: JsonValue) -> str:
    """Return the RFC 8785 text of strict JSON.

    `json` writes strings as RFC 8785 does (section 3.2.2.2).
    """
    match value:
        case str():
            return encode_basestring(value)
        case dict():
            # By UTF-16 code units (section 3.2.3): for ASCII, Python's own order.
            is_ascii = "".join(value).isascii()
            names = sorted(value, key=None if is_ascii else _utf_16)
            rows = [f"{encode_basestring(one)}:{_written(value[one])}" for one in names]
            return f"{{{','.join(rows)}}}"
        case None | bool():
            return json.dumps(value)
        case list():
            return f"[{','.join(map(_written, value))}]"
        case float():
            return _number(value)
        case _:
            return str(value)


def _utf_16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _number(value: float) -> str:
    """Return the RFC 8785 text of an exact float (section 3.2.2.3)."""
    if value.is_integer():
        return str(int(value))  # also for -0.0
    # Python and ECMAScript both write the fewest digits that identify the number.
    # Python uses an exponent below 1e-4, with at least two digits; ECMAScript below
    # 1e-6.
    digits, is_small, exponent = repr(value).partition("e-")
    if not is_small:
        return digits
    places = int(exponent)
    if places > _MOST_ZEROS:
        return f"{digits}e-{places}"
    sign, whole = ("-", digits[1:]) if value < 0 else ("", digits)
    return f"{sign}0.{'0' * (places - 1)}{whole.replace('.', '')}"


def same(one: JsonValue, other: JsonValue) -> bool:
    """Return whether two values have the same canonical bytes."""
    try:
        return _text(one) == _text(other)
    except BadJson:
        return False


def in_spelling_of(original: Any, edited: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return edited arguments in the order and number types of the original ones.

    A canonical document sorts names and writes 7.0 as 7. Values equal to the original
    ones are returned in their original form.
    """
    if same(original, edited):
        return copy.deepcopy(original)  # a tool may modify its arguments
    if isinstance(original, dict) and isinstance(edited, dict):
        was, now = cast("JsonObject", original), cast("JsonObject", edited)
        names = [*(name for name in was if name in now), *now]
        return {name: in_spelling_of(was.get(name), now[name]) for name in names}
    if isinstance(original, list) and isinstance(edited, list):
        each = cast("list[JsonValue]", edited)
        pairs = zip_longest(cast("list[JsonValue]", original), each)
        return [in_spelling_of(a, b) for a, b in pairs][: len(each)]
    return edited


def tagged_hash(tag: str, document: bytes) -> str:
    """Hash a document under a domain tag; ``sha256:<hex>``."""
    # No tag contains NUL, so tag and document cannot be split at another place.
    digest = hashlib.sha256(tag.encode("ascii") + b"\x00" + document)
    return _PREFIX + digest.hexdigest()


def action_document(
    *, tool: str, args: JsonObject, ctx: dict[str, str], salt: str
) -> str:
    """Return the canonical document of an action; this exact text is stored and run.

    Args:
        tool: name of the tool in the agent.
        args: the arguments as they will run.
        ctx: tenant, agent, thread, ns, message_id and tool_call_id.
        salt: 32 hex digits; without it, the hash on a card could confirm a guess.

    Raises:
        BadJson: when it is not strict JSON or larger than 64 KiB.
    """
    return bounded(
        {
            "v": 1,
            "tool": tool,
            "args": args,
            "ctx": dict[str, JsonValue](ctx),
            "salt": salt,
        }
    )


def bounded(action: JsonObject) -> str:
    """Return the canonical text of an action document.

    Raises:
        BadJson: when it is not strict JSON or larger than 64 KiB.
    """
    document = canonical(action)
    # Limit the canonical form, which is stored, hashed and shown.
    if len(document) > MAX_BYTES:
        raise BadJson(f"the call is {len(document)} bytes, {MAX_BYTES} are allowed")
    return document.decode("utf-8")


def action_args(document: str) -> JsonObject:
    """Return the arguments in an action document.

    Raises:
        BadJson: when it is not strict JSON with such arguments.
    """
    return cast("JsonObject", action_members(document)["args"])


def action_members(document: str) -> JsonObject:
    """Return the members of an action document; its arguments are an object.

    Raises:
        BadJson: when it is not strict JSON with such arguments.
    """
    _ensure_args(document)
    return cast("JsonObject", json.loads(document))


@lru_cache(maxsize=128)
def _ensure_args(document: str) -> None:
    """Check an action document strictly, once: drawing a card reads it many times.

    The cache contains only the text, of 64 KiB at most (`bounded`), not the parsed
    object, which callers could modify.
    """
    if not isinstance(parse_object(document)["args"], dict):
        raise BadJson("the arguments are not an object", "/args")


def canonical_args(document: str) -> str:
    """Return the canonical text of the arguments in an action document.

    Raises:
        BadJson: when it is no action document.
    """
    # They come first, already canonical: "args" sorts before "ctx".
    if not document.startswith(_ARGS_FIRST):
        return canonical(action_args(document)).decode()
    try:
        _, end = _DECODER.raw_decode(document, len(_ARGS_FIRST))
    except ValueError as error:
        raise BadJson("it is not an action document") from error
    return document[len(_ARGS_FIRST) : end]


def action_hash(document: str) -> str:
    """Return the hash that identifies exactly this action."""
    return tagged_hash(ACTION_TAG, document.encode("utf-8"))


def batch_digest(approval: str, items: Sequence[tuple[str, str]]) -> str:
    """Bind an approval to its items, their order and their number.

    Args:
        approval: id of the approval.
        items: (item id, action hash) in the order of the card.
    """
    rows: list[JsonValue] = [
        # With the index: people saw the calls in the order of the card.
        {"i": index, "id": item, "hash": digest}
        for index, (item, digest) in enumerate(items)
    ]
    return tagged_hash(
        BATCH_TAG,
        canonical({"v": 1, "approval": approval, "n": len(rows), "items": rows}),
    )


def turn_key(*, tenant: str, agent: str, thread: str, ns: str, message_id: str) -> str:
    """Return the idempotency key for the submission of one AI message."""
    return tagged_hash(TURN_TAG, canonical([tenant, agent, thread, ns, message_id]))


def claim_key(ctx: dict[str, str], digest: str) -> str:
    """Return the key of one execution; the tool gets it as its idempotency key."""
    return tagged_hash(CLAIM_TAG, canonical([dict[str, JsonValue](ctx), digest]))


# Business state: the state that must not change between the request and the run.
#
# The author of a tool names it: the version of an order, a balance, an ETag. The action
# document contains it as the member `STATE_MEMBER`, so the action hash covers it: a
# vote is for one action in one state.

STATE_MEMBER = "state"
MAX_STATE_BYTES = 4096
"""Longest state as canonical JSON; a card has to show it."""


class BusinessState(Record):
    """The state that a `recheck` returned; null is a valid state."""

    value: JsonValue = None

    def is_same(self, other: BusinessState) -> bool:
        """Return whether both are the same JSON."""
        # Canonical bytes, because True == 1 in Python and is not in JSON.
        return canonical(self.value) == canonical(other.value)


def state_in(document: str) -> BusinessState | None:
    """Return the state in an action document; None if it has none."""
    if not _may_have_state(document):
        return None
    action = parse_object(document)
    # By the key, not the value: null is a valid state.
    return BusinessState(value=action[STATE_MEMBER]) if STATE_MEMBER in action else None


def with_state(document: str, state: BusinessState) -> str:
    """Return an action document with another state.

    Raises:
        BadJson: when it is not strict JSON or the document becomes too large.
    """
    action = {**parse_object(document), STATE_MEMBER: state.value}
    return bounded(action)


def is_same_but_state(one: str, other: str) -> bool:
    """Return whether two documents are equal, apart from the value of the state."""
    if one == other:
        return True
    first, second = parse_object(one), parse_object(other)
    # A document with a state and one without are different actions.
    if STATE_MEMBER not in first or STATE_MEMBER not in second:
        return False
    return canonical({**first, STATE_MEMBER: None}) == canonical(
        {**second, STATE_MEMBER: None}
    )


def stateless_hash(document: str) -> str:
    """Return the hash of a document without its state.

    The idempotency key is derived from it: the same effect has one key in every state.
    """
    if not _may_have_state(document):
        return action_hash(document)
    action = parse_object(document)
    if STATE_MEMBER not in action:
        return action_hash(document)
    rest = {name: value for name, value in action.items() if name != STATE_MEMBER}
    return action_hash(canonical(rest).decode("utf-8"))


def _may_have_state(document: str) -> bool:
    """Return whether a document may contain a state; most do not and are not parsed."""
    # A JSON name may also be written with escapes.
    return f'"{STATE_MEMBER}"' in document or "\\u" in document
