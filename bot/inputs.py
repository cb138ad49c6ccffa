"""Build Block Kit input blocks: text, numbers, choices, dates, times.

A value is never cut or altered to fit an input: one that does not fit raises an error,
and the caller offers another way to edit it.
"""

from collections.abc import Sequence
from typing import cast

from twokey.bot.objects import Block, block_object, plain_text
from twokey.bot.text import fit
from twokey.bot.text_types import Plain
from twokey.sandbox.blockkit import limits


def input_block(
    label: Plain,
    element: Block,
    *,
    block_id: str,
    hint: Plain | None = None,
    optional: bool = False,
) -> Block:
    """Make an input with its label; errors are shown under it by `block_id`."""
    return block_object(
        "input",
        label=plain_text(label, limits.INPUT_LABEL),
        element=element,
        block_id=block_id,
        hint=plain_text(hint, limits.INPUT_HINT) if hint else None,
        optional=optional,
    )


def text_input(
    action_id: str,
    *,
    initial: str | None = None,
    multiline: bool = False,
    max_length: int = limits.TYPED,
    placeholder: Plain | None = None,
    focus: bool = False,
) -> Block:
    """Make a box for text of one or several lines.

    Raises:
        ValueError: `initial` is longer than the box may be.
    """
    if initial is not None and len(initial) > max_length:
        raise ValueError(
            f"Input {action_id!r} holds {max_length} characters, its value has "
            f"{len(initial)}; split the value, or do not offer to edit it."
        )
    return block_object(
        "plain_text_input",
        action_id=str(action_id),
        initial_value=initial or None,
        multiline=multiline,
        max_length=max_length,
        placeholder=_placeholder(placeholder),
        focus_on_load=focus or None,
    )


def number_input(action_id: str, *, decimal: bool, initial: str | None = None) -> Block:
    """Make a box for a number; numbers are decimal strings, as Slack returns them."""
    return block_object(
        "number_input",
        action_id=str(action_id),
        is_decimal_allowed=decimal,
        initial_value=initial,
    )


def date_input(action_id: str, *, initial: str | None = None) -> Block:
    """Make a calendar; dates are ``YYYY-MM-DD``, as Slack returns them."""
    return block_object("datepicker", action_id=str(action_id), initial_date=initial)


def time_input(action_id: str, *, initial: str | None = None) -> Block:
    """Make a clock; times are ``HH:mm``, as Slack returns them."""
    return block_object("timepicker", action_id=str(action_id), initial_time=initial)


def moment_input(action_id: str, *, initial: int | None = None) -> Block:
    """Make a calendar with a clock; a moment is in Unix seconds.

    Slack shows it in the time zone of the person who looks at it.
    """
    return block_object(
        "datetimepicker", action_id=str(action_id), initial_date_time=initial
    )


def select(
    action_id: str,
    options: Sequence[Block],
    *,
    initial: str | None = None,
    placeholder: Plain | None = None,
) -> Block:
    """Make a menu of up to 100 options, of which one is chosen."""
    offered = _distinct(options)
    return block_object(
        "static_select",
        action_id=str(action_id),
        options=[*offered],
        initial_option=_one(offered, initial),
        placeholder=_placeholder(placeholder),
    )


def multi_select(
    action_id: str,
    options: Sequence[Block],
    *,
    initial: Sequence[str] = (),
) -> Block:
    """Make a menu of up to 100 options, of which several are chosen."""
    offered = _distinct(options)
    return block_object(
        "multi_static_select",
        action_id=str(action_id),
        options=[*offered],
        initial_options=[_one(offered, value) for value in initial] or None,
    )


def checkboxes(
    action_id: str, options: Sequence[Block], *, are_ticked: bool = False
) -> Block:
    """Make up to ten boxes, any of which can be ticked."""
    offered = _distinct(options)
    return block_object(
        "checkboxes",
        action_id=str(action_id),
        options=[*offered],
        initial_options=[*offered] if are_ticked else None,
    )


def radio_buttons(
    action_id: str, options: Sequence[Block], *, initial: str | None = None
) -> Block:
    """Make up to ten buttons, of which one is chosen."""
    offered = _distinct(options)
    return block_object(
        "radio_buttons",
        action_id=str(action_id),
        options=[*offered],
        initial_option=_one(offered, initial),
    )


def _distinct(options: Sequence[Block]) -> list[Block]:
    """Number the options when two of them look alike, such as after a cut."""
    shown = [str(offered["text"]) for offered in options]
    # Two options that look alike could be mistaken for each other, and a reviewer would
    # choose a value they did not mean.
    if len(set(shown)) == len(shown):
        return [*options]
    return [_numbered(place, offered) for place, offered in enumerate(options, 1)]


def _numbered(place: int, offered: Block) -> Block:
    number = f"{place}. "
    text = cast("Block", offered["text"])  # option() put a plain_text object there
    cut = fit(str(text["text"]), limits.OPTION - len(number))
    return {**offered, "text": {**text, "text": number + cut}}


def _one(options: Sequence[Block], value: str | None) -> Block | None:
    """Find the option with a value.

    Raises:
        ValueError: none has it.
    """
    if value is None:
        return None
    for offered in options:
        if offered["value"] == value:
            return offered
    raise ValueError(
        f"The chosen value is not among the {len(options)} options; "
        "pass the value of one of them, or none."
    )


def _placeholder(text: Plain | None) -> Block | None:
    return plain_text(text, limits.PLACEHOLDER) if text else None
