"""Validate a message: its blocks and its top-level text."""

from collections.abc import Sequence

from keyturn.sandbox.blockkit import limits
from keyturn.sandbox.blockkit.jsontypes import ReadOnlyJSON
from keyturn.sandbox.blockkit.payload_rules import (
    markdown_length,
    shared_violations,
    surplus_violations,
    text_length,
)
from keyturn.sandbox.blockkit.problem import Problem
from keyturn.sandbox.blockkit.schema_validator import is_encodable, violations
from keyturn.sandbox.blockkit.surfaces import MESSAGE_BLOCKS


def validate_message(
    blocks: ReadOnlyJSON, text: ReadOnlyJSON, *, update: bool = False
) -> list[Problem]:
    """Return Slack's reasons to refuse a message, or an empty list.

    Both arguments are in the format of the call's JSON, None if absent; an empty array
    of blocks counts as absent. Pass `update=True` for chat.update, which accepts far
    less text. Pointers start at `/blocks` or `/text`.
    """
    found = _text_problems(text, update=update)
    if blocks is None:
        blocks = []
    if isinstance(blocks, str) or not isinstance(blocks, Sequence):
        message = "must be an array of blocks"
        return [*found, Problem("/blocks", "invalid_blocks_format", message)]
    if blocks:
        return found + _block_problems(blocks)
    if not text:
        message = "has neither text nor blocks; give at least one"
        found.append(Problem("", "no_text", message))
    return found


def _text_problems(text: ReadOnlyJSON, *, update: bool) -> list[Problem]:
    if text is None:
        return []
    if not isinstance(text, str):
        return [Problem("/text", "invalid_arguments", "must be a string")]
    if not is_encodable(text):
        return [
            Problem(
                "/text", "invalid_arguments", "contains a lone surrogate, not UTF-8"
            )
        ]
    if update and (size := escaped_size(text)) > limits.TEXT_BYTES_IN_UPDATE:
        message = (
            f"must have at most {limits.TEXT_BYTES_IN_UPDATE} bytes after escaping "
            f"in an update, has {size}"
        )
        return [Problem("/text", "msg_too_long", message)]
    if len(text) > limits.TEXT_IN_POST:
        message = f"must have at most {limits.TEXT_IN_POST} characters, has {len(text)}"
        return [Problem("/text", "msg_too_long", message)]
    return []


def escaped_size(text: str) -> int:
    """Count UTF-8 bytes like chat.update: & < > count as their escapes."""
    return (
        len(text.encode())
        + 4 * text.count("&")
        + 3 * (text.count("<") + text.count(">"))
    )


def _block_problems(blocks: Sequence[ReadOnlyJSON]) -> list[Problem]:
    found = [
        Problem("/blocks" + violation.pointer, "invalid_blocks", violation.message)
        for source in (
            violations(MESSAGE_BLOCKS, blocks),
            shared_violations(blocks),
            surplus_violations(blocks),
        )
        for violation in source
    ]
    markdown = markdown_length(blocks)
    # Markdown has a separate, higher limit in Slack's documentation.
    others = text_length(blocks) - markdown
    sizes = (
        ("text in markdown blocks", markdown, limits.MARKDOWN_IN_MESSAGE),
        ("text in all other blocks", others, limits.TEXT_IN_ALL_BLOCKS),
    )
    for what, size, most in sizes:
        if size > most:
            message = f"{what} must have at most {most} characters, has {size}"
            found.append(Problem("/blocks", "msg_blocks_too_long", message))
    return found
