"""Schemas of rich text: sections, lists, quotes, preformatted text.

Source: https://docs.slack.dev/reference/block-kit/blocks/rich-text-block
"""

from keyturn.sandbox.blockkit import formats, limits
from keyturn.sandbox.blockkit.objects import ID
from keyturn.sandbox.blockkit.shape import (
    Choice,
    Flag,
    Format,
    Many,
    Record,
    Shape,
    Str,
    Tagged,
    Whole,
)

_STYLE = Record(
    {},
    {
        name: Flag()
        for name in (
            "bold",
            "italic",
            "strike",
            "code",
            "underline",
            "highlight",
            "client_highlight",
            "unlink",
        )
    },
)
_STYLED: dict[str, Shape] = {"style": _STYLE}
_TEXT = Record({"text": Str(limits.TEXT_IN_POST)}, _STYLED)
_LINK = Record(
    {"url": Str(limits.URL, form=formats.url)},
    _STYLED | {"text": Str(limits.TEXT), "unsafe": Flag()},
)


def _named(key: str, form: Format) -> Record:
    return Record({key: Str(limits.ID, form=form)}, _STYLED)


_INLINE = Many(
    Tagged(
        "a rich text part",
        {
            "text": _TEXT,
            "link": _LINK,
            "user": _named("user_id", formats.user_id),
            "usergroup": _named("usergroup_id", formats.usergroup_id),
            "channel": _named("channel_id", formats.channel_id),
            "emoji": Record(
                {"name": Str(limits.ID)},
                _STYLED | {"unicode": Str(limits.ID), "skin_tone": Whole(1, 6)},
            ),
            "broadcast": Record(
                {"range": Choice(("here", "channel", "everyone"))}, _STYLED
            ),
            "date": Record(
                {"timestamp": Whole(0), "format": Str(limits.ID)},
                _STYLED
                | {
                    "url": Str(limits.URL, form=formats.url),
                    "fallback": Str(limits.TEXT),
                },
            ),
            "color": Record({"value": Str(7, form=formats.color)}, _STYLED),
        },
    )
)
_SECTION = Record({"elements": _INLINE})
_BORDER: dict[str, Shape] = {"border": Whole(0, 1)}

RICH_TEXT = Record(
    {
        "elements": Many(
            Tagged(
                "a rich text element",
                {
                    "rich_text_section": _SECTION,
                    "rich_text_preformatted": Record(
                        {
                            "elements": Many(
                                Tagged(
                                    "a preformatted part",
                                    {"text": _TEXT, "link": _LINK},
                                )
                            )
                        },
                        _BORDER | {"language": Str(limits.ID)},
                    ),
                    "rich_text_quote": Record({"elements": _INLINE}, _BORDER),
                    "rich_text_list": Record(
                        {
                            "style": Choice(("bullet", "ordered")),
                            "elements": Many(
                                Tagged("a list item", {"rich_text_section": _SECTION})
                            ),
                        },
                        _BORDER | {"indent": Whole(0), "offset": Whole(0)},
                    ),
                },
            )
        )
    },
    {"block_id": ID},
)
