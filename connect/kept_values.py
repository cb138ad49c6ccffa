"""Store the return value of a tool as JSON, so that a replay returns it again."""

from __future__ import annotations

import json
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from keyturn.gateway.protocol import edits
from keyturn.gateway.protocol.records import Result

MAX_PAYLOAD_CHARS = 1024 * 1024
SUMMARY_CHARS = 500


def kept(value: object) -> Result:
    """Return the stored form of a tool's return value: JSON, and a summary for people.

    A value that is not plain data, or larger than `MAX_PAYLOAD_CHARS`, is stored
    without its payload: a replay then learns that the call ran.
    """
    try:
        plain: object = to_jsonable_python(value)
        payload = json.dumps({"v": 1, "value": plain}, allow_nan=False)
    # RecursionError: the tool has run, so even a cyclic value must be recorded.
    except (PydanticSerializationError, TypeError, ValueError, RecursionError):
        plain, payload = str(value), ""
    text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    return Result(
        ok=True,
        summary=shortened(text),
        payload=payload if len(payload) <= MAX_PAYLOAD_CHARS else "",
    )


def shortened(text: str) -> str:
    """Return the beginning of a result's text, for the card."""
    flat = (text or "(no text)").encode("utf-8", "replace").decode("utf-8")
    return flat if len(flat) <= SUMMARY_CHARS else f"{flat[: SUMMARY_CHARS - 1]}…"


def recalled(payload: str) -> object:
    """Return the value in a payload of `kept`, as plain data.

    Raises:
        LookupError: when the value was not stored, or cannot be read.
    """
    try:
        return cast("dict[str, object]", json.loads(payload))["value"]
    # A writer to the store can forge the text, so it may be anything.
    except (ValueError, TypeError, RecursionError) as error:
        raise LookupError("The stored value cannot be read.") from error


def defused(value: object) -> object:
    """Return a tool's value without forged marks of the gateway in its texts.

    A value with a forged mark is returned as plain data.
    """
    try:
        plain: object = to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        return value
    clean = defused_json(plain)
    return value if clean == plain else clean


def defused_json(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return JSON without forged marks of the gateway in its texts and names."""
    match value:
        case str():
            return edits.defuse(value)
        case list():
            return [defused_json(one) for one in cast("list[object]", value)]
        case dict():
            members = cast("dict[str, object]", value).items()
            return {edits.defuse(name): defused_json(one) for name, one in members}
        case _:
            return value
