"""Earlier answers to the agent are on the card of its calls, as text alone."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.modals import details
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import ItemState
from tests.bot.samples import ANA, BEN, NOW, a_refund, an_approval, frame, in_state

ORDER = Answered(text="Q: Which order?\nA: 78291", by=ANA, at_ms=NOW)
LONG = Answered(text=f"Q: x?\nA: {'word ' * 700}end", by=BEN, at_ms=NOW)


def shown(approval: Approval) -> str:
    """Return the whole text of the card."""
    return str(card(frame(approval)).blocks)


def test_an_answer_stands_on_the_card_with_who_gave_it() -> None:
    text = shown(an_approval(answered=(ORDER,)))

    assert "Q: Which order?\\nA: 78291" in text
    assert "Answered before" in text
    assert ANA.name in text
    # A mention would notify who answered of a call that is not theirs to decide.
    assert f"<@{ANA.user}>" not in text


def test_a_long_answer_is_whole_in_view_all() -> None:
    approval = an_approval(answered=(LONG,))

    assert "word " * 300 not in shown(approval)
    pages = [str(details.view(frame(approval), 0, number)) for number in (1, 2, 3)]
    assert any("word end" in page for page in pages)


def test_a_batch_points_to_view_all() -> None:
    approval = an_approval(a_refund(), a_refund(index=1), answered=(ORDER,))

    assert "see Full details" in shown(approval)
    assert "78291\\n" not in shown(approval).partition("see Full details")[0]
    assert "Q: Which order?" in str(details.view(frame(approval), 1, 1))


@pytest.mark.parametrize("state", [ItemState.AUTHORIZED, ItemState.EXECUTED])
def test_a_card_that_asks_nobody_any_more_shows_no_answers(state: ItemState) -> None:
    done = an_approval(in_state(a_refund(), state), answered=(ORDER,))

    assert "Which order?" not in shown(done)
