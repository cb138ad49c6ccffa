"""Modal to answer all questions of an agent at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import LiteralString

from keyturn.bot.blocks import (
    Block,
    box,
    checkboxes,
    context,
    input_block,
    multi_select,
    option,
    radio_buttons,
    rich_text,
    select,
    text_input,
)
from keyturn.bot.cards.frame import Frame
from keyturn.bot.ids import VALUE, View
from keyturn.bot.modals.call_form import form
from keyturn.bot.modals.form import BadInput, InvalidInputs, State, raw_value
from keyturn.bot.modals.schema import Kind
from keyturn.bot.text import Untrusted, chunks, label, reveal, template, untrusted
from keyturn.gateway.protocol.questions import (
    MAX_ANSWER,
    SEPARATOR,
    Question,
    QuestionType,
)
from keyturn.sandbox.blockkit import limits

_OTHER = "other"
_BOX = 2_900
_CHOOSE_OTHER = "Choose Other above, or leave this empty."
_WRITE_OTHER = "Write your answer here, or choose another one above."
_NO_COMMAS = "Please write it without commas: they separate your choices."


_READS: LiteralString = "The agent reads your answers, and who gave them."
_READS_WORDS: LiteralString = "The agent reads your answers."


def view(frame: Frame, index: int) -> Block:
    """Return the form with an input for each question."""
    item = frame.approval.items[index]
    blocks = [
        context(template(_READS_WORDS if item.handed_to else _READS)),
        *(
            block
            for number, question in enumerate(item.questions)
            for block in (*_in_full(question), *_to_answer(number, question))
        ),
    ]
    return form(frame, index, blocks, View.ANSWER, "Answer the agent", "Send")


def submitted(questions: tuple[Question, ...], state: State) -> tuple[str, ...]:
    """Read the form: one text per question; raises `InvalidInputs`."""
    answers: list[str] = []
    errors: dict[str, str] = {}
    for number, question in enumerate(questions):
        try:
            answers.append(_answer(number, question, state, errors))
        except BadInput as error:
            errors[_block(number)] = str(error)
    if errors:
        raise InvalidInputs(errors)
    return tuple(answers)


def errors_by_block(errors: Mapping[str, str]) -> dict[str, str]:
    """Map the gateway's errors to the inputs of their questions."""
    return {
        _block(int(pointer.removeprefix("/") or 0)): why
        for pointer, why in errors.items()
    }


def _block(number: int) -> str:
    return f"question.{number}"


def _other_block(number: int) -> str:
    return f"question.{number}.{_OTHER}"


def _in_full(question: Question) -> list[Block]:
    """Return a question whole if its displayed form is too long for its input."""
    is_cut = len(reveal(question.question)) > limits.INPUT_LABEL or any(
        len(reveal(choice)) > limits.OPTION for choice in question.choices
    )
    if not is_cut:
        return []
    choices = [f"{place}. {one}" for place, one in enumerate(question.choices, 1)]
    whole = reveal("\n".join([question.question, *choices]))
    return [rich_text(box(text)) for text in chunks(whole, _BOX)]


def _to_answer(number: int, question: Question) -> list[Block]:
    name = untrusted(question.question)
    match question.type:
        case QuestionType.TEXT:
            words = text_input(VALUE, multiline=True, max_length=MAX_ANSWER)
            return [_input(name, words, number, optional=not question.required)]
        case QuestionType.MULTIPLE_CHOICE:
            options = [*_options(question), option(label("Other"), _OTHER)]
            make = radio_buttons if len(options) <= limits.CHOICES else select
            chosen = make(VALUE, options)
            one = _input(name, chosen, number, optional=not question.required)
            return [one, _other(number, question)]
        case QuestionType.MULTI_SELECT:
            options = _options(question)
            tick = checkboxes if len(options) <= limits.CHOICES else multi_select
            # Optional for Slack even if an answer is required: it may be in Other.
            return [
                _input(name, tick(VALUE, options), number, optional=True),
                _other(number, question),
            ]


def _input(name: Untrusted, element: Block, number: int, *, optional: bool) -> Block:
    return input_block(name, element, block_id=_block(number), optional=optional)


def _other(number: int, question: Question) -> Block:
    return input_block(
        # It must make sense alone, read aloud or scrolled to.
        untrusted(f"Other: {question.question}"),
        text_input(VALUE, max_length=MAX_ANSWER),
        block_id=_other_block(number),
        optional=True,
    )


def _options(question: Question) -> list[Block]:
    return [
        option(untrusted(choice), str(place))
        for place, choice in enumerate(question.choices)
    ]


def _answer(
    number: int, question: Question, state: State, errors: dict[str, str]
) -> str:
    """Return the answer to one question; problems with Other go to ``errors``.

    Raises:
        BadInput: Slack sent a shape that does not fit the question.
    """
    if question.type is QuestionType.TEXT:
        return str(raw_value(_held(state, _block(number)), Kind.TEXT) or "")
    other_block = _other_block(number)
    other = str(raw_value(_held(state, other_block), Kind.TEXT) or "").strip()
    if question.type is QuestionType.MULTI_SELECT:
        if "," in other:
            errors[other_block] = _NO_COMMAS
        places = raw_value(_held(state, _block(number)), Kind.CHOICES) or ()
        # In the order of the question, not in the order of the ticks.
        numbers = sorted(places, key=lambda place: (len(place), place))
        chosen = [_choice(question, place) for place in numbers]
        return SEPARATOR.join([*chosen, *([other] if other else [])])
    chosen_one = raw_value(_held(state, _block(number)), Kind.CHOICE)
    if chosen_one == _OTHER:
        if not other:
            errors[other_block] = _WRITE_OTHER
        return other
    if other:
        errors[other_block] = _CHOOSE_OTHER
    return _choice(question, str(chosen_one)) if chosen_one else ""


def _choice(question: Question, place: str) -> str:
    # The number comes from the client: "-1" would be the last choice.
    offered = {str(number): choice for number, choice in enumerate(question.choices)}
    if place not in offered:
        raise BadInput("Please choose one of the options.")
    return offered[place]


def _held(state: State, block: str) -> Mapping[str, object]:
    return state.get(block, {}).get(VALUE, {})
