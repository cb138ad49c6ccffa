"""Warn of a SQL statement in a call that no condition limits."""

from __future__ import annotations

from typing import LiteralString

from twokey.bot.sql import without_condition
from twokey.bot.text_types import Template, template
from twokey.gateway.approvals.evidence import redacted
from twokey.gateway.approvals.preview import PreviewKind
from twokey.gateway.approvals.record import Item

_SENTENCES: dict[str, LiteralString] = {
    "DELETE": "⚠️ *DELETE without WHERE:* no condition limits which rows it deletes.",
    "UPDATE": "⚠️ *UPDATE without WHERE:* no condition limits which rows it changes.",
}


def unlimited(item: Item) -> tuple[str, ...]:
    """Return UPDATE and DELETE, as far as one in the call surely has no condition."""
    preview = item.preview
    if preview is None or preview.kind is not PreviewKind.SQL:
        return ()
    # Of a hidden statement nothing is said.
    shown = redacted(item.args, item.redact).get(preview.text)
    return without_condition(shown) if isinstance(shown, str) else ()


def sql_warnings(item: Item) -> list[Template]:
    """Return a sentence for each kind of statement that no condition limits."""
    return [template(_SENTENCES[kind]) for kind in unlimited(item)]
