"""Build the modal of one call: heading, inputs and a signed reference (HMAC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import LiteralString

from twokey.bot.blocks import modal
from twokey.bot.cards.frame import Frame
from twokey.bot.ids import Input, View
from twokey.bot.inputs import input_block, text_input
from twokey.bot.modals.form import State, text_of
from twokey.bot.modals.heading import heading
from twokey.bot.objects import Block
from twokey.bot.text_types import label


@dataclass(frozen=True, slots=True)
class SubmittedText:
    """What a reviewer wrote in a form, or by block id why that is not enough."""

    text: str
    errors: dict[str, str]


def call_form(
    frame: Frame,
    index: int,
    blocks: Sequence[Block],
    *,
    purpose: View,
    title: LiteralString,
    submit: LiteralString,
) -> Block:
    """Return the modal in which something is said of one call.

    Args:
        frame: of the modal.
        index: which of its items.
        blocks: what stands below the heading.
        purpose: what its submission does; the seal is good for nothing else.
        title: of the modal.
        submit: words of its button.
    """
    return modal(
        label(title),
        [*heading(frame, frame.approval.items[index]), *blocks],
        callback_id=purpose,
        submit=label(submit),
        close=label("Cancel"),
        private_metadata=frame.value(index, purpose),
    )


def required_text(state: State, block: Input, missing: str) -> SubmittedText:
    """Read the text of an input; blanks alone are none, and ``missing`` says so."""
    text = text_of(state, block)
    return SubmittedText(text, {} if text else {block.value: missing})


def text_field(
    name: Input,
    title: LiteralString,
    *,
    max_length: int,
    hint: LiteralString | None = None,
    initial: str = "",
    focus: bool = False,
    optional: bool = False,
) -> Block:
    """Return an input for several lines; its block and action have the same id."""
    element = text_input(
        name.value,
        initial=initial,
        multiline=True,
        max_length=max_length,
        focus=focus,
    )
    return input_block(
        label(title),
        element,
        block_id=name.value,
        hint=label(hint) if hint else None,
        optional=optional,
    )
