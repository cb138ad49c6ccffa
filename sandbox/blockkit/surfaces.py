"""Schemas of the blocks, and the blocks that a message, modal or App Home accepts.

Source: https://docs.slack.dev/reference/block-kit/blocks
"""

from keyturn.sandbox.blockkit import formats, limits
from keyturn.sandbox.blockkit.charts import DATA_VISUALIZATION
from keyturn.sandbox.blockkit.elements import IMAGE, IN_ACTIONS, IN_INPUT, IN_SECTION
from keyturn.sandbox.blockkit.objects import ID, SLACK_FILE, plain, text
from keyturn.sandbox.blockkit.rich_text import RICH_TEXT
from keyturn.sandbox.blockkit.rules import (
    action_ids_are_unique,
    at_least_one_of,
    exactly_one_of,
)
from keyturn.sandbox.blockkit.shape import (
    Choice,
    Flag,
    Many,
    Nullable,
    Record,
    Shape,
    Str,
    Tagged,
    Whole,
)

_BLOCK: dict[str, Shape] = {"block_id": ID}
_EVERYWHERE = {
    "header": Record(
        {"text": plain(limits.HEADER)},
        _BLOCK | {"level": Whole(1, limits.HEADER_LEVELS)},
    ),
    "section": Record(
        {},
        _BLOCK
        | {
            "text": text(),
            "fields": Many(text(limits.FIELD), limits.FIELDS),
            "accessory": IN_SECTION,
            "expand": Flag(),
        },
        (at_least_one_of("text", "fields"),),
    ),
    "context": Record(
        {
            "elements": Many(
                Tagged("a context element", {**text().variants, "image": IMAGE}),
                limits.CONTEXT_ELEMENTS,
            )
        },
        _BLOCK,
    ),
    "divider": Record({}, _BLOCK),
    "actions": Record(
        {"elements": Many(IN_ACTIONS, limits.ACTIONS_ELEMENTS)},
        _BLOCK,
        (action_ids_are_unique,),
    ),
    "rich_text": RICH_TEXT,
    "image": Record(
        {"alt_text": Str(limits.IMAGE_ALT)},
        _BLOCK
        | {
            "title": plain(limits.IMAGE_TITLE),
            "image_url": Str(limits.URL, form=formats.web_url),
            "slack_file": SLACK_FILE,
        },
        (exactly_one_of("image_url", "slack_file"),),
    ),
    "input": Record(
        {"label": plain(limits.INPUT_LABEL), "element": IN_INPUT},
        _BLOCK
        | {
            "hint": plain(limits.INPUT_HINT),
            "optional": Flag(),
            "dispatch_action": Flag(),
        },
    ),
}

_CELL = Tagged(
    "a table cell",
    {"raw_text": Record({"text": Str(limits.TEXT_IN_POST)}), "rich_text": RICH_TEXT},
)
_TABLE = Record(
    {"rows": Many(Many(_CELL, limits.TABLE_COLUMNS), limits.TABLE_ROWS)},
    _BLOCK
    | {
        "column_settings": Many(
            Nullable(
                Record(
                    {},
                    {
                        "align": Choice(("left", "center", "right")),
                        "is_wrapped": Flag(),
                    },
                )
            ),
            limits.TABLE_COLUMNS,
        )
    },
)
_MARKDOWN = Record({"text": Str(limits.MARKDOWN_IN_MESSAGE)}, _BLOCK)
_ALERT = Record(
    {"text": text(limits.ALERT)},
    _BLOCK | {"level": Choice(("default", "info", "warning", "error", "success"))},
)

_IN_MESSAGES: dict[str, Record] = {
    "table": _TABLE,
    "markdown": _MARKDOWN,
    "data_visualization": DATA_VISUALIZATION,
}
_MESSAGES_ONLY = {
    "table": "a table belongs into a message, not here",
    "markdown": "markdown belongs into a message, not here",
    "data_visualization": "a chart belongs into a message, not here",
}
_MODALS_ONLY = {"alert": "an alert belongs into a modal, not here"}

MESSAGE_BLOCKS = Many(
    Tagged("a block", {**_EVERYWHERE, **_IN_MESSAGES}, _MODALS_ONLY),
    limits.BLOCKS_IN_MESSAGE,
)
MODAL_BLOCKS = Many(
    Tagged("a block", {**_EVERYWHERE, "alert": _ALERT}, _MESSAGES_ONLY),
    limits.BLOCKS_IN_VIEW,
)
HOME_BLOCKS = Many(
    Tagged("a block", _EVERYWHERE, {**_MODALS_ONLY, **_MESSAGES_ONLY}),
    limits.BLOCKS_IN_VIEW,
)
