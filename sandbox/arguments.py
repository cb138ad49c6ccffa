"""Parse the arguments of Web API calls, from JSON or from a form."""

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.json_types import JsonObject
from keyturn.sandbox.validation import read_json

MAX_PAGE = 1000
DEFAULT_PAGE = 100


def required(arguments: JsonObject, name: str) -> str:
    """Return a non-empty argument; refuse with `invalid_arguments` without it."""
    value = arguments.get(name)
    if value in (None, ""):
        line = f"[ERROR] missing required field: {name}"
        raise ApiError("invalid_arguments", response_metadata={"messages": [line]})
    return str(value)


def optional(arguments: JsonObject, name: str) -> str | None:
    """Return an argument as text, or None if it is missing or empty."""
    value = arguments.get(name)
    return None if value in (None, "") else str(value)


def flag(arguments: JsonObject, name: str) -> bool:
    """Return a boolean argument; forms encode it as true, false, 1 or 0."""
    return str(arguments.get(name, "")).lower() in {"true", "1"}


def message_content(arguments: JsonObject) -> JsonObject:
    """Return the parts of a message with their JSON decoded.

    Raises:
        ApiError: `invalid_blocks_format`, `invalid_metadata_format`,
            `markdown_text_conflict`, or `invalid_arguments` for attachments, which the
            sandbox cannot show.
    """
    attachments = read_json(arguments.get("attachments"), "invalid_attachments")
    if attachments:
        line = "[ERROR] the sandbox shows no attachments; use blocks"
        raise ApiError("invalid_arguments", response_metadata={"messages": [line]})
    content: JsonObject = {
        "text": arguments.get("text"),
        "blocks": read_json(arguments.get("blocks"), "invalid_blocks_format"),
        "metadata": read_json(arguments.get("metadata"), "invalid_metadata_format"),
        "thread_ts": arguments.get("thread_ts"),
        "attachments": attachments,
    }
    markdown = arguments.get("markdown_text")
    if markdown is not None:
        if content["text"] is not None or content["blocks"] is not None:
            raise ApiError("markdown_text_conflict")
        content["blocks"] = [{"type": "markdown", "text": str(markdown)}]
        content["text"] = str(markdown)
    return content


def page(items: list[JsonObject], arguments: JsonObject, key: str) -> JsonObject:
    """Return one page of a list under `key`, with Slack's `next_cursor`.

    Raises:
        ApiError: `invalid_limit` or `invalid_cursor`.
    """
    try:
        limit = int(optional(arguments, "limit") or DEFAULT_PAGE)
        start = int(optional(arguments, "cursor") or 0)
    except ValueError:
        raise ApiError("invalid_cursor") from None
    if not 1 <= limit <= MAX_PAGE:
        raise ApiError("invalid_limit")
    if not 0 <= start <= len(items):
        raise ApiError("invalid_cursor")
    end = start + limit
    cursor = str(end) if end < len(items) else ""
    return {
        key: items[start:end],
        "has_more": bool(cursor),
        "response_metadata": {"next_cursor": cursor},
    }
