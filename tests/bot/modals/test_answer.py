"""The form of an agent's questions is what Slack takes, and is read back exactly."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.blocks import ensure_valid_message, ensure_valid_view
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.ids import VALUE
from keyturn.bot.modals import answer, details
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.questions import (
    MAX_CHOICE,
    MAX_CHOICES,
    MAX_QUESTION,
    MAX_QUESTIONS,
    Question,
    QuestionSet,
    QuestionType,
    answer_of_reply,
)
from keyturn.gateway.protocol.records import Verb
from tests.approvals.builders import APPROVAL_ID, NOW_MS, an_approval, an_item
from tests.bot.slack_state import chosen, refused, typed, untouched
from tests.sample_questions import EXTRAS, REGION

WORDS = st.text(min_size=1, max_size=60).filter(lambda text: bool(text.strip()))


def an_asking(*questions: Question) -> Approval:
    """Return an approval that asks these questions."""
    item = an_item(schema=None)
    args = QuestionSet(questions=questions).model_dump(mode="json")
    document = digest.action_document(
        tool="ask_user", args=args, ctx=item.ctx.as_dict(), salt="0" * 32
    )
    asked = item.with_(
        tool="ask_user",
        requested=document,
        action=document,
        is_question=True,
        allow=(Verb.RESPOND, Verb.REJECT),
    )
    return an_approval(asked)


def frame(approval: Approval) -> Frame:
    return Frame(approval, b"k" * 32, "T0", NOW_MS)


CHOICES = st.lists(
    WORDS.map(lambda text: text.replace(",", ";").strip()[:MAX_CHOICE]).filter(
        lambda text: text.casefold() not in {"", "other"}
    ),
    min_size=2,
    max_size=MAX_CHOICES,
    unique_by=str.casefold,
).map(tuple)


def _questions(
    kinds: list[QuestionType], choices: st.SearchStrategy[tuple[str, ...]]
) -> st.SearchStrategy[Question]:
    return st.builds(
        Question.model_construct,
        question=WORDS.map(str.strip),
        type=st.sampled_from(kinds),
        choices=choices,
        required=st.booleans(),
        default=st.sampled_from(["", "x\u202ey"]),
    )


some_questions = st.lists(
    _questions([QuestionType.TEXT], st.just(()))
    | _questions([QuestionType.MULTIPLE_CHOICE, QuestionType.MULTI_SELECT], CHOICES),
    min_size=1,
    max_size=MAX_QUESTIONS,
).map(tuple)


@given(some_questions)
def test_any_question_has_a_valid_form(questions: tuple[Question, ...]) -> None:
    _ensure_valid(questions)


@pytest.mark.parametrize(
    ("filler", "count"),
    [("W", 20), ("&", 20), ("\u200b", 10), ("\u202e", 10), ("a\nb", 10)],
)
def test_the_longest_questions_fit_card_and_form(filler: str, count: int) -> None:
    def filled(name: str, most: int) -> str:
        return f"{name}{(filler * most)[: most - len(name) - 1]}y"

    question = Question(
        question=filled("x", MAX_QUESTION),
        type=QuestionType.MULTI_SELECT,
        choices=tuple(filled(f"{n:02d}", MAX_CHOICE) for n in range(count)),
        default=filled("x", MAX_CHOICE),
        required=False,
    )

    _ensure_valid((question,) * MAX_QUESTIONS, says="W" * 10_000)


@pytest.mark.parametrize("kind", ["multiple_choice", "multi_select"])
def test_a_choice_that_an_option_cannot_hold_stands_whole_above_it(kind: str) -> None:
    hiding = "\u202e" * 20
    choices = (f"{hiding}pay Ana", f"{hiding}pay Bob")
    question = Question(question="Who?", type=QuestionType(kind), choices=choices)

    form = answer.view(frame(an_asking(question)), 0)

    text = str(form["blocks"])
    assert "1. " + "⟦U+202E⟧" * 20 + "pay Ana" in text
    assert "2. " + "⟦U+202E⟧" * 20 + "pay Bob" in text
    assert text.count("'2. ⟦U+202E⟧") == 1  # the option has the same number
    assert "\u202e" not in text


def _ensure_valid(questions: tuple[Question, ...], says: str = "") -> None:
    shown = frame(an_asking(*questions).with_(says=says))
    message = card(shown)
    ensure_valid_message(message.blocks, message.text, update=True)
    ensure_valid_view(answer.view(shown, 0))
    assert APPROVAL_ID in str(message.blocks)


ONE = Question(question="?", type=QuestionType.MULTIPLE_CHOICE, choices=("a", "b"))
MANY = Question(question="?", type=QuestionType.MULTI_SELECT, choices=("a", "b"))


@pytest.mark.parametrize("place", ["-1", "2", "x", "0 ", "\u0660"])
@pytest.mark.parametrize("question", [ONE, MANY])
def test_an_unoffered_choice_is_refused(question: Question, place: str) -> None:
    option = {"value": place}
    held: dict[str, Any] = {"selected_option": option, "selected_options": [option]}

    errors = refused(answer.submitted, (question,), {"question.0": {VALUE: held}})

    assert errors == {"question.0": "Please choose one of the options."}


ASKED = tuple(map(Question.model_validate, (REGION, EXTRAS, {"question": "Its name?"})))


@pytest.mark.parametrize(
    ("changes", "block", "why"),
    [
        ({"question.0": "other"}, "question.0.other", "Write your answer"),
        ({"question.0.other": "Mars"}, "question.0.other", "Choose Other"),
        ({"question.1.other": "a, b"}, "question.1.other", "commas"),
    ],
)
def test_an_answer_that_does_not_fit_is_explained_under_its_input(
    changes: dict[str, str], block: str, why: str
) -> None:
    form: Any = answer.view(frame(an_asking(*ASKED)), 0)
    state = untouched(form["blocks"])
    for name, value in ({"question.0": "0", "question.2": "Ada"} | changes).items():
        (held,) = state[name].values()
        is_choice = "selected_option" in held
        state = (chosen if is_choice else typed)(state, name, value)
    errors = refused(answer.submitted, ASKED, state)
    assert [*errors] == [block]
    assert why in errors[block]


@pytest.mark.parametrize(
    ("question", "words", "expected"),
    [
        (0, "us", "US"),
        (0, "Mars, or so", "Mars, or so"),
        (1, "Alerts", "alerts"),
        (1, "alerts,LOGS", "logs, alerts"),
        (1, "my own, logs", "logs, my own"),
        (2, "Ada, Bob", "Ada, Bob"),
    ],
)
def test_a_reply_names_choices_in_any_case_and_order(
    question: int, words: str, expected: str
) -> None:
    assert answer_of_reply(ASKED[question], words) == expected


def test_view_all_of_a_question_speaks_of_answering_it() -> None:
    asked = an_asking(
        Question(question="Which\n2. Really?"),
        Question(
            question="How?", type=QuestionType.MULTI_SELECT, choices=("mail", "phone")
        ),
    )

    view = details.view(frame(asked), 0, 1)

    ensure_valid_view(view)
    words = str(view).casefold()
    assert "1. which\\n   2. really?\\n2. how?\\n   - mail\\n   - phone" in words
    assert "waits for an answer" in words
    assert not re.search("approv|tier|review|this call", words)
