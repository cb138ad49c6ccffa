"""Build the blocks and views the bot sends, as plain dicts.

Every text has one of the types of `twokey.bot.text_types`, so a type checker refuses a
plain `str`, and untrusted text in markup. Plain text is cut to Slack's limits with a
visible mark; markup is never cut, since that could split a mention. The results are
sent as they are; `ensure_valid_message` and `ensure_valid_view` check Slack's rules for
the whole message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from twokey.bot.ids import View
from twokey.bot.objects import Block, any_text, block_object, plain_text
from twokey.bot.text import EMPTY, fit
from twokey.bot.text_types import Label, Plain, Template, label, template, untrusted
from twokey.sandbox.blockkit import (
    JSON,
    Problem,
    limits,
    validate_home,
    validate_message,
    validate_modal,
)
from twokey.sandbox.blockkit.payload_rules import text_length

TEXT_BUDGET = 9_000
"""How many characters the blocks of one of our messages have at most. It is below
`limits.TEXT_IN_ALL_BLOCKS`, because Slack may count in another way."""

_SHOWN_PROBLEMS = 5


class BadBlocks(ValueError):
    """Report a payload that Slack would refuse, before it is sent.

    `problems` holds every reason; the message names places and limits but none of the
    texts, so that it may be logged.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(map(str, self.problems[:_SHOWN_PROBLEMS]))
        more = len(self.problems) - _SHOWN_PROBLEMS
        rest = f"; and {more} more" if more > 0 else ""
        super().__init__(f"Slack would refuse this payload: {shown}{rest}.")


@dataclass(frozen=True, slots=True)
class Message:
    """Blocks, the text that screen readers and notifications read, and metadata.

    ``text`` holds ids, tier, state and expiry, and nothing that anybody else wrote.
    Every app in the workspace can read ``metadata``: it holds ids only.
    """

    blocks: tuple[Block, ...]
    text: str
    metadata: Block | None = None


def ensure_valid_message(
    blocks: Sequence[Block] | None, text: str, *, update: bool = False
) -> None:
    """Refuse a message that Slack would refuse; `update` is for chat.update.

    The bot always sends `text`, since screen readers and notifications read it alone.

    Raises:
        BadBlocks: with every problem found.
    """
    # Before Slack, whose refusal names no place. What the validator lets through and
    # Slack refuses is left to the caller.
    problems = validate_message(blocks, text, update=update)
    if not problems and (size := text_length(blocks)) > TEXT_BUDGET:
        message = f"text must have at most {TEXT_BUDGET} characters, has {size}"
        problems = [Problem("/blocks", "msg_blocks_too_long", message)]
    if problems:
        raise BadBlocks(problems)
    if not text.strip():
        message = "is what screen readers read; write a sentence"
        raise BadBlocks([Problem("/text", "no_text", message)])


def ensure_valid_view(view: Block) -> None:
    """Refuse a modal or App Home tab that Slack would refuse.

    Raises:
        BadBlocks: with every problem found.
    """
    check = validate_home if view.get("type") == "home" else validate_modal
    if problems := check(view):
        raise BadBlocks(problems)


def first_rows(rows: Sequence[Sequence[Block]], most: int) -> list[Block]:
    """Return the blocks of the first rows, and a line that counts the others."""
    blocks = [block for row in rows[:most] for block in row]
    more = len(rows) - most
    if more > 0:
        blocks.append(context(template("… and {more} more.", more=more)))
    return blocks


def header(text: Plain, *, block_id: str | None = None) -> Block:
    """Make a large headline."""
    return block_object(
        "header", text=plain_text(text, limits.HEADER), block_id=block_id
    )


def section(
    text: Template | Plain,
    *,
    accessory: Block | None = None,
    block_id: str | None = None,
) -> Block:
    """Make a paragraph, never collapsed behind "see more"."""
    return block_object(
        "section",
        text=any_text(text, limits.TEXT),
        accessory=accessory,
        # Slack folds long sections behind "see more" otherwise: nobody may approve what
        # is collapsed.
        expand=True,
        block_id=block_id,
    )


def context(*parts: Template | Plain, block_id: str | None = None) -> Block:
    """Make a line of small print from one to ten parts."""
    elements: list[JSON] = [any_text(part, limits.TEXT) for part in parts]
    return block_object("context", elements=elements, block_id=block_id)


def divider(*, block_id: str | None = None) -> Block:
    """Make a thin line."""
    return block_object("divider", block_id=block_id)


def warning(text: Template | Plain) -> Block:
    """Make a coloured notice; only modals take one."""
    return block_object("alert", text=any_text(text, limits.ALERT), level="warning")


def actions(*elements: Block, block_id: str | None = None) -> Block:
    """Make a row of up to 25 buttons and menus."""
    return block_object("actions", elements=[*elements], block_id=block_id)


def button(
    action_id: str,
    text: Plain,
    *,
    value: str | None = None,
    style: Literal["primary", "danger"] | None = None,
    accessibility_label: Plain | None = None,
    confirm: Block | None = None,
) -> Block:
    """Make a button; screen readers read `accessibility_label`, else its text.

    There is no link button: nothing may be decided by following a link.
    """
    spoken = fit((accessibility_label or text).text, limits.BUTTON)
    return block_object(
        "button",
        action_id=str(action_id),
        text=plain_text(text, limits.BUTTON),
        value=value,
        style=style,
        accessibility_label=spoken,
        confirm=confirm,
    )


def overflow(action_id: str, options: Sequence[Block]) -> Block:
    """Make the "⋯" menu of two to five acts; Slack gives it no label of its own."""
    return block_object("overflow", action_id=str(action_id), options=[*options])


def box(text: str) -> Block:
    """Show text of strangers in fixed width, whole and uninterpreted.

    Nothing is cut here: take `twokey.bot.text.excerpt` first where a text may be long.
    """
    # Revealed here whatever the caller did; doing it twice changes nothing.
    part: Block = {"type": "text", "text": untrusted(text).text or EMPTY}
    return block_object("rich_text_preformatted", elements=[part])


def line(*parts: Block) -> Block:
    """Make a line of ours from `text_run`, `bold` and `mention` parts."""
    return block_object("rich_text_section", elements=[*parts])


def link(url: str, text: Label) -> Block:
    """Make a link with a text of ours; nothing is decided by following it."""
    return block_object("link", url=url, text=text.text)


def rich_text(*parts: Block, block_id: str) -> Block:
    """Make one block of boxes and lines, from top to bottom."""
    return block_object("rich_text", block_id=block_id, elements=[*parts])


def text_run(text: Label) -> Block:
    """Make a run of rich text of ours."""
    return block_object("text", text=text.text or EMPTY)


def bold(text: Label) -> Block:
    """Make a bold run of rich text of ours."""
    return block_object("text", text=text.text or EMPTY, style={"bold": True})


def mention(user_id: str) -> Block:
    """Mention a person by id inside rich text."""
    return block_object("user", user_id=user_id)


def bar_chart(
    title: Label,
    categories: Sequence[Label],
    series: Sequence[tuple[Label, Sequence[int]]],
    *,
    block_id: str,
) -> Block:
    """Make bars of each series in each category; only messages take two of them.

    Slack calls a name that occurs twice an error, so names are words of ours: text of
    strangers could be cut to the same.
    """
    names = [one.text for one in categories]
    drawn: list[JSON] = [
        {
            "name": name.text,
            "data": [
                {"label": at, "value": value}
                for at, value in zip(names, values, strict=True)
            ],
        }
        for name, values in series
    ]
    axis: Block = {"categories": [*names]}
    return block_object(
        "data_visualization",
        title=title.text,
        chart={"type": "bar", "series": drawn, "axis_config": axis},
        block_id=block_id,
    )


def modal(
    title: Plain,
    blocks: Sequence[Block],
    *,
    callback_id: str,
    close: Plain,
    submit: Plain | None = None,
    private_metadata: str = "",
) -> Block:
    """Make a modal; one with inputs needs `submit`."""
    return block_object(
        "modal",
        title=plain_text(title, limits.VIEW_LABEL),
        blocks=[*blocks],
        callback_id=callback_id,
        close=plain_text(close, limits.VIEW_LABEL),
        submit=plain_text(submit, limits.VIEW_LABEL) if submit else None,
        private_metadata=private_metadata,
    )


def notice(title: Plain, text: Template | Plain) -> Block:
    """Make a modal of one paragraph; its title has 24 characters at most."""
    return modal(title, [section(text)], callback_id=View.NOTICE, close=label("Close"))


def home(blocks: Sequence[Block], *, callback_id: str) -> Block:
    """Make an App Home tab."""
    return block_object("home", blocks=[*blocks], callback_id=callback_id)
