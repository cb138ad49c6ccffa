"""Convert violations found by the Block Kit validator into Slack's API errors."""

import json
from collections.abc import Sequence
from typing import cast

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.blockkit import (
    Problem,
    ReadOnlyJSON,
    validate_home,
    validate_message,
    validate_modal,
)
from keyturn.sandbox.json_types import JsonObject, as_object

INVALID_BLOCKS = "invalid_blocks"
INVALID_VIEW = "invalid_arguments"
"""The error of views.* for a bad view; only `blocks.validate` returns invalid_view."""
OWN_NAMES = frozenset(
    {
        "invalid_arguments",
        "invalid_blocks_format",
        "markdown_text_conflict",
        "msg_blocks_too_long",
        "msg_too_long",
        "no_text",
        "view_too_large",
    }
)


def check_message(blocks: object, text: str | None, *, update: bool = False) -> None:
    """Refuse a message that Slack would refuse for its text or blocks."""
    given = cast("ReadOnlyJSON", blocks)
    found = validate_message(given, text, update=update)
    _refuse(found, INVALID_BLOCKS, "")


def check_view(view: object, *, kinds: Sequence[str] = ("modal", "home")) -> JsonObject:
    """Return a view that Slack would accept, or refuse it."""
    document = as_object(view)
    if not document:
        raise ApiError(
            INVALID_VIEW,
            response_metadata={"messages": ["[ERROR] missing required field: view"]},
        )
    kind = document.get("type")
    if kind not in kinds:
        problem = Problem("/type", INVALID_VIEW, f"must be one of {list(kinds)!r}")
        _refuse([problem], INVALID_VIEW, "/view")
    validate = validate_home if kind == "home" else validate_modal
    _refuse(validate(document), INVALID_VIEW, "/view")
    return document


def _refuse(problems: Sequence[Problem], error: str, prefix: str) -> None:
    if not problems:
        return
    own = next((p.code for p in problems if p.code in OWN_NAMES), None)
    lines = [f"{p.message} [json-pointer:{prefix}{p.pointer}]" for p in problems]
    raise ApiError(
        own or error,
        errors=lines,
        response_metadata={"messages": [f"[ERROR] {line}" for line in lines]},
    )


def read_json(value: object, error: str) -> object:
    """Return a JSON argument, sent as JSON or as a string that contains JSON."""
    if not isinstance(value, str):
        return value
    if not value:
        return None
    try:
        return json.loads(value)
    except ValueError:
        raise ApiError(error) from None
