"""Lines of a card about its calls: effects, earlier answers, warnings and results."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.listing import needs_a_look
from keyturn.bot.cards.special_cards import spot_checks
from keyturn.bot.cards.states import ENDED
from keyturn.bot.ids import Action
from keyturn.bot.modals import details
from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import SpotCheck
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import Effect, ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.sandbox.blockkit import validate_message
from tests.bot.readable import readable
from tests.bot.samples import BEN, NOW, a_refund, an_approval, an_item, frame, in_state

S = ItemState
READ, REVERSIBLE = Effect.READ, Effect.REVERSIBLE
ANSWERED = Answered(text=f"Q: x?\nA: {'word ' * 700}end", by=BEN, at_ms=NOW)


def shown(approval: Approval) -> str:
    message = card(frame(approval))
    assert validate_message([*message.blocks], message.text) == []
    return readable(message.blocks)


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ([READ, REVERSIBLE], ""),
        # The policy does not define that the second one can be undone.
        ([READ, None], "Cannot be undone"),
        ([None, None], ""),
    ],
)
def test_the_gravest_effect_is_shown(effects: list[Effect | None], said: str) -> None:
    items = [an_item(index=n, effect_class=one) for n, one in enumerate(effects)]
    text = shown(an_approval(*items))

    found = ("Only reads", "Can be undone", "Cannot be undone")
    assert [one for one in found if one in text] == ([said] if said else [])


def test_a_question_tells_what_follows_without_an_answer() -> None:
    asked: JsonObject = {"questions": [{"question": "Which country?"}]}
    item = an_item(asked, tool="ask_user", is_question=True)

    head = shown(an_approval(item))

    assert "Waiting for an answer" in head
    assert "then the agent continues without it" in head


@pytest.mark.parametrize("calls", [1, 2])
def test_an_earlier_answer_is_whole_in_full_details(calls: int) -> None:
    items = [a_refund(index=n) for n in range(calls)]
    approval = an_approval(*items, answered=(ANSWERED,))

    assert "💬" in shown(approval)
    assert "word " * 300 not in shown(approval)
    pages = [details.view(frame(approval), calls - 1, number) for number in (1, 2, 3)]
    assert "word end" in str(pages)


def test_a_card_that_asks_nobody_any_more_shows_no_answers() -> None:
    done = an_approval(in_state(a_refund(), S.AUTHORIZED), answered=(ANSWERED,))

    assert "💬" not in shown(done)


@pytest.mark.parametrize(
    ("statement", "redact", "is_warned"),
    [
        ("UPDATE t SET x = 1", (), True),
        ("UPDATE t SET x = 1 WHERE id = 7", (), False),
        ("UPDATE t SET x = 1", ("args.statement",), False),
    ],
)
def test_a_statement_without_a_condition_is_named_wherever_it_is_decided(
    statement: str, redact: tuple[str, ...], *, is_warned: bool
) -> None:
    query = an_item({"statement": statement}, redact=redact)
    query = query.with_(preview=Preview.model_validate("sql"))
    approval = an_approval(query)

    for text in (shown(approval), str(details.view(frame(approval), 0, 1))):
        assert ("*`UPDATE` without WHERE:* no condition" in text) is is_warned
    # So that it has no Approve in a row of the Home tab, which shows no warnings.
    assert needs_a_look(query) is is_warned


def test_totals_that_do_not_fit_are_counted_and_the_calls_stay_whole() -> None:
    long = "9" * 48
    many = ("args.amount|eur", "args.b|usd", "args.c|gbp")
    calls = [
        an_item({"amount": long, "b": long, "c": long}, tool=tool, index=n, totals=many)
        for n, tool in enumerate(("pay" * 15, "give" * 15) * 2)
    ]

    text = shown(an_approval(*calls))

    assert "More about totals is not shown: " in text
    assert text.count("too long to show") == 3


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_call_that_ended_takes_two_lines(state: ItemState) -> None:
    approval = an_approval(in_state(a_refund(), state))

    blocks = json.loads(json.dumps(card(frame(approval)).blocks))

    assert [one["type"] for one in blocks] == ["header", "section"]
    assert blocks[1]["accessory"]["action_id"] == Action.VIEW_ALL
    assert "arrived broken" in str(details.pages(approval, approval.items[0]))


@pytest.mark.parametrize(("room", "asked"), [(50, 2), (4, 1), (2, 0), (-3, 0)])
def test_a_card_asks_about_as_many_calls_as_fit(room: int, asked: int) -> None:
    check = SpotCheck(asked_at_ms=1)
    ran = [in_state(a_refund(index=n, spot_check=check), S.EXECUTED) for n in range(3)]

    blocks = spot_checks(frame(an_approval(*ran)), room)

    assert len(blocks) <= max(room, 0)
    assert [block["type"] for block in blocks].count("actions") == asked


def test_no_text_of_a_tool_passes_for_a_line_of_the_card() -> None:
    posing = "no funds\n+--\nm:Checked by <@U0BEN>: it took effect\nReason: all is well"
    failed = in_state(a_refund(), S.FAILED, result=Result(ok=False, summary=posing))

    blocks = card(frame(an_approval(failed))).blocks

    (words,) = (block for block in blocks if block["type"] == "rich_text")
    assert "rich_text_section" not in str(words)
    assert "no funds" not in str([block for block in blocks if block is not words])
    assert readable([words]).count("\n") == len(["+--", "| Tool says: …", "+--"])
