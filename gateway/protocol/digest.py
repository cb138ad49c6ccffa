"""Canonical bytes and hashes of calls, batches and cards.

A hash is written ``sha256:<64 hex>`` in JSON and on cards, and kept as 32 raw bytes
in the store. Every hash is taken over a domain tag, a NUL and the canonical bytes
(RFC 8785), so that a hash of one kind can never stand for another kind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring
from typing import cast

import rfc8785
from pydantic import JsonValue

from twokey.gateway.errors import BadJson
from twokey.gateway.protocol.strict_json import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_INTEGER,
    JsonObject,
    accept,
    is_exact,
    parse,
    parse_object,
)

ACTION_TAG = "twokey/v1/action"
BATCH_TAG = "twokey/v1/batch"
DISPLAY_TAG = "twokey/v1/display"
POLICY_TAG = "twokey/v1/policy"
CLAIM_TAG = "twokey/v1/claim"
TURN_TAG = "twokey/v1/turn"
EDIT_TAG = "twokey/v1/edit"

_PREFIX = "sha256:"
_ARGS_FIRST = '{"args":'
_DECODER = json.JSONDecoder()
_TEXT = frozenset({str})
_CONTAINERS = frozenset({dict, list})


def canonical(value: JsonValue) -> bytes:
    """Return the RFC 8785 bytes of a value.

    Raises:
        BadJson: when the value is not strict JSON.
    """
    try:
        return _written(value, 0).encode("utf-8")
    except (_Odd, UnicodeEncodeError):
        # Accepted first: the library takes some values that are no JSON, and recurses
        # without a limit.
        return rfc8785.dumps(accept(value))


def parsed(value: JsonValue) -> JsonValue:
    """Return what the canonical bytes of a value parse to: 1.0 and 1 are one number.

    Raises:
        BadJson: when the value is not strict JSON.
    """
    try:
        return _read_back(value, 0)
    except (_Odd, UnicodeEncodeError):
        return parse(rfc8785.dumps(accept(value)))


class _Odd(Exception):
    """A value holds something that needs the library, or is no JSON."""


def _written(value: object, depth: int) -> str:
    """Return the RFC 8785 text of the plain types of JSON.

    A call is hashed dozens of times, and the library, which is written in Python, takes
    five times as long. `json` writes strings as RFC 8785 does (section 3.2.2.2).
    """
    if depth > MAX_DEPTH:
        raise _Odd
    # By the very type: a class derived from it may do anything.
    kind = type(value)
    if kind is str:
        return encode_basestring(cast("str", value))
    # Texts stand inline below, one level deeper than what holds them.
    if depth == MAX_DEPTH and kind in _CONTAINERS and value:
        raise _Odd
    if kind is list:
        elements = cast("list[object]", value)
        rows = [
            # Most are texts, or small numbers: each click hashes some lists of them.
            encode_basestring(one)
            if type(one) is str
            else str(one)
            if type(one) is int and -MAX_INTEGER <= one <= MAX_INTEGER
            else _written(one, depth + 1)
            for one in elements
        ]
        return f"[{','.join(rows)}]"
    if kind is dict:
        members = cast("dict[str, object]", value)
        rows = [
            f"{encode_basestring(key)}:{encode_basestring(one)}"
            if type(one := members[key]) is str
            else f"{encode_basestring(key)}:{_written(one, depth + 1)}"
            for key in _ordered(members)
        ]
        return f"{{{','.join(rows)}}}"
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if not is_exact(value):
        raise _Odd
    return str(value) if kind is int else _number(cast("float", value))


def _number(value: float) -> str:
    """Return the RFC 8785 text of a float that is exact (section 3.2.2.3)."""
    if value.is_integer():
        return str(int(value))  # also of -0.0
    text = repr(value)
    # Both write the fewest digits that are read as this number. Python has an exponent
    # for smaller numbers than ECMAScript.
    return text if "e" not in text else rfc8785.dumps(value).decode("ascii")


def _read_back(value: object, depth: int) -> JsonValue:
    """Return what `_written` parses to, without the text: a call is read ten times."""
    if depth > MAX_DEPTH:
        raise _Odd
    kind = type(value)
    if kind is str:
        text = cast("str", value)
        if not text.isascii():
            text.encode("utf-8")  # raises for half of a surrogate pair
        return text
    if kind is dict:
        members = cast("dict[str, object]", value)
        return {key: _read_back(members[key], depth + 1) for key in _ordered(members)}
    if kind is list:
        elements = cast("list[object]", value)
        return [_read_back(one, depth + 1) for one in elements]
    if value is None or kind is bool:
        return cast("JsonValue", value)
    if not is_exact(value):
        raise _Odd
    if kind is int:
        return cast("int", value)
    number = cast("float", value)
    # 1.0 is written as 1, and a text of ours is no other number.
    return int(number) if number.is_integer() else number


def _ordered(members: dict[str, object]) -> list[str]:
    # By the very type, as above.
    if {*map(type, members)} - _TEXT:
        raise _Odd
    if "".join(members).isascii():
        return sorted(members)
    # By UTF-16 code units (section 3.2.3).
    return sorted(members, key=lambda key: key.encode("utf-16-be"))


def tagged_hash(tag: str, document: bytes) -> str:
    """Hash a document under a domain tag; ``sha256:<hex>``."""
    # A tag holds no NUL, so no tag and document can be cut at another place.
    digest = hashlib.sha256(tag.encode("ascii") + b"\x00" + document)
    return _PREFIX + digest.hexdigest()


def to_raw(digest: str) -> bytes:
    """Return the 32 bytes of a ``sha256:<hex>`` text.

    Raises:
        BadJson: when the text is not of that form.
    """
    body = digest.removeprefix(_PREFIX)
    if body == digest or len(body) != 64 or set(body) - set("0123456789abcdef"):  # noqa: PLR2004 - hex digits of SHA-256
        raise BadJson(f"{digest[:80]!r} is not a sha256 digest")
    return bytes.fromhex(body)


def from_raw(raw: bytes) -> str:
    """Return the ``sha256:<hex>`` text of raw bytes; `to_raw` checks how many."""
    return _PREFIX + raw.hex()


def short(digest: str) -> str:
    """Return the form for a card: the first 8 and the last 4 hex digits."""
    body = digest.removeprefix(_PREFIX)
    return f"{body[:8]}…{body[-4:]}"


def action_document(
    *, tool: str, args: JsonObject, ctx: dict[str, str], salt: str
) -> str:
    """Return the canonical document of an action; this exact text is stored and run.

    Args:
        tool: name of the tool as the agent knows it.
        args: the arguments as they will run.
        ctx: tenant, agent, thread, ns, message_id and tool_call_id.
        salt: 32 hex digits; keeps the hash on a card from confirming a guess.

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
    # Measured as bytes of the canonical form: the length that is stored, hashed and
    # shown.
    if len(document) > MAX_BYTES:
        raise BadJson(f"the call is {len(document)} bytes, {MAX_BYTES} are allowed")
    return document.decode("utf-8")


def action_args(document: str) -> JsonObject:
    """Return the arguments that an action document says to run.

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
    """Parse an action document strictly, once: drawing a card asks for it many times.

    Only the text is remembered, of 64 KiB at most (`bounded`), and not what it says:
    that could be changed.
    """
    if not isinstance(parse_object(document)["args"], dict):
        raise BadJson("the arguments are not an object", "/args")


def canonical_args(document: str) -> str:
    """Return the canonical text of the arguments that an action document says to run.

    Raises:
        BadJson: when it is no action document.
    """
    # They come first in it, and as they are canonical: "args" sorts before "ctx".
    if not document.startswith(_ARGS_FIRST):
        return canonical(action_args(document)).decode()
    try:
        _, end = _DECODER.raw_decode(document, len(_ARGS_FIRST))
    except ValueError as error:
        raise BadJson("it is no action document") from error
    return document[len(_ARGS_FIRST) : end]


@lru_cache(maxsize=128)
def action_hash(document: str) -> str:
    """Return the hash that stands for exactly this action."""
    # Remembered: a decision asks ten times for that of its call.
    return tagged_hash(ACTION_TAG, document.encode("utf-8"))


def batch_digest(approval: str, items: Sequence[tuple[str, str]]) -> str:
    """Bind an approval to its items, their order and their number.

    Args:
        approval: id of the approval.
        items: (item id, action hash) in the order of the card.
    """
    rows: list[JsonValue] = [
        # The index is part of it: the order of the calls on the card is what people
        # saw.
        {"i": index, "id": item, "hash": digest}
        for index, (item, digest) in enumerate(items)
    ]
    return tagged_hash(
        BATCH_TAG,
        canonical({"v": 1, "approval": approval, "n": len(rows), "items": rows}),
    )


@lru_cache(maxsize=256)
def turn_key(*, tenant: str, agent: str, thread: str, ns: str, message_id: str) -> str:
    """Return the key under which one AI message is submitted once."""
    # Remembered: a call asks for that of its turn three times.
    return tagged_hash(TURN_TAG, canonical([tenant, agent, thread, ns, message_id]))


def claim_key(ctx: dict[str, str], digest: str) -> str:
    """Return the key of one execution; the tool gets it as its idempotency key."""
    return tagged_hash(CLAIM_TAG, canonical([dict[str, JsonValue](ctx), digest]))
