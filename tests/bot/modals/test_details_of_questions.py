"""The full details of a question list its parts, and mention no approval."""

from __future__ import annotations

from keyturn.bot.blocks import ensure_valid_view
from keyturn.bot.modals import details
from keyturn.gateway.protocol.questions import Question, QuestionType
from tests.bot.modals.test_answer import an_asking, frame


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
    assert [
        word for word in ("approv", "tier", "review", "this call") if word in words
    ] == []
