"""List ways to break cards that calls of several requests share."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COLLECTED = "tests/bot/test_collected_cards.py"

COLLECTED_TABLE = (
    Mutant(
        "a collected card rises when a member leaves it",
        "gateway/approvals/collected.py",
        "rev=sum(one.rev for one in members) + left * _LEFT,",
        "rev=sum(one.rev for one in members),",
        COLLECTED,
    ),
    Mutant(
        "a member that left a card is decided over it no more",
        "gateway/store/collected_cards.py",
        "if where == [card.encode(), None]",
        "if where",
        COLLECTED,
    ),
    Mutant(
        "a call that needs more people leaves the card that it shares",
        "bot/delivery/collecting.py",
        "return is_alike and can_share(approval)",
        "return True",
        COLLECTED,
    ),
    Mutant(
        "a call that is alone has a card of its own",
        "bot/delivery/collecting.py",
        "if len(members) < 2:",
        "if not members:",
        COLLECTED,
    ),
    Mutant(
        "a button about one call of a collected card is about its approval",
        "bot/listeners/verify_click.py",
        "    return await of_member(ctx, target)\n\n\nasync def verify_place",
        "    return target\n\n\nasync def verify_place",
        COLLECTED,
    ),
    Mutant(
        "members of a card are reminded of once",
        "bot/delivery/collecting.py",
        "if event.name in _ONCE and not await",
        "if False and not await",
        COLLECTED,
    ),
    Mutant(
        "calls of other tasks do not share a card",
        "bot/delivery/collecting.py",
        "                approval.task,\n",
        "",
        COLLECTED,
    ),
    Mutant(
        "calls of other requesters do not share a card",
        "bot/delivery/collecting.py",
        '                approval.requester.user if approval.requester else "",\n',
        "",
        COLLECTED,
    ),
)
