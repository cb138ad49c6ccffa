"""A card links the call by the policy's template, under the arguments."""

from __future__ import annotations

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.markup_audit import objects
from tests.bot.samples import an_approval, an_item, frame

URL = "https://shop.example/orders/78291"


def links(item: Item) -> list[JsonObject]:
    """Return every link on the card of a call."""
    blocks = card(frame(an_approval(item))).blocks
    return [part for part in objects(blocks) if part.get("type") == "link"]


def test_a_link_names_the_host_that_it_leads_to() -> None:
    item = an_item({"order_id": "78291"}).with_(link=URL)

    assert links(item) == [{"type": "link", "url": URL, "text": "Open in shop.example"}]


def test_without_a_link_there_is_none() -> None:
    assert links(an_item({"order_id": "78291"})) == []
