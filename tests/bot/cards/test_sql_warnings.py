"""A statement without a condition is named wherever its call is decided."""

from __future__ import annotations

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.listing import needs_a_look
from keyturn.bot.modals import details
from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.markup_audit import objects
from tests.bot.samples import an_approval, an_item, frame

WARNING = "*UPDATE without WHERE:* no condition limits which rows it changes."


def a_query(statement: str, *redact: str) -> Item:
    item = an_item({"statement": statement})
    return item.with_(preview=Preview.model_validate("sql"), redact=redact)


def warned(blocks: list[JsonObject]) -> bool:
    return any(WARNING in str(part.get("text")) for part in objects(blocks))


def test_it_stands_on_the_card_and_above_the_whole_call() -> None:
    shown = frame(an_approval(a_query("UPDATE t SET x = 1")))

    assert warned([*card(shown).blocks])
    assert warned([details.view(shown, 0, 1)])
    # So that it has no Approve in a row of the Home tab, which shows no warnings.
    assert needs_a_look(shown.approval.items[0])


def test_nothing_is_said_of_a_statement_with_a_condition_or_of_a_hidden_one() -> None:
    for item in (
        a_query("UPDATE t SET x = 1 WHERE id = 7"),
        a_query("UPDATE t SET x = 1", "args.statement"),
        an_item({"statement": "UPDATE t SET x = 1"}),
    ):
        assert not warned([*card(frame(an_approval(item))).blocks])
        assert not needs_a_look(item)
