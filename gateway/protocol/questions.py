"""Questions that an agent asks people, and their answers: records, limits, transcript.

A set of questions is the arguments of one call of the tool `ASK_USER`. It is answered
as a whole: one text per question, in order. An answer to a choice is a listed choice or
free text (Other); several choices are joined by `SEPARATOR`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from keyturn.gateway.protocol.records import Person, Record
from keyturn.gateway.protocol.strict_json import JsonObject

ASK_USER = "ask_user"
"""Name of the tool with which agents ask people."""

SEPARATOR = ", "
"""Joins the choices of one answer, so no choice may contain a comma."""

NO_ANSWER = "(no answer)"

NOT_OUTERMOST = (
    "Only the agent that people speak to can ask them, so no question was asked. "
    "Return what you need to know as your answer; the agent that called you can ask "
    "for it."
)
"""Answer to an agent that asks people from inside a tool."""

SEVERAL_OTHERS = (
    "Commas separate your choices, so your own words cannot contain commas. Nothing "
    "was recorded; please write it without commas."
)

MAX_QUESTIONS = 10
MAX_QUESTION = 500
MAX_CHOICES = 20
MAX_CHOICE = 75
"""Longest choice: the limit of one option of a Slack input."""
MAX_ANSWER = 3000
"""Longest answer to one question: the limit of one Slack text input."""
MAX_ANSWERS = 8000
"""Longest total of all answers to a set."""

_OTHER = "other"


class QuestionType(StrEnum):
    """The kind of answer to a question."""

    TEXT = "text"
    MULTIPLE_CHOICE = "multiple_choice"
    MULTI_SELECT = "multi_select"


def _words(most: int) -> StringConstraints:
    return StringConstraints(strip_whitespace=True, min_length=1, max_length=most)


class Question(Record):
    """One question of an agent; all of its texts are the agent's words."""

    question: Annotated[str, _words(MAX_QUESTION)] = Field(
        description="The question, in one or two short sentences."
    )
    type: QuestionType = Field(
        default=QuestionType.TEXT,
        description="text: free words. multiple_choice: one of the choices. "
        "multi_select: any number of the choices.",
    )
    choices: tuple[Annotated[str, _words(MAX_CHOICE)], ...] = Field(
        default=(),
        max_length=MAX_CHOICES,
        description="The choices, for multiple_choice and multi_select only. Leave out "
        "'Other': people are always offered to write words of their own.",
    )
    required: bool = Field(
        default=True, description="False lets people leave this question empty."
    )
    default: str = Field(
        default="",
        max_length=MAX_CHOICE,
        description="What you will go on with when nobody answers in time.",
    )

    @model_validator(mode="after")
    def _has_usable_choices(self) -> Self:
        if self.type is QuestionType.TEXT:
            if self.choices:
                raise ValueError("a question of type text has no choices")
            return self
        names = [choice.casefold() for choice in self.choices]
        if len(names) < 2 or len(set(names)) < len(names):  # noqa: PLR2004 - a choice is between two
            raise ValueError(f"a {self.type} question needs two or more choices")
        if _OTHER in names:
            raise ValueError("leave out the choice 'Other': it is always offered")
        if self.type is QuestionType.MULTI_SELECT and any("," in one for one in names):
            raise ValueError("a choice of multi_select contains no comma")
        return self


class QuestionSet(Record):
    """Questions that people answer together."""

    questions: tuple[Question, ...] = Field(
        min_length=1,
        max_length=MAX_QUESTIONS,
        description="All that you need to know now, asked together.",
    )


class Answered(Record):
    """The answers to a set of questions, as a transcript with their author."""

    text: str
    by: Person
    at_ms: int


def questions_in(args: JsonObject) -> tuple[Question, ...]:
    """Parse the questions of a call.

    Raises:
        pydantic.ValidationError: when the arguments are not a set of questions.
    """
    return QuestionSet.model_validate(args).questions


def problem_of(args: JsonObject) -> str:
    """Return, for the model, why arguments are no set of questions; "" if they are."""
    try:
        questions_in(args)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        why = str(first["msg"]).removeprefix("Value error, ")
        return (
            f"These questions cannot be asked, so no question was asked: {place}: "
            f"{why}. Correct them and ask again."
        )
    return ""


def answer_of_reply(question: Question, words: str) -> str:
    """Parse a person's text as the answer to one question.

    Choices match in any case. Commas separate several choices; at most one part may be
    free text (Other).

    Raises:
        ValueError: with a sentence for the person, if commas make the text ambiguous.
    """
    match question.type:
        case QuestionType.TEXT:
            return words
        case QuestionType.MULTIPLE_CHOICE:
            offered = {choice.casefold(): choice for choice in question.choices}
            return offered.get(words.strip().casefold(), words)
        case QuestionType.MULTI_SELECT:
            parts = [part.strip() for part in words.split(",") if part.strip()]
            named = {part.casefold() for part in parts}
            chosen = [one for one in question.choices if one.casefold() in named]
            known = {one.casefold() for one in chosen}
            others = [part for part in parts if part.casefold() not in known]
            if len(others) > 1:
                raise ValueError(SEVERAL_OTHERS)
            return SEPARATOR.join([*chosen, *others])


def answer_problems(
    questions: Sequence[Question], answers: Sequence[str]
) -> dict[int, str]:
    """Return why answers are invalid, by the index of their question from 0."""
    if len(answers) != len(questions):
        return {0: f"There are {len(questions)} questions and {len(answers)} answers."}
    found = {
        place: problem
        for place, (question, answer) in enumerate(zip(questions, answers, strict=True))
        if (problem := _problem(question, answer))
    }
    total = sum(map(len, answers))
    if not found and total > MAX_ANSWERS:
        longest = max(range(len(answers)), key=lambda place: len(answers[place]))
        found[longest] = (
            f"The answers have {total} characters together, {MAX_ANSWERS} are allowed."
        )
    return found


def _problem(question: Question, answer: str) -> str:
    if question.required and not answer.strip():
        return "Please answer this question."
    if len(answer) > MAX_ANSWER:
        return f"This is {len(answer)} characters, {MAX_ANSWER} are allowed."
    return ""


def transcript(questions: Sequence[Question], answers: Sequence[str]) -> str:
    """Return questions and answers as "Q: …" and "A: …", in order."""
    rows = (
        f"Q: {indented(question.question)}\nA: {indented(answer) or NO_ANSWER}"
        for question, answer in zip(questions, answers, strict=True)
    )
    return "\n\n".join(rows)


def without_answer(questions: Sequence[Question]) -> str:
    """Return the transcript of questions without an answer in time."""
    defaults = [
        f"{NO_ANSWER[:-1]}; your default: {question.default})"
        if question.default
        else ""
        for question in questions
    ]
    return transcript(questions, defaults)


def indented(text: str) -> str:
    """Return a text with all lines after the first indented."""
    # No line of an answer may begin like a line of the transcript, or an answer could
    # forge a second question and answer.
    return "\n   ".join(text.strip().splitlines())
