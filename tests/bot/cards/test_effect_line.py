"""A card shows whether its call can be undone, if the policy defines it."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.gateway.protocol.records import Effect
from tests.bot.readable import readable
from tests.bot.samples import an_approval, an_item, frame

SAID = ("Only reads", "Can be undone", "Cannot be undone")


def shown(*effects: Effect | None) -> list[str]:
    items = [an_item(index=n, effect_class=one) for n, one in enumerate(effects)]
    text = readable(list(card(frame(an_approval(*items))).blocks))
    return [one for one in SAID if one in text]


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        ([Effect.READ], ["Only reads"]),
        ([Effect.REVERSIBLE], ["Can be undone"]),
        ([Effect.IRREVERSIBLE], ["Cannot be undone"]),
        ([Effect.READ, Effect.REVERSIBLE], ["Can be undone"]),
        # The policy does not define that the second one can be undone.
        ([Effect.READ, None], ["Cannot be undone"]),
        ([None, None], []),
    ],
)
def test_the_card_shows_the_gravest_effect_of_its_calls(
    effects: list[Effect | None], said: list[str]
) -> None:
    assert shown(*effects) == said
