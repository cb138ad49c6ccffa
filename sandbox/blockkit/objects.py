"""Schemas of the composition objects: texts, options, confirmation dialogs.

Source: https://docs.slack.dev/reference/block-kit/composition-objects
"""

from keyturn.sandbox.blockkit import formats, limits
from keyturn.sandbox.blockkit.rules import exactly_one_of
from keyturn.sandbox.blockkit.shape import Choice, Flag, Many, Record, Str, Tagged

ID = Str(limits.ID)


def plain(most: int = limits.TEXT) -> Tagged:
    """Return the schema of text that Slack shows unchanged, except emoji codes."""
    return Tagged("a plain_text", {"plain_text": _plain(most)}, {"mrkdwn": _ONLY_PLAIN})


def text(most: int = limits.TEXT) -> Tagged:
    """Return the schema of a field that accepts plain text or Slack's markup."""
    return Tagged(
        "a text",
        {
            "plain_text": _plain(most),
            "mrkdwn": Record({"text": Str(most)}, {"verbatim": Flag()}),
        },
    )


def _plain(most: int) -> Record:
    return Record({"text": Str(most)}, {"emoji": Flag()})


_ONLY_PLAIN = "mrkdwn is not allowed here, only plain_text"

SELECT_OPTION = Record(
    {"text": plain(limits.OPTION), "value": Str(limits.OPTION_VALUE)},
    {"description": plain(limits.OPTION)},
)
OVERFLOW_OPTION = Record(
    {"text": plain(limits.OPTION), "value": Str(limits.OPTION_VALUE)},
    {"description": plain(limits.OPTION), "url": Str(limits.URL, form=formats.url)},
)
BOX_OPTION = Record(  # checkboxes and radio buttons accept markup
    {"text": text(limits.OPTION), "value": Str(limits.OPTION_VALUE)},
    {"description": text(limits.OPTION)},
)
OPTION_GROUP = Record(
    {
        "label": plain(limits.OPTION),
        "options": Many(SELECT_OPTION, limits.SELECT_OPTIONS),
    }
)
CONFIRM = Record(
    {
        "title": plain(limits.CONFIRM_TITLE),
        "text": text(limits.CONFIRM_TEXT),
        "confirm": plain(limits.CONFIRM_BUTTON),
        "deny": plain(limits.CONFIRM_BUTTON),
    },
    {"style": Choice(("primary", "danger"))},
)
DISPATCH = Record(
    {
        "trigger_actions_on": Many(
            Choice(("on_enter_pressed", "on_character_entered")),
            limits.TRIGGER_ACTIONS,
        )
    }
)
SLACK_FILE = Record(
    {},
    {"id": Str(limits.ID), "url": Str(limits.URL, form=formats.web_url)},
    (exactly_one_of("id", "url"),),
)
