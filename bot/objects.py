"""Build Block Kit composition objects: text, options, confirmation dialogs."""

from typing import TypeAlias

from twokey.bot.text import EMPTY, excerpt, fit
from twokey.bot.text_types import Label, Plain, Template
from twokey.sandbox.blockkit import JSON, limits

Block: TypeAlias = dict[str, JSON]
"""A block, an element, a composition object or a view."""


def block_object(kind: str, /, **parts: JSON) -> Block:
    """Make an object of a type from the parts that are not None."""
    given = {key: part for key, part in parts.items() if part is not None}
    return {"type": kind, **given}


def plain_text(text: Plain, limit: int, *, lines: bool = False) -> Block:
    """Make a plain_text object of at most `limit` characters, emoji codes off.

    Without `lines` a newline is shown as a mark: labels are one line.
    """
    shown = excerpt(text.text, limit).text if lines else fit(text.text, limit)
    # `emoji` false: ":white_check_mark:" in a text of strangers stays letters. Slack
    # refuses an empty text.
    return {"type": "plain_text", "text": shown or EMPTY, "emoji": False}


def any_text(text: Template | Plain, limit: int) -> Block:
    """Make a text object: markup for a template, else plain text of `limit` or less.

    Markup is never cut, since that could tear a reference apart.
    """
    if isinstance(text, Template):
        # `verbatim`: Slack makes no links and mentions out of bare words.
        return {"type": "mrkdwn", "text": text.text, "verbatim": True}
    return plain_text(text, limit, lines=True)


def confirm(title: Plain, text: Template | Plain, *, yes: Plain) -> Block:
    """Make the question a button asks before it acts."""
    return {
        "title": plain_text(title, limits.CONFIRM_TITLE),
        "text": any_text(text, limits.CONFIRM_TEXT),
        "confirm": plain_text(yes, limits.CONFIRM_BUTTON),
        "deny": plain_text(Label("Back"), limits.CONFIRM_BUTTON),
    }


def option(text: Plain, value: str) -> Block:
    """Make one choice; `value` comes back when it is chosen."""
    return {"text": plain_text(text, limits.OPTION), "value": value}
