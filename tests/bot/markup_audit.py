"""Look for a stranger's bytes wherever Slack would interpret them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from tests.bot.strategies import CANARY

_NAME = re.compile(r"`[A-Za-z0-9][A-Za-z0-9 _.:/-]*`")
_TORN = re.compile(r"(?:^|\s)(?:at|by|for|in|to|until|with)$|:[*_]*$")


def assert_whole(block: Any) -> None:
    """Fail when one of our sentences continues in the next part of a context line.

    Slack separates the parts of a line, and breaks the line between them.
    """
    for part in block["elements"][:-1]:
        text = str(part.get("text", ""))
        assert CANARY in text or not _TORN.search(text), block["elements"]


def objects(node: object) -> Iterator[dict[str, Any]]:
    """Yield every object of a payload, from the outside in."""
    if isinstance(node, dict):
        here = cast("dict[str, Any]", node)
        yield here
        for member in here.values():
            yield from objects(member)
    elif isinstance(node, list | tuple):
        for element in cast("list[object]", node):
            yield from objects(element)


def assert_tame(blocks: object, text: str = "") -> None:
    """Fail when a stranger's text is anywhere that Slack interprets.

    Allowed are preformatted and plain text; the latter must not turn emoji codes. So
    is a name of letters and digits in fixed width, in which Slack interprets nothing.
    """
    assert CANARY not in text
    for each in objects(blocks):
        kind = each.get("type")
        if kind == "context":
            assert_whole(each)
        if kind in {"mrkdwn", "rich_text_section", "rich_text_quote"}:
            assert CANARY not in _NAME.sub("", str(each))
        if kind == "plain_text":
            assert each["emoji"] is False
        for key in ("block_id", "action_id", "value", "private_metadata"):
            assert CANARY not in str(each.get(key, ""))
