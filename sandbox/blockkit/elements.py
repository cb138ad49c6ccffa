"""Schemas of buttons, menus and inputs, and the blocks that accept them.

Source: https://docs.slack.dev/reference/block-kit/block-elements
"""

from keyturn.sandbox.blockkit import formats, limits
from keyturn.sandbox.blockkit.objects import (
    BOX_OPTION,
    CONFIRM,
    DISPATCH,
    ID,
    OPTION_GROUP,
    OVERFLOW_OPTION,
    SELECT_OPTION,
    SLACK_FILE,
    plain,
)
from keyturn.sandbox.blockkit.rules import (
    chosen_are_offered,
    exactly_one_of,
    not_more_than_allowed,
    ordered,
    prefill_fits,
    values_are_unique,
    whole_unless,
    within,
)
from keyturn.sandbox.blockkit.shape import (
    Choice,
    Flag,
    Many,
    Record,
    Shape,
    Str,
    Tagged,
    Whole,
)

_ACTION: dict[str, Shape] = {"action_id": ID}
_PICKED: dict[str, Shape] = _ACTION | {"confirm": CONFIRM, "focus_on_load": Flag()}
_HINTED: dict[str, Shape] = _PICKED | {"placeholder": plain(limits.PLACEHOLDER)}
_TYPED: dict[str, Shape] = _ACTION | {
    "dispatch_action_config": DISPATCH,
    "focus_on_load": Flag(),
    "placeholder": plain(limits.PLACEHOLDER),
}
_OPTIONS: dict[str, Shape] = {
    "options": Many(SELECT_OPTION, limits.SELECT_OPTIONS),
    "option_groups": Many(OPTION_GROUP, limits.OPTION_GROUPS),
}
_BOXES: dict[str, Shape] = {"options": Many(BOX_OPTION, limits.CHOICES)}
_AT_MOST: dict[str, Shape] = {"max_selected_items": Whole(1)}
_USER = Str(limits.ID, form=formats.user_id)
_DECIMAL = Str(limits.ID, form=formats.number)
_ASKED = (exactly_one_of("options", "option_groups"),)
_SOUND = (chosen_are_offered, values_are_unique)

IMAGE = Record(
    {"alt_text": Str(limits.IMAGE_ALT)},
    {"image_url": Str(limits.URL, form=formats.web_url), "slack_file": SLACK_FILE},
    (exactly_one_of("image_url", "slack_file"),),
)

_BUTTON = Record(
    {"text": plain(limits.BUTTON)},
    _ACTION
    | {
        "value": Str(limits.BUTTON_VALUE),
        "url": Str(limits.URL, form=formats.url),
        "style": Choice(("primary", "danger")),
        "confirm": CONFIRM,
        "accessibility_label": Str(limits.BUTTON),
        "visible_to_user_ids": Many(_USER),
    },
)
_OVERFLOW = Record(
    {"options": Many(OVERFLOW_OPTION, limits.OVERFLOW_OPTIONS)},
    _ACTION | {"confirm": CONFIRM},
    (values_are_unique,),
)

_PICKERS = {
    "checkboxes": Record(
        _BOXES,
        _PICKED | {"initial_options": Many(BOX_OPTION, limits.CHOICES)},
        _SOUND,
    ),
    "radio_buttons": Record(_BOXES, _PICKED | {"initial_option": BOX_OPTION}, _SOUND),
    "static_select": Record(
        {}, _HINTED | _OPTIONS | {"initial_option": SELECT_OPTION}, _ASKED + _SOUND
    ),
    "multi_static_select": Record(
        {},
        _HINTED
        | _OPTIONS
        | _AT_MOST
        | {"initial_options": Many(SELECT_OPTION, limits.SELECT_OPTIONS)},
        (*_ASKED, *_SOUND, not_more_than_allowed("initial_options")),
    ),
    "users_select": Record({}, _HINTED | {"initial_user": _USER}),
    "multi_users_select": Record(
        {},
        _HINTED | _AT_MOST | {"initial_users": Many(_USER)},
        (not_more_than_allowed("initial_users"),),
    ),
    "datepicker": Record({}, _HINTED | {"initial_date": Str(10, form=formats.day)}),
    "timepicker": Record(
        {},
        _HINTED
        | {"initial_time": Str(5, form=formats.clock), "timezone": Str(limits.ID)},
    ),
}
_DATETIMEPICKER = Record(
    {}, _PICKED | {"initial_date_time": Whole(*limits.EPOCH_SECONDS)}
)

_INPUTS = {
    "plain_text_input": Record(
        {},
        _TYPED
        | {
            "initial_value": Str(limits.TYPED, least=0),
            "multiline": Flag(),
            "min_length": Whole(0, limits.TYPED),
            "max_length": Whole(1, limits.TYPED),
        },
        (ordered("min_length", "max_length"), prefill_fits),
    ),
    "number_input": Record(
        {"is_decimal_allowed": Flag()},
        _TYPED
        | {"initial_value": _DECIMAL, "min_value": _DECIMAL, "max_value": _DECIMAL},
        (
            ordered("min_value", "max_value"),
            within("initial_value", "min_value", "max_value"),
            whole_unless(
                "is_decimal_allowed", "initial_value", "min_value", "max_value"
            ),
        ),
    ),
    "email_text_input": Record(
        {}, _TYPED | {"initial_value": Str(limits.TYPED, least=0)}
    ),
    "url_text_input": Record(
        {}, _TYPED | {"initial_value": Str(limits.TYPED, form=formats.url)}
    ),
}

_INPUT_ONLY = {
    kind: f"{kind} belongs into an input block, not here" for kind in _INPUTS
}
_NO_INPUT = {
    kind: f"{kind} is not an input, so an input block cannot contain it"
    for kind in ("button", "overflow", "image")
}

IN_SECTION = Tagged(
    "an accessory",
    {**_PICKERS, "button": _BUTTON, "overflow": _OVERFLOW, "image": IMAGE},
    {
        **_INPUT_ONLY,
        "datetimepicker": "datetimepicker belongs into actions or input, not here",
    },
)
IN_ACTIONS = Tagged(
    "an actions element",
    {
        **_PICKERS,
        "button": _BUTTON,
        "overflow": _OVERFLOW,
        "datetimepicker": _DATETIMEPICKER,
    },
    {**_INPUT_ONLY, "image": "an image belongs into context or section, not here"},
)
IN_INPUT = Tagged(
    "an input",
    {**_PICKERS, **_INPUTS, "datetimepicker": _DATETIMEPICKER},
    _NO_INPUT,
)
