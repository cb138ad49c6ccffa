"""Build the blocks, inputs and views the bot sends, as plain dicts.

Every text has one of the types of `keyturn.bot.text`, so a type checker refuses a plain
`str`, and untrusted text in markup. Plain text is cut to Slack's limits with a visible
mark; markup is never cut, since that could split a mention. A value that does not fit
its input raises an error, and the caller offers another way to edit it. The results are
sent unchanged; `ensure_valid_message` and `ensure_valid_view` check Slack's rules for
the whole message.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from keyturn.bot.ids import View
from keyturn.bot.text import (
    EMPTY,
    Label,
    Plain,
    Template,
    excerpt,
    fit,
    label,
    spoken,
    template,
    untrusted,
)
from keyturn.sandbox.blockkit import (
    JSON,
    Problem,
    limits,
    validate_home,
    validate_message,
    validate_modal,
)
from keyturn.sandbox.blockkit.payload_rules import text_length

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
    shown = excerpt(text.text, limit) if lines else fit(text.text, limit)
    # `emoji` false: ":white_check_mark:" in untrusted text stays letters. Slack refuses
    # an empty text.
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
    """Make a button's confirmation dialog."""
    return {
        "title": plain_text(title, limits.CONFIRM_TITLE),
        "text": any_text(text, limits.CONFIRM_TEXT),
        "confirm": plain_text(yes, limits.CONFIRM_BUTTON),
        "deny": plain_text(Label("Back"), limits.CONFIRM_BUTTON),
    }


def option(text: Plain, value: str) -> Block:
    """Make one option of a menu; Slack returns `value` if it is chosen."""
    return {"text": plain_text(text, limits.OPTION), "value": value}


TEXT_BUDGET = 9_000
"""Maximum characters in the blocks of one message.

It is below `limits.TEXT_IN_ALL_BLOCKS`, because Slack may count in another way.
"""

AS_WRITTEN: dict[str, object] = {
    "parse": "none",
    "link_names": False,
    "attachments": [],
}
"""Arguments of every message.

Without them Slack would turn untrusted plain text into mentions and links, and an
updated card without a table would keep the old one.
"""

_SHOWN_PROBLEMS = 5


class BadBlocks(ValueError):
    """A payload that Slack would refuse, found before it is sent.

    `problems` contains every reason. The message names places and limits but no texts,
    so that it may be logged.
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

    ``text`` contains ids, tier, state and expiry, and no text of other people or
    agents. Every app in the workspace can read ``metadata``: it contains ids only.
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
    # Before Slack, whose refusal names no place. The caller handles refusals that the
    # validator does not foresee.
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


def header(text: Plain) -> Block:
    """Make a large headline."""
    return block_object("header", text=plain_text(text, limits.HEADER))


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
        # Otherwise Slack folds long sections behind "see more", and people would
        # approve collapsed text.
        expand=True,
        block_id=block_id,
    )


def context(*parts: Template | Plain) -> Block:
    """Make a line of small print from one to ten parts."""
    elements: list[JSON] = [any_text(part, limits.TEXT) for part in parts]
    return block_object("context", elements=elements)


def notes(parts: Sequence[Template | Plain]) -> list[Block]:
    """Return the parts as small print; empty without parts."""
    return [context(*parts)] if parts else []


def said(sentence: Template, *more: Block) -> Message:
    """Return a message that begins with a sentence, which is also its spoken text."""
    return Message((section(sentence), *more), spoken(sentence))


def divider() -> Block:
    """Make a thin line."""
    return block_object("divider")


def warning(text: Template | Plain) -> Block:
    """Make a coloured notice; only modals take one."""
    return block_object("alert", text=any_text(text, limits.ALERT), level="warning")


def actions(*elements: Block, block_id: str | None = None) -> Block:
    """Make a row of up to 25 buttons and menus."""
    return block_object("actions", elements=[*elements], block_id=block_id)


def button_row(buttons: Sequence[Block]) -> list[Block]:
    """Return the buttons as a row; empty without buttons."""
    return [actions(*buttons)] if buttons else []


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

    There is no link button: following a link must never decide anything.
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
    """Make the "⋯" menu of two to five options; Slack gives it no label."""
    return block_object("overflow", action_id=str(action_id), options=[*options])


def box(text: str) -> Block:
    """Show untrusted text in fixed width, whole and uninterpreted.

    No text is cut here: use `keyturn.bot.text.excerpt` first if it may be long.
    """
    # Revealed even if the caller has done so; a second time changes nothing.
    part: Block = {"type": "text", "text": untrusted(text).text or EMPTY}
    return block_object("rich_text_preformatted", elements=[part])


def quote(text: str, most: int) -> Block:
    """Show an excerpt of untrusted text, of at most this many characters, in a box."""
    return rich_text(box(excerpt(text, most)))


def titled(title: str, *texts: str) -> list[Block]:
    """Make a bold line of trusted text with boxes below it, as parts of rich text."""
    return [line(bold(label(title))), *map(box, texts)]


def line(*parts: Block) -> Block:
    """Make a line from `text_run`, `bold` and `mention` parts."""
    return block_object("rich_text_section", elements=[*parts])


def link(url: str, text: Label) -> Block:
    """Make a link with a trusted text; following it decides nothing."""
    return block_object("link", url=url, text=text.text)


def rich_text(*parts: Block) -> Block:
    """Make one block of boxes and lines, from top to bottom."""
    return block_object("rich_text", elements=[*parts])


def text_run(text: Label) -> Block:
    """Make a run of trusted rich text."""
    return block_object("text", text=text.text or EMPTY)


def bold(text: Label) -> Block:
    """Make a bold run of trusted rich text."""
    return block_object("text", text=text.text or EMPTY, style={"bold": True})


def mention(user_id: str) -> Block:
    """Mention a person by id inside rich text."""
    return block_object("user", user_id=user_id)


def modal(
    title: str,
    blocks: Sequence[Block],
    *,
    callback_id: str,
    submit: str = "",
    close: str = "",
    private_metadata: str = "",
) -> Block:
    """Make a modal; title and labels are trusted, and inputs need `submit`.

    Its other button is called Cancel, or Close if there is nothing to submit.
    """
    close = close or ("Cancel" if submit else "Close")
    return block_object(
        "modal",
        title=plain_text(label(title), limits.VIEW_LABEL),
        blocks=[*blocks],
        callback_id=callback_id,
        close=plain_text(label(close), limits.VIEW_LABEL),
        submit=plain_text(label(submit), limits.VIEW_LABEL) if submit else None,
        private_metadata=private_metadata,
    )


def notice(title: str, text: Template | Plain) -> Block:
    """Make a modal of one paragraph; its title has 24 characters at most."""
    return modal(title, [section(text)], callback_id=View.NOTICE)


def home(blocks: Sequence[Block], *, callback_id: str) -> Block:
    """Make an App Home tab."""
    return block_object("home", blocks=[*blocks], callback_id=callback_id)


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


def select(
    action_id: str,
    options: Sequence[Block],
    *,
    initial: str | None = None,
    placeholder: Plain | None = None,
) -> Block:
    """Make a menu to choose one of up to 100 options."""
    menu = _one_of("static_select", action_id, options, initial)
    if placeholder:
        menu["placeholder"] = _placeholder(placeholder)
    return menu


def _one_of(
    kind: str, action_id: str, options: Sequence[Block], initial: str | None
) -> Block:
    offered = _distinct(options)
    return block_object(
        kind,
        action_id=str(action_id),
        options=[*offered],
        initial_option=_one(offered, initial),
    )


def multi_select(
    action_id: str, options: Sequence[Block], *, initial: Sequence[str] = ()
) -> Block:
    """Make a menu to choose several of up to 100 options."""
    offered = _distinct(options)
    return block_object(
        "multi_static_select",
        action_id=str(action_id),
        options=[*offered],
        initial_options=[_one(offered, value) for value in initial] or None,
    )


def checkboxes(
    action_id: str, options: Sequence[Block], *, ticked: Container[str] = ()
) -> Block:
    """Make up to ten boxes; those with these values are ticked."""
    offered = _distinct(options)
    return block_object(
        "checkboxes",
        action_id=str(action_id),
        options=[*offered],
        initial_options=[one for one in offered if str(one["value"]) in ticked] or None,
    )


def radio_buttons(
    action_id: str, options: Sequence[Block], *, initial: str | None = None
) -> Block:
    """Make up to ten buttons; one can be chosen."""
    return _one_of("radio_buttons", action_id, options, initial)


def _distinct(options: Sequence[Block]) -> list[Block]:
    """Number the options if two of them look alike, such as after a cut."""
    shown = [str(offered["text"]) for offered in options]
    # A reviewer could mistake one for the other and choose an unintended value.
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
